"""Tightness of the bounds: the three analyses of App. C.5 [C4], computed exactly by the oracle."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .. import exact
from ..flow import Flow
from ..models.mlp import MLP
from ..objectives import Bound, CrossEntropy
from ..predictions import Carry
from ..runs.rng import Seeded
from ..sources import Mask, Uniform
from ..system.progress import ProgressCallback
from ..vocab import Vocab

A, B, M = 0, 1, 2
DATA = (0.15, 0.5, 0.05, 0.3)  # AA, AB, BA, BB

BIGRAM = {  # (V, L): data entropy, cross-entropy and bound as printed in Table 13 [tab:bound_tightness]
    (2, 2): (0.471, 0.472, 0.474),
    (4, 4): (2.204, 2.287, 2.302),
    (5, 5): (3.208, 3.432, 3.503),
}


@dataclass(frozen=True)
class TightnessRow:
    """One number: as printed in the paper, and computed exactly."""

    analysis: str
    quantity: str
    paper: float | list[float] | None
    exact: float | list[float]


ANALYSES = ("first", "second", "third")


def _silent(line: str) -> None:
    """Report no progress."""


def run(seed: int = 0, analyses: Sequence[str] = ANALYSES, progress: ProgressCallback = _silent) -> list[TightnessRow]:
    """Run these analyses, in the order of the paper."""
    rows: list[TightnessRow] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny, so more threads would be slower
    try:
        if "first" in analyses:
            progress("first analysis: an imperfect network, written by hand")
            rows += first()
        if "second" in analyses:
            progress("second analysis: a network that ignores its state")
            rows += second()
        if "third" in analyses:
            for (v, length), paper in BIGRAM.items():
                rows += third(v, length, paper, seed, progress=progress)
    finally:
        torch.set_num_threads(threads)
    return rows


def first() -> list[TightnessRow]:
    """Two tokens and a mask, L = 2, and an imperfect network that is written by hand."""
    space = exact.Space(Vocab(2, 1), 2)
    network = exact.Table.of(
        space,
        [
            ((M, M), 0, (0.9, 0.1)),
            ((M, M), 1, (0.1, 0.9)),
            ((A, M), 1, (0.2, 0.8)),
            ((B, M), 1, (0.3, 0.7)),
            ((M, A), 0, (0.8, 0.2)),
            ((M, B), 0, (0.5, 0.5)),
        ],
    )
    oracle = _masked(space, network)
    bound = exact.bound(oracle)
    return [
        TightnessRow("first", "law", [0.12953, 0.58568, 0.02529, 0.2595], oracle.law().tolist()),
        TightnessRow("first", "cross_entropy", 1.1626, oracle.cross_entropy()),
        TightnessRow("first", "bound", 1.2998, oracle.mean(bound)),
        TightnessRow("first", "mean_nll", 1.90, float(oracle.nll().mean())),
        TightnessRow("first", "mean_bound", 2.02, float(bound.mean())),
    ]


def second(a: float = 0.7, b: float = 0.4) -> list[TightnessRow]:
    """A network that ignores its state: both numbers have the closed form of the paper, here for one choice of a, b."""
    space = exact.Space(Vocab(2, 1), 2)
    law = torch.tensor([[a, 1 - a], [b, 1 - b]], dtype=torch.float64)
    oracle = _masked(space, exact.Table(space, law.expand(len(space.states), -1, -1)))
    closed = -sum(
        q * math.log(float(law[0, x] * law[1, y])) for q, (x, y) in zip(DATA, space.data.tolist(), strict=True)
    )
    return [
        TightnessRow("second", "cross_entropy", closed, oracle.cross_entropy()),
        TightnessRow("second", "bound", closed, oracle.mean(exact.bound(oracle))),
    ]


def third(
    v: int,
    length: int,
    paper: tuple[float, float, float],
    seed: int,
    steps: int = 2000,
    progress: ProgressCallback = _silent,
) -> list[TightnessRow]:
    """A network with three hidden units on bigram data: with masks as in the paper, and from a uniform source."""
    name = f"V{v}L{length}"
    q = bigram(v, length, paper[0], seed)
    masked = Flow(Mask(Vocab(v, 1)), prediction=Carry(), objective=Bound(0.0))
    progress(f"third analysis, {name}: training a small network from masks")
    network = train(masked, q, length, seed, steps)
    table = exact.Table.tabulate(exact.Space(masked.vocab, length), network)  # as the paper does
    oracle = exact.Oracle(masked, q, length, table)
    progress(f"third analysis, {name}: its sample distribution and its bound")
    cross, bound = oracle.cross_entropy(), oracle.mean(exact.bound(oracle))
    rows = [
        TightnessRow("third", f"{name} data_entropy", paper[0], oracle.entropy),
        TightnessRow("third", f"{name} cross_entropy eta=0", paper[1], cross),
        TightnessRow("third", f"{name} cross_entropy eta=1", None, oracle.cross_entropy(eta=1)),
        TightnessRow("third", f"{name} bound", paper[2], bound),
        TightnessRow("third", f"{name} relative_gap", paper[2] / paper[1] - 1, bound / cross - 1),
    ]
    progress(f"third analysis, {name}: training a small network from a uniform source")
    uniform = Flow(Uniform(Vocab(v)), objective=CrossEntropy())
    oracle = exact.Oracle(uniform, q, length, train(uniform, q, length, seed, steps))
    for eta in (0, 1):
        progress(f"third analysis, {name}: its sample distribution at eta={eta}")
        rows.append(
            TightnessRow("third", f"{name} uniform cross_entropy eta={eta}", None, oracle.cross_entropy(eta=eta))
        )
    progress(f"third analysis, {name}: its bounds")
    bounds = {"b0": exact.bound(oracle), "bk": exact.kappa_bound(oracle), "b1": exact.bound(oracle, eta=1)}
    return rows + [
        TightnessRow("third", f"{name} uniform {key}", None, oracle.mean(value)) for key, value in bounds.items()
    ]


def bigram(v: int, length: int, entropy: float, seed: int) -> Float[Tensor, " D"]:
    """Probabilities of all sequences under a random bigram model, sharpened until they have this entropy.

    The paper does not print its bigram model.
    """
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(v, generator=generator, dtype=torch.float64)
    then = torch.randn(v, v, generator=generator, dtype=torch.float64)
    x = exact.Space(Vocab(v), length).data

    def law(sharpness: float) -> Tensor:
        start, step = (sharpness * first).log_softmax(0), (sharpness * then).log_softmax(1)
        return (start[x[:, 0]] + step[x[:, :-1], x[:, 1:]].sum(1)).exp()

    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(torch.special.entr(law(middle)).sum()) > entropy else (low, middle)
    return law(low)


def train(flow: Flow, q: Float[Tensor, " D"], length: int, seed: int, steps: int, batch: int = 512) -> MLP:
    """A network with three hidden units, trained on the objective of the flow."""
    generator = torch.Generator().manual_seed(seed)
    data = exact.Space(Vocab(flow.vocab.data), length).data
    with Seeded(seed):
        network = MLP(flow.vocab, length, hidden=3, time=not flow.source.disjoint)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    strata = torch.arange(batch) / batch
    for _ in range(steps):
        x1 = data[torch.multinomial(q, batch, replacement=True, generator=generator)]
        x0 = flow.source.sample(batch, length, generator=generator)
        t = strata + torch.rand(batch, generator=generator) / batch
        sample = flow.path.sample(x0, x1, t.clamp(max=1 - 1e-6), generator)
        optimizer.zero_grad()
        flow.loss(network(sample.xt, sample.t), sample).mean().backward()
        optimizer.step()
        decay.step()
    return network.double()


def _masked(space: exact.Space, network: exact.Table) -> exact.Oracle:
    flow = Flow(Mask(space.vocab), prediction=Carry())
    return exact.Oracle(flow, torch.tensor(DATA, dtype=torch.float64), space.length, network)
