"""Measure what `hopflow train FILE key=value …` reaches within a given time; the table is docs/results/first_hour.md.

One configuration:  python tools/first_hour.py --seconds 300 my.txt source=mask tokens=bpe:512
A list of them:     python tools/first_hour.py --seconds 300 --grid FILE --jobs 4 --out results.jsonl

A grid file has one configuration per line: a text and key=value words. Each configuration runs in its own process. On a
CPU each process is pinned to one core and uses one thread, so that the times of parallel processes can be compared.
The number of steps is given, or chosen by the pace of the first seconds. Each result is one line of JSON.
"""

import argparse
import json
import math
import os
import queue
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch

import hopflow as hf
from hopflow.runs.devices import choose_device

ROWS, DRAWS = 256, 16
"""Held-out sequences of the bounds, and draws of each."""
SAMPLES, SAMPLER_STEPS = 64, 128
SHORT, LONG = 2, 4
"""Letters of the shortest words that are counted; words such as "a" are easily recognized."""
BOUNDS = ("b0", "b1", "bk")
EVALUATIONS = 5
WARM_STEPS = 8
"""Steps that are left out of the pace: compiling, starting workers, filling caches."""


class Enough(Exception):
    """Enough steps were timed."""


def pace(built: "hf.recipes.Built", seconds: float) -> float:
    """Seconds per step, without evaluation, by training for about this many seconds."""
    times: list[float] = []

    def progress(done: int, steps: int) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter())
        if len(times) > 2 * WARM_STEPS and times[-1] - times[WARM_STEPS] > seconds:
            raise Enough

    with tempfile.TemporaryDirectory() as folder, suppress(Enough):
        built.train(out=Path(folder) / "pace", progress=progress)
    timed = times[WARM_STEPS:]
    return (timed[-1] - timed[0]) / (len(timed) - 1)


def words(text: str) -> list[str]:
    """Runs of letters, without the first and the last, which may be cut."""
    return re.findall(r"[^\W\d_]+", text)[1:-1]


def known_words(corpus: "hf.data.Corpus") -> set[str]:
    """Words that occur at least twice in the training text."""
    rows = corpus.batch(0, 0, corpus.rows)
    counts = Counter(word for row in rows for word in words(corpus.decode(row)))
    return {word for word, count in counts.items() if count > 1}


def recognised(texts: list[str], known: set[str]) -> dict[str, float]:
    """Share of known words among all words of samples, by letters as well, and their mean length."""
    found = [word for text in texts for word in words(text)]
    result = {"words": len(found), "word_length": round(sum(map(len, found)) / max(1, len(found)), 2)}
    for least in (SHORT, LONG):
        long = [word for word in found if len(word) >= least]
        result[f"known_{least}"] = round(sum(word in known for word in long) / max(1, len(long)), 4)
        result[f"letters_known_{least}"] = round(
            sum(len(word) for word in long if word in known) / max(1, sum(map(len, found))), 4
        )
    return result


def measure(text: str, keys: dict[str, str], seconds: float, steps: int, threads: int) -> dict[str, object]:
    if threads:
        torch.set_num_threads(threads)
    quiet = {"save_every": "1000000", "keep": "1", "eval_every": "0", "eval_samples": "0", "eval_rows": "0"}
    endless = hf.recipes.resolve(text, {**keys, **quiet, "steps": "1000000", "rate": "constant"})
    began = time.perf_counter()
    built = hf.recipes.build(endless)
    prepared = time.perf_counter() - began
    device = choose_device(endless.device)
    steps = steps or max(EVALUATIONS, round(seconds / pace(built, 0.03 * seconds)))
    looks = {"eval_every": str(steps // EVALUATIONS), "eval_rows": "64"}
    recipe = hf.recipes.resolve(text, {**keys, **quiet, **looks, "steps": str(steps)})
    built = hf.recipes.build(recipe)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        run = built.train(out=Path(folder) / "run", logger=lambda row: rows.append(dict(row)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        model = hf.from_pretrained(run.path, device=device).model
    corpus, flow = built.corpus, built.flow
    assert flow is not None, "a flow is measured"
    x1 = corpus.test[:ROWS]
    characters = sum(len(corpus.decode(row)) for row in x1) / len(x1)
    result: dict[str, object] = {
        "text": Path(text).name,
        "keys": keys,
        "device": str(device),
        "weights": sum(p.numel() for p in model.parameters()),
        "vocabulary": corpus.vocab_size,
        "train_rows": corpus.rows,
        "steps": steps,
        "tokens": steps * recipe.batch * recipe.length,
        "epochs": round(steps * recipe.batch / corpus.rows, 2),
        "prepared_s": round(prepared, 1),
        "seconds": round(run.last["seconds"], 1),
        "wall_s": round(wall, 1),
        "cpu_s": round(cpu, 1),
        "workers_cpu_s": round(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]), 1),
    }
    bounds = {"b0": lambda: hf.nll_bound(model, flow, x1, eta=0, draws=DRAWS)}
    if flow.source.full:
        bounds["b1"] = lambda: hf.nll_bound(model, flow, x1, eta=1, draws=DRAWS)
        bounds["bk"] = lambda: hf.kappa_bound(model, flow, x1, draws=DRAWS)
    x1 = x1.to(device)
    for name, bound in bounds.items():
        found = bound()
        result[f"{name}_nats_per_token"] = round(found.nats / corpus.length, 4)
        result[f"{name}_bits_per_char"] = round(found.nats / characters / math.log(2), 4)
        result[f"{name}_bits_per_char_se"] = round(found.stderr / characters / math.log(2), 4)
    result["course"] = [
        [round(row["seconds"], 1), round(corpus.length * math.log(row["b0_ppl"]) / characters / math.log(2), 3)]
        for row in rows
        if "b0_ppl" in row
    ]
    started = time.perf_counter()
    out = hf.generate(model, flow, n=SAMPLES, length=corpus.length, steps=SAMPLER_STEPS, seed=1)
    result["sampled_s"] = round(time.perf_counter() - started, 1)
    result["jumps"] = round(out.jumps.double().mean().item(), 2)
    texts = [corpus.decode(row) for row in out.tokens.cpu()]
    known = known_words(corpus)
    result |= recognised(texts, known)
    held_out = recognised([corpus.decode(row) for row in corpus.test[:ROWS]], known)
    result["held_out_known"] = [held_out[f"known_{SHORT}"], held_out[f"known_{LONG}"]]
    result["samples"] = [text[:300] for text in texts[:2]]
    return result


def run_grid(lines: list[str], arguments: argparse.Namespace) -> None:
    """Every line in a process of its own, `jobs` at a time, each on a core of its own unless there is one job."""
    free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    cores = sorted(os.sched_getaffinity(0))
    for job in range(arguments.jobs):
        free.put(cores[job % len(cores)] if arguments.jobs > 1 else None)
    lock = threading.Lock()

    def one(line: str) -> None:
        core = free.get()
        pin = [] if core is None else ["--core", str(core)]
        timing = [f"--{name}={getattr(arguments, name)}" for name in ("seconds", "steps", "threads")]
        command = [sys.executable, __file__, *timing, *pin, *shlex.split(line)]
        alone = {} if core is None else {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **alone})
        free.put(core)
        said = done.stdout.splitlines()
        answer = said[-1] if said and not done.returncode else json.dumps({"line": line, "error": done.stderr[-2000:]})
        with lock:
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(f"{answer}\n")
            print(answer, flush=True)

    threads = [threading.Thread(target=one, args=(line,)) for line in lines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def table(results: list[dict[str, object]]) -> str:
    """Results as a table in Markdown, those of a text together and the lowest bound first.

    Settings that most of the results share stand above it.
    """
    values = {name: [result["keys"].get(name) for result in results] for result in results for name in result["keys"]}
    usual = {name: max(set(found), key=found.count) for name, found in values.items()}
    lines = [
        "Unless a row says otherwise: " + " ".join(f"{name}={value}" for name, value in usual.items() if value) + ".",
        "",
        "| text | differs in | steps | epochs | time | CPU | bits per character | known words | 4 letters or more |",
        "|---|---|---|---|---|---|---|---|---|",
    ]

    def bound(result: dict[str, object], name: str) -> float:
        return result.get(f"{name}_bits_per_char", math.inf)

    for result in sorted(results, key=lambda result: (result["text"], min(bound(result, name) for name in BOUNDS))):
        own = {name: result["keys"].get(name, value) for name, value in usual.items()}
        settings = " ".join(f"{name}={value}" for name, value in own.items() if value != usual[name])
        bounds = "; ".join(
            f"{name} {bound(result, name):.3f} ± {result[f'{name}_bits_per_char_se']:.3f}"
            for name in BOUNDS
            if f"{name}_bits_per_char" in result
        )
        share = [f"{100 * result[f'known_{least}']:.0f} %" for least in (SHORT, LONG)]
        times = [f"{result[name]:.0f} s" for name in ("seconds", "cpu_s")]
        facts = [Path(result["text"]).stem, settings or "–", f"{result['steps']:,}", f"{result['epochs']:.1f}"]
        lines.append(f"| {' | '.join([*facts, *times, bounds, *share])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configuration", nargs="*", help="a text and key=value words")
    parser.add_argument("--seconds", type=float, default=300, help="wall time of training, without evaluations")
    parser.add_argument("--steps", type=int, default=0, help="take this many steps, however long they take")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 0 leaves torch's own number")
    parser.add_argument("--core", type=int, help="pin the process to this core")
    parser.add_argument("--grid", type=Path, help="a file with one configuration per line")
    parser.add_argument("--jobs", type=int, default=1, help="configurations at a time")
    parser.add_argument("--out", type=Path, default=Path("first_hour.jsonl"), help="where a grid's results are added")
    parser.add_argument("--table", type=Path, help="print these results as a table, and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        found = [json.loads(line) for line in arguments.table.read_text(encoding="utf-8").splitlines()]
        print(table([result for result in found if "error" not in result]))
        return
    if arguments.grid:
        lines = [line.strip() for line in arguments.grid.read_text(encoding="utf-8").splitlines()]
        run_grid([line for line in lines if line and not line.startswith("#")], arguments)
        return
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    text, *rest = arguments.configuration
    keys = dict(word.split("=", 1) for word in rest)
    print(json.dumps(measure(text, keys, arguments.seconds, arguments.steps, arguments.threads), ensure_ascii=False))


if __name__ == "__main__":
    main()
