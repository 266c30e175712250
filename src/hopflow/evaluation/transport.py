"""Transport: hops and costs along generated paths, and their prediction from the pairs of the coupling.

Theorem 3.1 [theorem1]: both are equal for a perfect network at η = 0 in continuous time. Hence the protocol of App. C.6
[C5]: compare the *dynamic* cost, summed over every change of a token while sequences are generated, with the
*Kantorovich* cost, the mean over the pairs of source and data rows that the coupling returns. Rows of a batch are
coupled together and depend on each other: errors of pairs are over batches, errors of paths over sequences.
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
from ..flow import Flow
from ..network.network import Network
from ..runs import checkpoint
from ..runs.training_pairs import TrainingPairs
from ..sampling.generate import SamplingOptions, generate
from ..sampling.generation import HOLE, Generation
from ..sampling.samplers import Sampler
from ..velocities import Eta, eta_at, step_sizes
from .measurement import Measurement

STEPS = 1024
"""Default Euler steps of a transport cost, as in Section 5.1 [toy_datasets]; App. C.6 [C5] does not state them."""
ROWS = 64
"""Rows of a batch where pairs are independent, so that its size does not matter."""


@dataclass(frozen=True)
class Jumps:
    """How often tokens changed while sequences were drawn, and how often the coupling predicts that they change.

    `predicted` is E d_H(x0, x1) over the pairs of the coupling: the hops of a perfect network at η = 0 in continuous
    time (with N Euler steps O(1/N) more). `surplus` is what the corrector adds to it for η > 0 and independent pairs
    (see `corrector_surplus`); it is a formula without error.
    """

    per_sequence: Measurement
    per_position: Measurement
    """Jumps per position, without the positions of a prompt."""
    calls: Measurement
    redraws: Measurement
    sampler: str
    steps: int | None
    """None in continuous time."""
    eta: Eta
    dtype: str
    """The dtype that the network computed in (`Generation.precision`)."""
    predicted: Measurement | None = None
    surplus: float | None = None

    @classmethod
    def of(cls, drawn: Generation) -> "Jumps":
        """The counts of sequences that are already drawn; positions of a prompt do not count."""
        free = ((drawn.tokens != HOLE) & ~drawn.fixed).sum(1)
        return cls(
            Measurement.mean("jumps", drawn.jumps, "per sequence"),
            Measurement.ratio("jumps_per_position", drawn.jumps, free, "per position"),
            Measurement.mean("calls", drawn.calls, "network calls per sequence"),
            Measurement.mean("redraws", drawn.redraws.sum(1), "per sequence"),
            drawn.sampler.label,
            drawn.steps,
            drawn.eta,
            drawn.precision,
        )

    @property
    def excess(self) -> Measurement | None:
        """Jumps minus predicted jumps, corrector included; 0 for a perfect network in continuous time."""
        if self.predicted is None or self.surplus is None:
            return None
        apart = _minus("excess_jumps", self.per_sequence, self.predicted)
        return replace(apart, value=apart.value - self.surplus)

    def __iter__(self) -> Iterator[Measurement]:
        yield from (self.per_sequence, self.per_position, self.calls, self.redraws)
        yield from (found for found in (self.predicted, self.excess) if found is not None)

    def __str__(self) -> str:
        eta = "η(t)" if callable(self.eta) else f"{self.eta:g}"
        surplus = f"; the corrector should add {self.surplus:.4g}" if self.surplus else ""
        return "\n".join([*map(str, self), f"{self.sampler}, eta {eta}{surplus}; network in {self.dtype}"])


@dataclass(frozen=True)
class TransportCost:
    """Cost per sequence under one dissimilarity: of generated paths, of coupled pairs, and of independent pairs."""

    cost: Cost
    dynamic: Measurement
    """Σ s(from, to) over all changes of a generated sequence. Eq. (11) [discrete_dynamic_formulation]"""
    kantorovich: Measurement
    """E Σ_i s(x0^i, x1^i) over the pairs of the coupling."""
    independent: Measurement
    """The same over all pairs of each batch."""
    gain: Measurement
    """1 - kantorovich/independent: the share of the cost that the coupling saves."""

    @property
    def excess(self) -> Measurement:
        """Dynamic minus Kantorovich cost: what generation costs beyond the prediction."""
        return _minus(f"excess_cost_{_name(self.cost)}", self.dynamic, self.kantorovich)

    def __iter__(self) -> Iterator[Measurement]:
        yield from (self.dynamic, self.kantorovich, self.independent, self.gain, self.excess)


@dataclass(frozen=True)
class TransportCosts:
    """Costs of one flow under several dissimilarities, for one set of samples, one set of pairs and one table."""

    by_cost: tuple[TransportCost, ...]
    jumps: Jumps
    """Jumps of the same samples and pairs."""
    coupling: str
    ot_batch: int
    batches: int
    table: str
    """Where the embeddings come from that the coupling and the costs read."""

    def __getitem__(self, kind: type[Cost]) -> TransportCost:
        """hf.transport_costs(…)[hf.Hamming]"""
        for found in self.by_cost:
            if isinstance(found.cost, kind):
                return found
        raise KeyError(kind.__name__)

    def __iter__(self) -> Iterator[Measurement]:
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
    group: Int[Tensor, " m"] | None = None,
    **how: Unpack[SamplingOptions],
) -> Jumps:
    """Draw n sequences with `generate` and count their jumps; with data rows x1, predict them as well.

    `ot_batch` should be that of the training: a coupling saves more with more rows to choose from. `embedding` is for
    couplings that read it; by default the table of the network. `group` has the label of each data row, if the rows
    are paired within their labels.
    """
    pairs = None
    if x1 is not None:
        if x1.shape[1] != length:
            raise ValueError(f"x1 has rows of {x1.shape[1]} tokens, but length={length}: they must be equal")
        pairs = _Batches.of(model, flow, x1, ot_batch, how.get("seed", 0), _table(model, embedding, None)[0], group)
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
    group: Int[Tensor, " m"] | None = None,
    **how: Unpack[SamplingOptions],
) -> TransportCosts:
    """Dynamic cost of n generated sequences (1,024 steps), and Kantorovich cost of every full `ot_batch` of data rows.

    `costs` defaults to Hamming and, where there is an embedding table, the squared and the plain embedding distance.
    The table is `embedding`, or the averaged one that the coupling read in the training folder `run` (`ot_ema`), or
    the table of the network. `group` has the label of each data row, if the rows are paired within their labels. The
    paper takes 3,200 sequences, and 1,200 batches of 512.
    """
    table, whose = _table(model, embedding, run)
    by_token = _by_token(costs or [Hamming(), *([] if table is None else [SquaredEmbedding(), Embedding()])], table)
    if "steps" not in how and "sampler" not in how:
        how["steps"] = STEPS
    pairs = _Batches.of(model, flow, x1, ot_batch, how.get("seed", 0), table, group)
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
    """The jumps that the corrector adds: Σ_i (1 - Σp0²)·Σ_n s_n·(1 - k_n); p0, s and k are those of position i.

    None for a sampler without Euler steps, and with refresh, whose jumps depend on the data.

    For the linear schedule and η ≤ 1 the sum is η·(H_N - 1), theory.md §2. It is exact for a perfect network with
    independent pairs where positions of the data are independent, and for every network where data tokens stay (a
    disjoint source under Carry or Evidence). Otherwise it is O(1/N) off for a perfect network, and unknown for a
    network that was trained on other pairs or is not perfect.
    """
    if sampler.refresh:
        return None
    if not callable(eta) and eta == 0:
        return 0.0
    t = sampler.step_times
    if t is None:
        return None
    rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
    _, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
    proposed = (s * rest[:-1]).sum(0).expand(length)  # accepted as well: a token is noise with probability 1 - k
    return float((proposed * (1 - flow.source.token_probs().double().square().sum(-1))).sum())


@dataclass(frozen=True, eq=False)
class _Batches:
    """Batches of source and data rows, coupled as in training, with the random streams of training."""

    flow: Flow
    x1: Int[Tensor, "m L"]
    size: int
    seed: int
    table: Float[Tensor, "V D"] | None
    model: Network
    group: Int[Tensor, " m"] | None = None

    @classmethod
    def of(
        cls,
        model: Network,
        flow: Flow,
        x1: Int[Tensor, "m L"],
        size: int | None,
        seed: int,
        table: Tensor | None,
        group: Int[Tensor, " m"] | None,
    ) -> "_Batches":
        flow.vocab.check_data(x1)
        reads = flow.coupling.reads
        if "embedding" in reads and table is None:
            raise ValueError(f"{flow.coupling} reads embeddings, but the network has no `table`: pass embedding=…")
        if size is None:
            if not flow.coupling.is_identity:
                raise ValueError(
                    f"the result of {type(flow.coupling).__name__} depends on the rows per OT batch: pass ot_batch=… "
                    f"of the training"
                )
            size = max(1, min(ROWS, len(x1) // 2))
        if size < 1 or len(x1) < 2 * size:
            raise ValueError(
                f"x1 must have at least two batches of ot_batch={size} rows, for an error, got {len(x1)} rows"
            )
        return cls(flow, x1.cpu(), size, seed, table if "embedding" in reads else None, model, group)

    def __iter__(self) -> Iterator[tuple[Int[Tensor, "n L"], Int[Tensor, "n L"]]]:
        network = self.model if "network" in self.flow.coupling.reads else None
        pairs = TrainingPairs.of(self.flow, self.x1.shape[1])
        for index in range(len(self.x1) // self.size):  # a smaller last batch would be coupled differently
            here = slice(index * self.size, (index + 1) * self.size)
            rows, group = self.x1[here], None if self.group is None else self.group[here]
            yield pairs.batch(rows, self.seed, index, group=group, embedding=self.table, network=network)


def _predicted(pairs: Sequence[tuple[Tensor, Tensor]]) -> Measurement:
    distances = torch.stack([(x0 != x1).sum(1).double().mean() for x0, x1 in pairs])
    return Measurement.mean("predicted_jumps", distances, "per sequence; n counts batches")


def _cost(cost: Cost, drawn: Generation, pairs: Sequence[tuple[Tensor, Tensor]], table: Tensor | None) -> TransportCost:
    name, there = _name(cost), None if table is None else table.to(drawn.tokens.device)
    paid = torch.tensor([float(cost.paired(x0, x1, table).double().mean()) for x0, x1 in pairs], dtype=torch.float64)
    every = torch.tensor([cost.cost_matrix(x0, x1, table).mean() for x0, x1 in pairs], dtype=torch.float64)
    if not (paid.isfinite().all() and every.isfinite().all()):
        raise ValueError(f"the {name} cost of a pair is NaN or infinite: check the embeddings and the cost function")
    unit = f"{name} per sequence"
    return TransportCost(
        cost,
        Measurement.mean(f"dynamic_cost_{name}", drawn.path_cost(cost, there), unit),
        Measurement.mean(f"kantorovich_cost_{name}", paid, f"{unit}; n counts batches"),
        Measurement.mean(f"independent_cost_{name}", every, f"{unit}; n counts batches"),
        Measurement.ratio(f"gain_{name}", every - paid, every, "of the independent cost; n counts batches"),
    )


def _minus(quantity: str, one: Measurement, other: Measurement) -> Measurement:
    """The difference of two measurements from independent draws."""
    error = math.hypot(one.stderr, other.stderr)
    return Measurement(quantity, one.value - other.value, error, one.n, one.unit)


def _table(model: Network, embedding: Tensor | None, run: str | os.PathLike[str] | None) -> tuple[Tensor | None, str]:
    """The embeddings on the CPU, and where they come from."""
    if embedding is not None and run is not None:
        raise ValueError("pass either embedding= or run=, not both")
    if embedding is not None:
        return embedding.detach().cpu(), "as passed in embedding="
    if run is not None:
        saved = checkpoint.latest(Path(run) / "checkpoints")
        if saved is None:
            raise ValueError(f"{run} has no checkpoint: `hopflow train … out={run}` writes one")
        if "ot_ema" in saved.groups:
            return saved.groups["ot_ema"]["value"], f"the average that the coupling read (ot_ema), step {saved.step}"
    own = getattr(model, "table", None)
    return (own.detach().cpu(), "the network's own") if isinstance(own, Tensor) else (None, "none")


def _by_token(costs: Sequence[SequenceCost], table: Tensor | None) -> list[Cost]:
    """The costs, checked to be sums over tokens and to have the embeddings that they read."""
    found: list[Cost] = []
    for cost in costs:
        if not isinstance(cost, Cost):
            raise ValueError(
                f"{type(cost).__name__} is not a dissimilarity of tokens, so a path has no such cost, and "
                f"Theorem 3.1 [theorem1] does not apply"
            )
        if "embedding" in cost.reads and table is None:
            raise ValueError(
                f"{type(cost).__name__} reads embeddings, but the network has no `table`: pass embedding=…"
            )
        found.append(cost)
    return found


def _name(cost: Cost) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(cost).__name__).lower()
