"""Transport: how far tokens travel, counted along generated paths and predicted from the coupling alone.

Theorem 3.1 [theorem1] says that the two agree, for a perfect network at η = 0 in continuous time: what the paths of a
flow pay is what its pairs pay. Hence the protocol of App. C.6 [C5]: the *dynamic* cost, summed over every change of a
token while sequences are generated, beside the *Kantorovich* cost, the mean over pairs that the coupling makes of
source and data rows. Rows of a batch are paired together and depend on each other: there a batch is the unit of the
error, and along paths a sequence.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..costs import Cost, Embedding, Hamming, SequenceCost, SquaredEmbedding
from ..couplings import Independent
from ..flow import Flow
from ..generation import HOLE, Generation
from ..network import Network
from ..samplers import Euler, Sampler
from ..sampling import How, generate
from ..training import checkpoint
from ..training.problems import Draw, Problem
from ..velocities import Eta, eta_at, step_sizes
from .measured import Measured

STEPS = 1024
"""Euler steps of a transport cost: those of Section 5.1 [toy_datasets]; App. C.6 [C5] does not say."""
ROWS = 64
"""Rows of a batch where they meet as they come, so that it does not matter."""


@dataclass(frozen=True)
class Jumps:
    """How often tokens changed while sequences were drawn, and how often the coupling alone says they should.

    `predicted` is E d_H(x0, x1) over the coupling's pairs, what a perfect network makes at η = 0 in continuous time
    (N Euler steps: O(1/N) more). `surplus` is what the corrector adds to that for η > 0 and independent pairs, see
    `corrector_surplus`; it is a formula, without an error.
    """

    per_sequence: Measured
    per_position: Measured
    """Of the positions that were free to move."""
    calls: Measured
    redraws: Measured
    sampler: str
    steps: int | None
    """None in continuous time."""
    eta: Eta
    dtype: str
    """What the network computed in (`Generation.precision`)."""
    predicted: Measured | None = None
    surplus: float | None = None

    @classmethod
    def of(cls, drawn: Generation) -> "Jumps":
        """What is counted, of sequences that are drawn already; prompts do not count as positions."""
        free = ((drawn.tokens != HOLE) & ~drawn.fixed).sum(1)
        return cls(
            Measured.mean("jumps", drawn.jumps, "per sequence"),
            Measured.ratio("jumps_per_position", drawn.jumps, free, "per position"),
            Measured.mean("calls", drawn.calls, "network calls per sequence"),
            Measured.mean("redraws", drawn.redraws.sum(1), "per sequence"),
            drawn.sampler.label,
            drawn.steps,
            drawn.eta,
            drawn.precision,
        )

    @property
    def excess(self) -> Measured | None:
        """Jumps made less jumps predicted, corrector included; 0 for a perfect network in continuous time."""
        if self.predicted is None or self.surplus is None:
            return None
        apart = _minus("excess_jumps", self.per_sequence, self.predicted)
        return replace(apart, value=apart.value - self.surplus)

    def __iter__(self) -> Iterator[Measured]:
        yield from (self.per_sequence, self.per_position, self.calls, self.redraws)
        yield from (found for found in (self.predicted, self.excess) if found is not None)

    def __str__(self) -> str:
        eta = "η(t)" if callable(self.eta) else f"{self.eta:g}"
        surplus = f"; the corrector should add {self.surplus:.4g}" if self.surplus else ""
        return "\n".join([*map(str, self), f"{self.sampler}, eta {eta}{surplus}; network in {self.dtype}"])


@dataclass(frozen=True)
class TransportCost:
    """What sequences pay under one dissimilarity: along generated paths, as pairs, and as independent pairs."""

    cost: Cost
    dynamic: Measured
    """Σ s(from, to) over all changes of a generated sequence. Eq. (11) [discrete_dynamic_formulation]"""
    kantorovich: Measured
    """E Σ_i s(x0^i, x1^i) over the coupling's pairs."""
    independent: Measured
    """The same over all pairs of those batches."""
    gain: Measured
    """1 - kantorovich/independent, the share that the coupling saves."""

    @property
    def excess(self) -> Measured:
        """Dynamic less Kantorovich: what generation paid beyond what the coupling alone predicts."""
        return _minus(f"excess_cost_{_word(self.cost)}", self.dynamic, self.kantorovich)

    def __iter__(self) -> Iterator[Measured]:
        yield from (self.dynamic, self.kantorovich, self.independent, self.gain, self.excess)


@dataclass(frozen=True)
class TransportCosts:
    """Costs of one flow under several dissimilarities, with one set of samples, of pairs, and one embedding table."""

    by_cost: tuple[TransportCost, ...]
    jumps: Jumps
    """Of the same samples and pairs."""
    coupling: str
    ot_batch: int
    batches: int
    table: str
    """Whose embeddings were read; with them pairs were made as well as priced."""

    def __getitem__(self, kind: type[Cost]) -> TransportCost:
        """hf.transport_costs(…)[hf.Hamming]"""
        for found in self.by_cost:
            if isinstance(found.cost, kind):
                return found
        raise KeyError(kind.__name__)

    def __iter__(self) -> Iterator[Measured]:
        for found in self.by_cost:
            yield from found

    def __str__(self) -> str:
        pairs = f"{self.coupling}, {self.batches} batches of {self.ot_batch}; embeddings: {self.table}"
        return "\n".join([*map(str, self), pairs, str(self.jumps)])


def jumps(
    model: Network,
    flow: Flow,
    *,
    n: int,
    length: int,
    x1: Int[Tensor, "m L"] | None = None,
    ot_batch: int | None = None,
    embedding: Float[Tensor, "V D"] | None = None,
    **how: Unpack[How],
) -> Jumps:
    """Draw n sequences as `generate` does, and count their jumps; with data rows x1, predict them as well.

    `ot_batch` is that of the training, since a coupling saves more the more rows it may choose from. `embedding` is
    for couplings that read it; the network's own unless said.
    """
    pairs = None
    if x1 is not None:
        if x1.shape[1] != length:
            raise ValueError(f"the data rows have {x1.shape[1]} tokens, and length={length} are to be drawn")
        pairs = _Batches.of(model, flow, x1, ot_batch, how.get("seed", 0), _table(model, embedding, None)[0])
    drawn = generate(model, flow, n=n, length=length, **how)
    found = replace(Jumps.of(drawn), surplus=corrector_surplus(flow, drawn.sampler, drawn.eta, length))
    return found if pairs is None else replace(found, predicted=_predicted(list(pairs)))


def transport_costs(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "m L"],
    *,
    costs: Sequence[SequenceCost] | None = None,
    n: int = 256,
    ot_batch: int | None = None,
    embedding: Float[Tensor, "V D"] | None = None,
    run: str | os.PathLike[str] | None = None,
    **how: Unpack[How],
) -> TransportCosts:
    """Dynamic and Kantorovich cost: n sequences drawn with 1,024 steps, and every full `ot_batch` of data rows paired.

    `costs` are Hamming, and where there is an embedding table squared and plain embedding distance. The table is
    `embedding`, or the average that the coupling of the training folder `run` has read (`ot_ema`), or the network's
    own. The paper takes 3,200 sequences, and 1,200 batches of 512.
    """
    table, whose = _table(model, embedding, run)
    by_token = _by_token(costs or [Hamming(), *([] if table is None else [SquaredEmbedding(), Embedding()])], table)
    if "steps" not in how and "sampler" not in how:
        how["steps"] = STEPS
    pairs = _Batches.of(model, flow, x1, ot_batch, how.get("seed", 0), table)
    how["trajectory"] = True
    drawn = generate(model, flow, n=n, length=x1.shape[1], **how)
    paired = list(pairs)
    counted = replace(
        Jumps.of(drawn),
        predicted=_predicted(paired),
        surplus=corrector_surplus(flow, drawn.sampler, drawn.eta, x1.shape[1]),
    )
    by_cost = tuple(_cost(cost, drawn, paired, table) for cost in by_token)
    return TransportCosts(by_cost, counted, str(flow.coupling), pairs.size, len(paired), whose)


def corrector_surplus(flow: Flow, sampler: Sampler, eta: Eta, length: int) -> float | None:
    """The jumps that the corrector adds: Σ_i (1 - Σp0²)·Σ_n s_n·(1 - k_n); None for samplers other than Euler.

    For the linear schedule and η ≤ 1 the sum is η·(H_N - 1).  theory.md §2. A perfect network for independent pairs
    has it exactly where positions of the data are independent, such as data like the source; every network has it
    where masks stay (a disjoint source under Carry or Evidence). Else it is O(1/N) off, and of a network that was
    trained on other pairs, or is not perfect, nothing is known.
    """
    if not callable(eta) and eta == 0:
        return 0.0
    if not isinstance(sampler, Euler):
        return None
    t = sampler.grid.times(sampler.steps)
    rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
    _, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
    proposed = (s * rest[:-1]).sum(0).expand(length).sum()  # and accepted: the chance that a token is noise is 1 - k
    return float(proposed) * (1 - float(flow.source.token_probs().double().square().sum()))


@dataclass(frozen=True, eq=False)
class _Batches:
    """Source and data rows as the flow's coupling pairs them, batch by batch, by the draws that training makes."""

    flow: Flow
    x1: Int[Tensor, "m L"]
    size: int
    seed: int
    table: Float[Tensor, "V D"] | None
    model: Network

    @classmethod
    def of(
        cls, model: Network, flow: Flow, x1: Int[Tensor, "m L"], size: int | None, seed: int, table: Tensor | None
    ) -> "_Batches":
        flow.vocab.check_data(x1)
        reads = flow.coupling.reads
        if "embedding" in reads and table is None:
            raise ValueError(f"{flow.coupling} reads embeddings, and the network has no `table`: pass embedding=…")
        if size is None:
            if not isinstance(flow.coupling, Independent):
                raise ValueError(
                    f"what {type(flow.coupling).__name__} saves depends on how many rows it may choose from: "
                    f"pass ot_batch=…, that of the training"
                )
            size = max(1, min(ROWS, len(x1) // 2))
        if size < 1 or len(x1) < 2 * size:
            raise ValueError(
                f"an error needs at least two batches of ot_batch={size} data rows; got {len(x1)} rows of data"
            )
        return cls(flow, x1.cpu(), size, seed, table if "embedding" in reads else None, model)

    def __iter__(self) -> Iterator[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
        network = self.model if "network" in self.flow.coupling.reads else None
        for index in range(len(self.x1) // self.size):  # a smaller last batch would be another coupling
            rows = self.x1[index * self.size : (index + 1) * self.size]
            draw = Draw(self.seed, index, self.size, self.size)
            yield Problem(draw, rows, None, self.table, network).solve(self.flow).x0, rows


def _predicted(pairs: Sequence[tuple[Tensor, Tensor]]) -> Measured:
    distances = torch.stack([(x0 != x1).sum(1).double().mean() for x0, x1 in pairs])
    return Measured.mean("predicted_jumps", distances, "per sequence; n counts batches")


def _cost(cost: Cost, drawn: Generation, pairs: Sequence[tuple[Tensor, Tensor]], table: Tensor | None) -> TransportCost:
    name, there = _word(cost), None if table is None else table.to(drawn.tokens.device)
    paid = torch.tensor([float(cost.paired(x0, x1, table).double().mean()) for x0, x1 in pairs], dtype=torch.float64)
    every = torch.tensor([cost.split(x0, x1, table).mean() for x0, x1 in pairs], dtype=torch.float64)
    if not (paid.isfinite().all() and every.isfinite().all()):
        raise ValueError(f"the {name} cost of a pair is NaN or infinite: look at the embeddings or the cost function")
    unit = f"{name} per sequence"
    return TransportCost(
        cost,
        Measured.mean(f"dynamic_cost_{name}", drawn.path_cost(cost, there), unit),
        Measured.mean(f"kantorovich_cost_{name}", paid, f"{unit}; n counts batches"),
        Measured.mean(f"independent_cost_{name}", every, f"{unit}; n counts batches"),
        Measured.ratio(f"gain_{name}", every - paid, every, "of the independent cost; n counts batches"),
    )


def _minus(quantity: str, one: Measured, other: Measured) -> Measured:
    """The difference of two numbers from independent draws."""
    error = math.hypot(one.stderr, other.stderr)
    return Measured(quantity, one.value - other.value, error, one.n, one.unit)


def _table(model: Network, embedding: Tensor | None, run: str | os.PathLike[str] | None) -> tuple[Tensor | None, str]:
    """The embeddings on the CPU, and whose they are."""
    if embedding is not None and run is not None:
        raise ValueError("pass an embedding table, or the run whose table it is, not both")
    if embedding is not None:
        return embedding.detach().cpu(), "as given"
    if run is not None:
        saved = checkpoint.latest(Path(run) / "checkpoints")
        if saved is None:
            raise ValueError(f"{run} has no checkpoint: `hopflow train … out={run}` makes one")
        if "ot_ema" in saved.groups:
            return saved.groups["ot_ema"]["value"], f"the average that the coupling read (ot_ema), step {saved.step}"
    own = getattr(model, "table", None)
    return (own.detach().cpu(), "the network's own") if isinstance(own, Tensor) else (None, "none")


def _by_token(costs: Sequence[SequenceCost], table: Tensor | None) -> list[Cost]:
    """Costs that a path pays token by token, and that can be had."""
    found: list[Cost] = []
    for cost in costs:
        if not isinstance(cost, Cost):
            raise ValueError(
                f"{type(cost).__name__} is no dissimilarity of tokens: a path that changes one token at a time has no "
                f"such cost, and Theorem 3.1 [theorem1] is silent about it"
            )
        if "embedding" in cost.reads and table is None:
            raise ValueError(
                f"{type(cost).__name__} reads embeddings, and the network has no `table`: pass embedding=…"
            )
        found.append(cost)
    return found


def _word(cost: Cost) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(cost).__name__).lower()
