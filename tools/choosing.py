"""Measure what docs/choosing.md shows: small flows by source, coupling, prediction and η. `python tools/choosing.py`

Every flow is the demo's network of three convolutions, trained for each of SEEDS on the text that comes with Python.
Writes docs/results/choosing.md and docs/pictures/choosing_*.svg; what was measured is kept in runs/choosing, so that a
second call only draws. `OMP_NUM_THREADS=1` on a machine that others use.
"""

import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

import torch

import choosing_pictures
import hopflow as hf
from hopflow.evaluation.metrics import Samples, metric
from hopflow.evaluation.predicted_jumps import predicted_jumps
from hopflow.evaluation.transport import corrector_surplus

ROOT = Path(__file__).parents[1]
RUNS = Path("runs/choosing")
SEEDS = (0, 1, 2)
LENGTH, BATCH, STEPS = 64, 32, 500
SAMPLES, SAMPLER_STEPS = 128, 64
HELD_OUT, DRAWS = 126, 16
OT_BATCHES = (32, 128, 512)
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""OT batches for which hops are predicted; nothing is trained for that."""
GRID = (4, 8, 16, 32, 64, 128, 256)
"""Steps for which samples are bounded, to show what Plain does as they become many."""
ETAS = (0.0, 0.25, 0.5, 1.0, 2.0)

Number = tuple[float, float]
"""A value and its standard error."""


@dataclass(frozen=True)
class Case:
    """One flow to train: how its text is cut, and what differs from the default."""

    name: str
    tokens: str
    flow: Callable[[hf.data.Corpus], hf.Flow]
    ot_batch: int = BATCH


def bag_of_words(corpus, **parts):
    return hf.Flow(hf.BagOfWords.fit(corpus.counts), **parts)


def mask(corpus, **parts):
    return hf.Flow(hf.Mask.fit(corpus.counts), **parts)


SOURCES = [
    Case("mask", "char", mask),
    Case("multimask", "char", lambda corpus: hf.Flow(hf.MultiMask.fit(corpus.counts))),
    Case("uniform", "char", lambda corpus: hf.Flow(hf.Uniform.fit(corpus.counts))),
    Case("bag_of_words", "char", bag_of_words),
]
COUPLINGS = [
    Case("morse_independent", "morse", bag_of_words),
    *(
        Case(f"morse_exact_{size}", "morse", lambda c: bag_of_words(c, coupling=hf.ExactOT(hf.Hamming())), size)
        for size in OT_BATCHES
    ),
]
PLAIN = [
    Case("mask_plain", "char", lambda corpus: mask(corpus, prediction=hf.Plain())),
    Case("bag_of_words_plain", "char", lambda corpus: bag_of_words(corpus, prediction=hf.Plain())),
]
CASES = SOURCES + COUPLINGS + PLAIN


def main() -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    judge()  # first, so that no case is charged for it
    for case in CASES:
        for seed in SEEDS:
            found = measured(case, seed)
            print(
                f"{case.name}, seed {seed}: {found['seconds']:.0f} s of CPU, jumps {found['jumps'][0]:.2f}", flush=True
            )
    table = {case.name: averaged([measured(case, seed) for seed in SEEDS]) for case in CASES}
    curves = {tokens: predictions(tokens) for tokens in ("char", "morse")}
    spent = sum(measured(case, seed)["seconds"] for case in CASES for seed in SEEDS) + judge()[1]
    print(f"this call: {time.process_time() - began:.0f} s of CPU; all training and measuring: {spent:.0f} s")
    choosing_pictures.draw(ROOT / "docs" / "pictures", table, curves)
    (ROOT / "docs" / "results" / "choosing.md").write_text(page(table, curves, spent), encoding="utf-8")


# measuring


@cache
def text(tokens: str) -> hf.data.Corpus:
    return hf.data.load("docs", tokens=tokens, length=LENGTH)


def measured(case: Case, seed: int) -> dict:
    """What one training gave: from its file, or by training it now."""
    return kept(RUNS / f"{case.name}-{seed}.json", lambda: train_and_measure(case, seed))


def kept(file: Path, make: Callable[[], dict]) -> dict:
    if not file.exists():
        began = time.process_time()
        found = make()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**found, "seconds": time.process_time() - began}, indent=1) + "\n")
    return json.loads(file.read_text())


def train_and_measure(case: Case, seed: int) -> dict:
    corpus = text(case.tokens)
    flow = case.flow(corpus)
    model = trained(case, flow, corpus, seed)
    x1 = corpus.test[:HELD_OUT]
    how = {"draws": DRAWS, "seed": seed + 2}
    found = samples(model, flow, corpus, 0.0, seed)
    found["predicted"] = predicted(flow, corpus, case.ot_batch, seed)
    bounds = {}
    if flow.prediction.has_finite_bounds(flow.source):
        bounds |= {f"b{eta:g}": hf.nll_bound(model, flow, x1, eta=eta, **how) for eta in (0.0, 1.0)}
        if flow.source.full:
            bounds["bk"] = hf.kappa_bound(model, flow, x1, **how)
    if case.name.startswith(("mask", "bag_of_words")):
        bounds |= {f"bn_{n}": hf.nll_bound(model, flow, x1, steps=n, **how) for n in GRID}
    if case.name == "bag_of_words":
        bounds |= {f"b{eta:g}": hf.nll_bound(model, flow, x1, eta=eta, **how) for eta in ETAS}
        for eta in ETAS:
            found |= {f"{key}_{eta:g}": value for key, value in samples(model, flow, corpus, eta, seed).items()}
    return found | {name: (bound.ppl, bound.ppl_stderr) for name, bound in bounds.items()}


def trained(case: Case, flow: hf.Flow, corpus: hf.data.Corpus, seed: int) -> torch.nn.Module:
    folder = RUNS / f"{case.name}-{seed}"
    torch.manual_seed(seed)
    hf.train(
        hf.Convolutional(flow.vocab),
        flow,
        corpus,
        out=folder,
        steps=STEPS,
        batch=BATCH,
        ot_batch=case.ot_batch,
        lr=3e-3,
        warmup=20,
        weight_ema=0.99,
        seed=seed,
        device="cpu",
        workers=0,
        save_every=STEPS,
        log_every=100,
        eval_every=0,
        eval_rows=0,
        eval_samples=0,
    )
    return hf.from_pretrained(folder).model  # with the averaged weights


def samples(model: torch.nn.Module, flow: hf.Flow, corpus: hf.data.Corpus, eta: float, seed: int) -> dict:
    """Jumps, entropy and, letter by letter, what the judge says; of samples drawn with this η."""
    out = hf.generate(model, flow, n=SAMPLES, length=LENGTH, steps=SAMPLER_STEPS, eta=eta, seed=seed + 1)
    jumps = out.jumps.double()
    bits = metric("entropy_bits").measure(Samples(out.tokens))
    found: dict = {
        "jumps": (float(jumps.mean()), float(jumps.std()) / math.sqrt(SAMPLES)),
        "entropy": (bits.value, bits.stderr),
        "surplus": (corrector_surplus(flow, hf.Euler(SAMPLER_STEPS), eta, LENGTH), 0.0),
    }
    if corpus is text("char"):
        said = hf.generative_perplexity(out.text(corpus.tokenizer), judge()[0]).corpus
        found["gen_ppl"] = (said.value, said.stderr)
    return found


def predicted(flow: hf.Flow, corpus: hf.data.Corpus, size: int, seed: int, count: int = 16) -> Number:
    return predicted_jumps(
        flow,
        lambda index: corpus.batch(seed, index * size, size),
        length=LENGTH,
        size=size,
        count=count,
        seed=seed,
    )


def predictions(tokens: str) -> dict[int, Number]:
    """Jumps from pairs alone, by the OT batch; 1 means independent pairs."""

    def curve() -> dict:
        corpus = text(tokens)
        alone = {"1": predicted(bag_of_words(corpus), corpus, 64, seed=0, count=64)}
        flow = bag_of_words(corpus, coupling=hf.ExactOT(hf.Hamming()))
        return alone | {str(n): predicted(flow, corpus, n, seed=0, count=max(4, 2048 // n)) for n in SIZES}

    found = kept(RUNS / f"predicted-{tokens}.json", curve)
    return {int(size): tuple(number) for size, number in found.items() if size.isdigit()}


@cache
def judge() -> tuple[str, float]:
    """The folder of a causal network that knows the same text, and the seconds it took."""
    folder, corpus = RUNS / "judge", text("char")

    def train() -> dict:
        torch.manual_seed(0)
        model = hf.Causal(corpus.vocab_size, "tiny")
        rates = {"lr": 2e-3, "warmup": 20, "rate": "cosine"}
        looks = {"eval_every": 0, "eval_rows": HELD_OUT, "eval_samples": 0, "save_every": 600, "log_every": 100}
        run = hf.train(model, None, corpus, out=folder, steps=600, batch=BATCH, device="cpu", **rates, **looks)
        return {"ppl": math.exp(run.last["nll"])}

    return str(folder), kept(RUNS / "judge.json", train)["seconds"]


def averaged(found: list[dict]) -> dict[str, Number]:
    """The mean over seeds, and its standard error from their spread."""
    numbers = {key: torch.tensor([one[key][0] for one in found]).double() for key in found[0] if key != "seconds"}
    return {key: (float(v.mean()), float(v.std()) / math.sqrt(len(v))) for key, v in numbers.items()}


# the page


def page(table: dict, curves: dict, spent: float) -> str:
    judged = json.loads((RUNS / "judge.json").read_text())["ppl"]
    corpus, one = text("char"), measured(SOURCES[3], SEEDS[0])
    versions = f"Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}"
    share, jitter = one["b0"][1] / one["b0"][0], one["jumps"][1]
    return f"""# Choosing: the numbers

What the pictures of [How to choose](../choosing.md) show, measured and written by `python tools/choosing.py`:
{spent / 60:.0f} minutes of CPU time on one thread, {versions}, {date.today()}.

- Every flow is the demo's network (three convolutions, width 64): {STEPS} steps of {BATCH} sequences of {LENGTH}
  tokens, lr 3e-3, weight EMA 0.99, float32. Linear schedule; Evidence and independent pairs unless said otherwise.
- The text is `docs`, which comes with Python (sha256 {corpus.identity["source_sha256"][:12]}), letter by letter
  ({corpus.vocab_size} tokens) or in Morse code ({text("morse").vocab_size} tokens).
- Means over the seeds {", ".join(map(str, SEEDS))} ± the standard error of that mean from their spread
  (n = {len(SEEDS)}). All seeds see the same {HELD_OUT} held-out sequences ({DRAWS} draws each), so ± says how well the
  training is known, not what another text would give: a single bound has a standard error of {share:.1%} over these
  sequences.
- Samples: {SAMPLES} of {SAMPLER_STEPS} Euler steps for each seed; the mean of hops over one seed's samples has a
  standard error of about {jitter:.1f}.
- Judge: a causal `tiny` network, 600 steps on the same text, {judged:.2f} perplexity per letter on what was held out.

## Source

{tabulated(SOURCES, table, ("jumps", "predicted", "b0", "bk", "b1", "gen_ppl", "entropy"))}

## Coupling

Morse code, bag-of-words, exact OT on Hamming distances; the last number of a name is the OT batch.

{tabulated(COUPLINGS, table, ("jumps", "predicted", "b0", "bk", "b1", "entropy"))}

Jumps from pairs alone, before any training (± over OT batches):

| OT batch | {" | ".join(str(n) if n > 1 else "independent" for n in curves["char"])} |
|---|{"---|" * len(curves["char"])}
| letters | {" | ".join(shown(number) for number in curves["char"].values())} |
| Morse | {" | ".join(shown(number) for number in curves["morse"].values())} |

## Prediction

`bn`, the bound on samples of N steps at η = 0, perplexity per letter; `_plain` is `Plain`, the others `Evidence`.

{tabulated([SOURCES[0], PLAIN[0], SOURCES[3], PLAIN[1]], table, tuple(f"bn_{n}" for n in GRID))}

{tabulated([SOURCES[0], PLAIN[0], SOURCES[3], PLAIN[1]], table, ("jumps", "predicted", "gen_ppl", "entropy"))}

## η

Bag-of-words, one network for each seed; b_η bounds the samples of its own line. `predicted` is that of pairs and what
the corrector adds.

| η | hops | predicted | b_η | gen_ppl | entropy, bits |
|---|---|---|---|---|---|
{eta_rows(table["bag_of_words"])}
"""


def tabulated(cases: list[Case], table: dict, columns: tuple[str, ...]) -> str:
    names = [name.replace("bn_", "N = ").replace("jumps", "hops") for name in columns]
    head = f"| | {' | '.join(names)} |\n|---|{'---|' * len(columns)}\n"
    return head + "\n".join(
        f"| `{case.name}` | {' | '.join(shown(table[case.name].get(name)) for name in columns)} |" for case in cases
    )


def eta_rows(found: dict[str, Number]) -> str:
    def row(eta: float) -> str:
        e = f"{eta:g}"
        expected = found["predicted"][0] + found[f"surplus_{e}"][0]
        numbers = [found[f"jumps_{e}"], (expected, found["predicted"][1]), found[f"b{e}"]]
        numbers += [found[f"gen_ppl_{e}"], found[f"entropy_{e}"]]
        return f"| {e} | {' | '.join(map(shown, numbers))} |"

    return "\n".join(map(row, ETAS))


def shown(number: Number | None) -> str:
    """With as many digits as the error has two."""
    if number is None:
        return "–"
    value, error = number
    digits = 2 if error <= 0 else min(4, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f} ± {error:.{digits}f}" if error > 0 else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
