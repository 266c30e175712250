"""Likelihood: every bound of a flow on a test set, each with the sampler it speaks of; of a causal network the value.

b0, b1 and bk speak of sampling in continuous time, bn of a number of steps; each of the η in its row and of temperature
1. `coupled` is what the paper prints for models trained with optimal transport, and bounds nothing.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds import coupled_bound, coupled_number, kappa_bound, nll_bound
from ..costs import Hamming
from ..couplings import Coupling, ExactOT, Independent, SinkhornOT
from ..data.pulse import Progress
from ..estimate import Estimate
from ..flow import Flow
from ..models.causal import Causal
from ..network import home, resting
from ..training.streams import stream_seed
from ..training.tasks import embedding_table
from .measured import Measured
from .rows import Row
from .sets import TextSet
from .stopping import Stopped, Until, measure
from .subject import Subject

CONTINUOUS = "continuous time"
OT_N = 64
"""Source rows that a test-time coupling may choose from, unless said."""


@dataclass(frozen=True, eq=False)
class Number:
    """A bound by name: how to estimate it for sequences with a seed, and what is recorded with it."""

    quantity: str
    eta: float | None
    estimate: Callable[[Int[Tensor, "m L"], int], Estimate]
    facts: dict[str, Any]
    unit: int = 1
    """Sequences that belong together."""


@dataclass(frozen=True)
class Likelihood:
    """Which bounds, and how long for: `until.seconds` are shared by the numbers of one set."""

    eta: tuple[float, ...] = (0.0, 1.0)
    steps: tuple[int, ...] = (32,)
    coupling: Coupling | str = "own"
    """For `coupled`: a coupling, "own" for the training's if that was optimal transport, exact, sinkhorn or none."""
    ot_n: int | None = None
    eps: float | None = None
    draws: int = 8
    batch: int = 64
    seed: int = 0
    until: Until = Until()

    def __post_init__(self) -> None:
        if isinstance(self.coupling, str) and self.coupling not in ("own", "exact", "sinkhorn", "none"):
            raise ValueError(f"coupling is own, exact, sinkhorn or none; got {self.coupling!r}")
        if self.ot_n is not None and self.ot_n < 1:
            raise ValueError(f"ot_n counts the rows that are coupled at once, at least 1; got {self.ot_n}")

    def rows(self, subject: Subject, texts: TextSet, say: Progress) -> Iterator[Row]:
        """Every number on one set, in random order of its sequences."""
        texts = texts.shuffled(stream_seed(self.seed, "eval order") % 2**63)
        numbers = self.numbers(subject, len(texts.x1))
        x1, left = texts.x1.to(home(subject.model)), self.until.seconds
        for place, number in enumerate(numbers):
            until = replace(self.until, seconds=left / (len(numbers) - place))
            watch = _Watch(say, f"{number.quantity} on {texts.name}", len(x1))
            found = measure(number.estimate, x1, until, unit=number.unit, told=watch)
            left = max(0.0, left - watch.seconds)
            yield self._row(subject, texts, number, found)

    def numbers(self, subject: Subject, rows: int) -> list[Number]:
        """What can be said of this subject, given so many sequences."""
        model, flow = subject.model, subject.flow
        if flow is None:
            assert isinstance(model, Causal)
            return [Number("nll", None, _exact(model, self.batch), {"sampler": "left to right", "exact": True})]
        how: dict[str, Any] = {"draws": self.draws, "batch": self.batch}
        numbers = []
        if flow.prediction.settles(flow.source):
            for eta in self.eta:
                numbers.append(self._number(nll_bound, model, flow, {"eta": eta, **how}, eta=eta))
        for steps in self.steps:
            for eta in self.eta:
                keys = {"eta": eta, "steps": steps, **how}
                numbers.append(self._number(nll_bound, model, flow, keys, eta=eta, steps=steps))
        if flow.prediction.settles(flow.source):
            if flow.source.full and 0.0 in self.eta:
                numbers.append(self._number(kappa_bound, model, flow, how, eta=0.0))
            numbers += self._coupled(subject, flow, rows, how)
        return numbers

    def _coupled(self, subject: Subject, flow: Flow, rows: int, how: dict[str, Any]) -> list[Number]:
        coupling = self.test_coupling(flow)
        if coupling is None:
            return []
        rows = min(rows, self.until.rows or rows)
        n = self.ot_n or min(OT_N, subject.recipe.get("ot_batch") or subject.recipe.get("batch") or OT_N, rows // 2)
        if not 1 <= n <= rows:
            raise ValueError(f"ot_n={n} rows cannot be coupled: there are {rows} sequences; pass a smaller ot_n=")
        table = embedding_table(subject.model) if isinstance(subject.model, torch.nn.Module) else None
        keys = {**how, "coupling": coupling, "minibatch": n, "embedding": table}
        facts: dict[str, Any] = {"ot_n": n, "cost": type(getattr(coupling, "cost", None)).__name__}
        facts |= {"eps": coupling.eps} if isinstance(coupling, SinkhornOT) else {}
        return [
            self._number(bound, subject.model, flow, keys, eta=0.0, unit=n, **facts)
            for bound in (coupled_number, coupled_bound)
        ]

    def test_coupling(self, flow: Flow) -> Coupling | None:
        """Which x0 meets which x1 in `coupled`; None where nothing is coupled."""
        if isinstance(self.coupling, Coupling):
            return self.coupling
        own = flow.coupling
        cost = getattr(own, "cost", Hamming())
        if self.coupling == "own":
            found: Coupling | None = None if isinstance(own, Independent) else own
        elif self.coupling == "none":
            found = None
        else:
            found = ExactOT(cost) if self.coupling == "exact" else SinkhornOT(cost)
        if self.eps is None:
            return found
        if not isinstance(found, SinkhornOT):
            raise ValueError("eps belongs to coupling=sinkhorn: pass that too, or leave eps out")
        return replace(found, eps=self.eps)

    def _number(
        self,
        bound: Callable[..., Estimate],
        model: object,
        flow: Flow,
        keys: dict[str, Any],
        *,
        eta: float,
        steps: int | None = None,
        unit: int = 1,
        **facts: Any,
    ) -> Number:
        names = {kappa_bound: "bk", coupled_number: "coupled", coupled_bound: "coupled_info"}
        name = names.get(bound) or ("bn" if steps else f"b{eta:g}")

        def estimate(x1: Int[Tensor, "m L"], turn: int) -> Estimate:
            return bound(model, flow, x1, seed=stream_seed(self.seed, name, turn) % 2**63, **keys)

        sampler = f"η = {eta:g}, {CONTINUOUS if steps is None else f'{steps} steps'}"
        return Number(name, eta, estimate, {"sampler": sampler, "steps": steps, **facts}, unit)

    def _row(self, subject: Subject, texts: TextSet, number: Number, found: Stopped) -> Row:
        estimate, facts = found.estimate, {**texts.facts, **number.facts}
        if texts.characters is not None:
            characters = float(texts.characters[: found.rows].mean())
            facts |= {"characters": characters}
            if characters:
                facts |= {
                    "bits_per_char": estimate.nats / math.log(2) / characters,
                    "bits_per_char_stderr": estimate.stderr / math.log(2) / characters,
                }
        if number.unit > 1 or "ot_n" in facts:
            facts["coupling"] = estimate.coupling
        return subject.row(
            texts.name,
            Measured(number.quantity, estimate.ppl, estimate.ppl_stderr, estimate.n, "ppl"),
            eta=number.eta,
            is_bound=estimate.is_bound,
            dtype=estimate.dtype,
            nats=estimate.nats,
            nats_stderr=estimate.stderr,
            nats_draw_stderr=estimate.draw_stderr,
            nats_sequence_stderr=estimate.sequence_stderr,
            length=estimate.length,
            calls=estimate.calls,
            draws=self.draws,
            sequences=found.rows,
            of=len(texts.x1),
            stopped=found.why,
            seed=self.seed,
            **facts,
        )


def refusals(flow: Flow | None) -> list[str]:
    """Why some numbers are missing, a line each."""
    if flow is None:
        return []
    prediction, source = type(flow.prediction).__name__, type(flow.source).__name__
    if not flow.prediction.settles(flow.source):
        return [
            f"no bounds in continuous time (b0, b1, bk, coupled): under {prediction} with {source} they are infinite, "
            f"since the network goes on redrawing near t = 1; bn is of the steps that are drawn"
        ]
    if not flow.source.full and not flow.source.disjoint:
        return [f"no bk: it needs a source whose support is exactly the data tokens, and {source}'s is not"]
    return []


def _exact(model: Causal, batch: int) -> Callable[[Int[Tensor, "m L"], int], Estimate]:
    """-log p of a causal network: nothing is drawn, and nothing is bounded."""

    def estimate(x1: Int[Tensor, "m L"], turn: int) -> Estimate:
        with resting(model):
            nats = torch.cat([model.nll(rows) for rows in x1.split(batch)]).cpu().double()
        n = len(nats)
        return Estimate(
            quantity="nll",
            nats=float(nats.mean()),
            stderr=float(nats.std()) / math.sqrt(n) if n > 1 else 0.0,
            draw_stderr=0.0,
            n=n,
            length=x1.shape[1],
            eta=0.0,
            is_bound=False,
            calls=1,
            dtype=str(model.start.dtype).removeprefix("torch."),
            freedom=n - 1,
        )

    return estimate


class _Watch:
    """Says how far a number has come, and knows how long that took."""

    def __init__(self, say: Progress, what: str, rows: int) -> None:
        self._say, self._what, self._rows, self._start = say, what, rows, time.monotonic()
        say(f"{what}: {rows:,} sequences")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def __call__(self, estimate: Estimate, rows: int) -> None:
        self._say(
            f"{self._what}: {rows:,} of {self._rows:,} sequences, ppl {estimate.ppl:.4g} ± {estimate.ppl_stderr:.2g} "
            f"({estimate.stderr / estimate.length:.1%}), {self.seconds:.0f} s"
        )
