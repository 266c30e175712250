"""Quality against network calls from masks, with likelihoods: `python tools/planner_study.py`

Trains a flow from one mask for each seed, and a causal judge on the same text; draws samples by Euler, refresh and
planners; measures the likelihood of each sampler on held-out text. Writes the tables of docs/results/planners.md below
its marker line. What was measured is kept in --out, so that a second call continues. `OMP_NUM_THREADS=1` on a machine
that others use.

The defaults take minutes on one CPU thread. The same on a GPU, with larger networks, on Morse code and on novels; a run
is measured after each seed, so `--seeds 0` first and then all continues it:

    python tools/planner_study.py --network mini --text shakespeare --steps 20000 --batch 64 --judge-steps 5000 \
        --samples 1000 --rows 512 --device cuda --out runs/planners-mini --page planners_mini.md
    python tools/planner_study.py --network mini --text novels --tokens gpt2 --steps 2500 --batch 512 --lr 1.5e-3 \
        --judge-size mini --judge-steps 2500 --samples 512 --rows 256 --device cuda --out runs/planners-novels \
        --page planners_novels.md
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import torch

import hopflow as hf
from hopflow.data.morse import UNREADABLE, from_morse
from hopflow.evaluation.metrics import Samples, metric
from hopflow.sampling.samplers import Sampler

MARKER = "<!-- what follows is written by tools/planner_study.py -->"
GAMMAS = (0.3, 1.0, 3.0, 10.0, 30.0)
REFRESH = (1.0, 2.0)
COLUMNS = ("calls", "likelihood", "judge_ppl", "unreadable", "entropy_bits", "distinct")

Number = tuple[float, float]
"""A value and its standard error."""


@dataclass(frozen=True)
class Case:
    """A sampler, and how its likelihood is measured."""

    sampler: Sampler
    family: str
    likelihood: str

    @property
    def name(self) -> str:
        return self.sampler.label


def cases(calls: list[int], length: int) -> list[Case]:
    found = [Case(hf.Euler(n), "Euler", "bn") for n in calls]
    found += [Case(hf.Euler(n, refresh=r), f"Euler, refresh {r:g}", "bn") for r in REFRESH for n in calls[1:-1]]
    found.append(Case(hf.RandomOrder(), "random order", "b0"))
    for kind in (hf.Confidence, hf.Margin, hf.LeftToRight):
        per_call = dict.fromkeys(-(-length // n) for n in calls)
        found += [Case(kind(k), kind.__name__, "planned") for k in per_call]
    return found + [Case(hf.EntropyBound(gamma), "EntropyBound", "planned") for gamma in GAMMAS]


class Study:
    """One text, one kind of network, several seeds."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.out = chosen, Path(chosen.out)
        self.corpus = hf.data.load(chosen.text, tokens=chosen.tokens, length=chosen.length)
        self.flow = hf.Flow(hf.Mask.fit(self.corpus.counts))
        self.x1 = self.corpus.test[: chosen.rows]

    def train(self, name: str, model: torch.nn.Module, flow: hf.Flow | None, seed: int, **keys: object) -> Path:
        folder = self.out / name
        if not (folder / "done").exists():
            chosen = self.chosen
            quiet = {"eval_every": 0, "eval_rows": 0, "eval_samples": 0, "save_every": chosen.steps, "workers": 0}
            hf.train(
                model,
                flow,
                self.corpus,
                out=folder,
                batch=chosen.batch,
                device=chosen.device,
                compile=chosen.device.startswith("cuda") and isinstance(model, hf.Transformer | hf.Causal),
                seed=seed,
                **quiet,
                **keys,
            )
            (folder / "done").touch()
        return folder

    def network(self, seed: int) -> torch.nn.Module:
        chosen, vocab = self.chosen, self.flow.vocab
        torch.manual_seed(seed)
        model = hf.Convolutional(vocab) if chosen.network == "demo" else hf.Transformer(vocab, chosen.network)
        keys = {"steps": chosen.steps, "lr": chosen.lr, "warmup": chosen.warmup, "weight_ema": chosen.weight_ema}
        return self.loaded(self.train(f"flow-{seed}", model, self.flow, seed, **keys))

    def judge(self) -> torch.nn.Module:
        torch.manual_seed(0)
        model = hf.Causal(self.corpus.vocab_size, self.chosen.judge_size)
        rates = {"steps": self.chosen.judge_steps, "lr": 2e-3, "warmup": 20, "rate": "cosine"}
        return self.loaded(self.train("judge", model, None, 0, **rates))

    def loaded(self, folder: Path) -> torch.nn.Module:
        return hf.from_pretrained(folder).model.to(self.chosen.device).eval()

    def kept(self, name: str, make: Callable[[], dict[str, Number]]) -> dict[str, Number]:
        file = self.out / f"{name}.json"
        if not file.exists():
            began = time.process_time()
            found = make()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({**found, "seconds": (time.process_time() - began, 0.0)}) + "\n")
        return {key: tuple(number) for key, number in json.loads(file.read_text()).items()}

    def measure(self, case: Case, model: torch.nn.Module, judge: torch.nn.Module, seed: int) -> dict[str, Number]:
        chosen = self.chosen
        out = hf.generate(model, self.flow, n=chosen.samples, length=chosen.length, sampler=case.sampler, seed=seed + 1)
        found = self.quality(out.tokens, judge) | {
            "calls": mean_and_error(out.calls),
            "hops": mean_and_error(out.jumps),
        }
        x1 = self.x1.to(chosen.device)
        if case.likelihood == "planned":
            estimate = hf.planned_nll(model, self.flow, x1, case.sampler)
        else:
            steps = {"steps": case.sampler.steps, "refresh": case.sampler.refresh} if case.likelihood == "bn" else {}
            estimate = hf.nll_bound(model, self.flow, x1, **steps, draws=chosen.draws, seed=seed + 2)
        return found | {"likelihood": (estimate.ppl, estimate.ppl_stderr)}

    def quality(self, tokens: torch.Tensor, judge: torch.nn.Module) -> dict[str, Number]:
        """What the causal judge says, the share of Morse codes that do not exist, and how varied the texts are."""
        with torch.no_grad():
            parts = [judge.nll(rows.to(self.chosen.device)).cpu() for rows in tokens.split(64)]
        nats = torch.cat(parts).double() / tokens.shape[1]
        value, error = mean_and_error(nats)
        found = {"judge_ppl": (math.exp(value), math.exp(value) * error)}
        samples = Samples(tokens.cpu(), None, self.corpus.tokenizer)
        for name in ("entropy_bits", "distinct_3"):
            number = metric(name).measure(samples)
            found["distinct" if name == "distinct_3" else name] = (number.value, number.stderr)
        if self.chosen.tokens == "morse":
            texts = [from_morse(self.corpus.tokenizer.decode(row)) for row in tokens.tolist()]
            wrong = torch.tensor([text.count(UNREADABLE) / max(1, len(text)) for text in texts])
            found["unreadable"] = mean_and_error(100 * wrong)
        return found

    def run(self) -> tuple[list[Case], dict[str, dict[str, Number]], float]:
        judge, table, spent = self.judge(), {}, 0.0
        todo = cases(self.chosen.calls, self.chosen.length)
        table["held-out text"] = self.kept("text", lambda: self.quality(self.x1, judge))
        each: dict[str, list[dict[str, Number]]] = {case.name: [] for case in todo}
        for seed in self.chosen.seeds:
            model = self.network(seed)
            for case in todo:
                name = f"seed-{seed}/{case.name.replace(' ', '_').replace(',', '')}"
                found = self.kept(name, partial(self.measure, case, model, judge, seed))
                each[case.name].append(found)
                spent += found["seconds"][0]
                shown = ", ".join(f"{key} {found[key][0]:.4g}" for key in COLUMNS if key in found)
                print(f"seed {seed}, {case.name}: {shown}", flush=True)
        return todo, table | {name: averaged(found) for name, found in each.items()}, spent


def mean_and_error(values: torch.Tensor) -> Number:
    values = values.double().cpu()
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def averaged(found: list[dict[str, Number]]) -> dict[str, Number]:
    """The mean over seeds and its standard error; for one seed its own error."""
    if len(found) == 1:
        return found[0]
    return {key: mean_and_error(torch.tensor([one[key][0] for one in found])) for key in found[0]}


def tables(study: Study, todo: list[Case], table: dict[str, dict[str, Number]], spent: float) -> str:
    chosen, corpus = study.chosen, study.corpus
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    versions = f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}, {chosen.device}"
    command = " ".join(["python tools/planner_study.py", *sys.argv[1:]])
    columns = [name for name in COLUMNS if name in table["held-out text"] or name in ("calls", "likelihood")]
    heads = {"likelihood": "perplexity", "judge_ppl": "judge", "unreadable": "unreadable, %", "entropy_bits": "entropy"}
    heads |= {"distinct": "distinct 3-grams", "calls": "calls"}
    lines = [
        f"`{command}`, commit {commit}, {versions}, {date.today()}; {spent / 60:.0f} minutes without the trainings.",
        "",
        f"Text: `{chosen.text}`, tokens `{chosen.tokens}` ({corpus.vocab_size}), sha256 "
        f"{corpus.identity['source_sha256'][:12]}, L = {chosen.length}. Network: {chosen.network}, "
        f"{chosen.steps:,} steps of {chosen.batch} sequences, seeds {', '.join(map(str, chosen.seeds))}. "
        f"{len(study.x1)} held-out sequences, {chosen.samples} samples for each sampler and seed. "
        f"Judge: causal `{chosen.judge_size}`, {chosen.judge_steps:,} steps on the same text. "
        "± is the standard error of the mean over seeds.",
        "",
        f"| sampler | likelihood | {' | '.join(heads[name] for name in columns)} |",
        f"|---|---|{'---|' * len(columns)}",
    ]
    for case in todo:
        kind = "exact" if case.likelihood == "planned" else f"bound `{case.likelihood}`"
        lines.append(f"| {case.name} | {kind} | {' | '.join(cell(table[case.name], name) for name in columns)} |")
    lines.append(f"| held-out text | – | {' | '.join(cell(table['held-out text'], name) for name in columns)} |")
    return "\n".join(lines) + "\n"


def cell(found: dict[str, Number], name: str) -> str:
    if name not in found:
        return "–"
    value, error = found[name]
    return f"{value:.4g}" + (f" ± {error:.1g}" if error >= 1e-9 else "")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--text", default="docs", help="a name of `hopflow data list`, a file or a folder")
    parser.add_argument("--tokens", default="morse")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--network", default="demo", help="demo, or a size of the transformer: tiny, mini, small")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=None, help="3e-3 for demo, else 3e-4")
    parser.add_argument("--warmup", type=int, default=None, help="20 for demo, else 500")
    parser.add_argument("--weight-ema", type=float, default=None, help="0.99 for demo, else 0.999")
    parser.add_argument("--judge-size", default="tiny")
    parser.add_argument("--judge-steps", type=int, default=400)
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2])
    parser.add_argument("--calls", type=numbers, default=[4, 8, 16, 32, 128], help="network calls, in increasing order")
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--rows", type=int, default=64, help="held-out sequences of the likelihoods")
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="runs/planners")
    parser.add_argument("--page", default=None, help="a file of docs/results whose tables are replaced; else printed")
    chosen = parser.parse_args()
    demo = chosen.network == "demo"
    for name, small, large in (("lr", 3e-3, 3e-4), ("warmup", 20, 500), ("weight_ema", 0.99, 0.999)):
        if getattr(chosen, name) is None:
            setattr(chosen, name, small if demo else large)
    return chosen


def main() -> None:
    chosen = arguments()
    torch.set_num_threads(1 if chosen.device == "cpu" else torch.get_num_threads())
    study = Study(chosen)
    written = tables(study, *study.run())
    if chosen.page is None:
        print(written)
        return
    file = Path(__file__).parents[1] / "docs" / "results" / chosen.page
    before = file.read_text(encoding="utf-8").partition(MARKER)[0] if file.exists() else "# Planners\n\n"
    file.write_text(f"{before}{MARKER}\n\n{written}", encoding="utf-8")


if __name__ == "__main__":
    main()
