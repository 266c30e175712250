"""BoundEstimator: the Monte Carlo estimate of an integral along the path, with its error."""

import math
import numbers
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow, check_network
from ..network.network import Network, check_labels, to_device_of
from ..paths import PathSample
from ..predictions import Evidence
from ..scores import Scores
from .control_variates import legendre_columns, noisy_coverage, position_columns, stratum_trends, subtract_controls
from .estimate import Estimate
from .integrands import EndCorrection, Integral
from .monte_carlo import Count, Draws, Forced, PathDraw
from .network_scores import NetworkScores

BLOCK = 1 << 18
"""Tokens whose random numbers are drawn at once; a constant, so that results do not depend on `batch`."""


def only_first_redraws_count(flow: Flow) -> bool:
    """Whether the `Count` estimator is exact: a data token stays, and all positions share one k(t)."""
    return flow.prediction.keeps_data_tokens(flow.source) and flow.schedule.shared


def choose_draws(by: Draws | None, count_is_exact: bool) -> Draws:
    """`by`, or by default `Count` where it is exact and `Forced` elsewhere."""
    if by is not None and not by.any_source and not count_is_exact:
        raise ValueError(
            f"{type(by).__name__} needs a disjoint source with Carry or Evidence, one schedule for all positions and "
            f"continuous time (no steps, no end). Use Forced()."
        )
    return by or (Count() if count_is_exact else Forced())


@dataclass
class BoundEstimator:
    """Estimates integrals along the path with a network, from `draws` random points per sequence."""

    model: Network
    flow: Flow
    draws: int
    seed: int
    batch: int | None
    unigram: Tensor | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        check_network(self.model, self.flow)
        if not (isinstance(self.draws, numbers.Integral) and self.draws >= 2):
            raise ValueError(
                f"draws must be an integer ≥ 2 (an error needs two points per sequence), got {self.draws!r}."
            )
        if self.batch is not None and not (isinstance(self.batch, numbers.Integral) and self.batch >= 1):
            raise ValueError(
                f"batch, the number of sequences per network call, must be an integer ≥ 1, got {self.batch!r}."
            )
        if not isinstance(self.seed, numbers.Integral):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
        if self.unigram is not None and not bool((self.unigram > 0).all()):
            raise ValueError("unigram must contain positive frequencies only. Add 1 to every count.")

    def estimate(
        self,
        x1: Int[Tensor, "n L"],
        parts: list[tuple[Integral, Draws]],
        start: Tensor | float = 0.0,
        labels: Int[Tensor, " n"] | None = None,
        **what: object,
    ) -> Estimate:
        """The sum of several integrals for every sequence, each estimated from separate draws, plus `start`."""
        x1 = self.checked(x1, labels)
        replicates, strata = self.layout(len(x1))
        generator = torch.Generator().manual_seed(self.seed)
        rows = max(1, BLOCK // (replicates * strata * x1.shape[1]))
        tables = []
        with self.evaluation_mode():
            for block, own in zip(x1.split(rows), _split(labels, rows, x1), strict=True):
                many, repeated = repeat_rows(replicates * strata, block, own)
                x0 = self.flow.source.sample(*many.shape, generator=generator)
                tables.append(self._sum(parts, x0, many, (len(block), replicates, strata), generator, repeated))
        values, columns = (torch.cat(table) for table in zip(*tables, strict=True))
        if self.unigram is not None:
            columns[..., 0] += self._log_unigram()[x1.cpu()].sum(1)[:, None, None]  # less its known mean
        left = subtract_controls(values, columns).mean(2) + torch.as_tensor(start).cpu().double().view(-1, 1)
        calls = sum(replicates * strata + self.needs_end_correction(integral) for integral, _ in parts)
        return self.result(left, x1, calls, **what)

    def _sum(
        self,
        parts: list[tuple[Integral, Draws]],
        x0: Int[Tensor, "N L"],
        x1: Int[Tensor, "N L"],
        shape: tuple[int, int, int],
        generator: torch.Generator,
        labels: Int[Tensor, " N"] | None,
    ) -> tuple[Float[Tensor, "n R S"], Float[Tensor, "n R S C"]]:
        """Draws of the sum of the integrals, and the columns of their control variates."""
        tables = [self.integrate(integral, by, x0, x1, shape, generator, labels) for integral, by in parts]
        return torch.stack([values for values, _ in tables]).sum(0), torch.cat([columns for _, columns in tables], -1)

    def integrate(
        self,
        integral: Integral,
        by: Draws,
        x0: Int[Tensor, "N L"],
        x1: Int[Tensor, "N L"],
        shape: tuple[int, int, int],
        generator: torch.Generator,
        labels: Int[Tensor, " N"] | None = None,
    ) -> tuple[Float[Tensor, "n R S"], Float[Tensor, "n R S C"]]:
        """Draws of one integral by sequence, replicate and stratum, and the columns of their control variates."""
        n, replicates, strata = shape
        batch = self._rows_per_call(x1)
        at = by.strata(n * replicates, strata, generator)
        draw = by.draw(integral.clock, at.u.flatten(), x1.shape[1], generator).reweighted(
            at.weight.repeat(n * replicates)
        )
        pieces = [
            self._values(
                integral,
                draw.rows(piece),
                x0[piece].to(x1.device),
                x1[piece],
                None if labels is None else labels[piece],
            )
            for piece in (slice(i, i + batch) for i in range(0, len(x1), batch))
        ]
        nats, *unigram = (torch.cat(column).view(*shape, -1) for column in zip(*pieces, strict=True))
        rows = x1.view(*shape, -1)[:, 0, 0]
        positions = position_columns(noisy_coverage(draw).view(*shape, -1), nats, rows.cpu())
        if self.needs_end_correction(integral):
            own = None if labels is None else labels.view(shape)[:, 0, 0]
            end = self._end_correction(integral, rows, own)
            drawn = draw.weight[:, None] * end.repeated(replicates * strata).integrand(draw)
            nats = nats - drawn.view_as(nats) + end.total[:, None, None]
        columns = [*unigram, positions, stratum_trends(at).view(*shape, -1), legendre_columns(at).view(*shape, -1)]
        return nats.sum(3), torch.cat(columns, -1)

    def needs_end_correction(self, integral: Integral) -> bool:
        """Whether the end of the integral is added in closed form; with a disjoint source it is 0."""
        return integral.end_correction is not None and not self.flow.source.disjoint

    def _end_correction(
        self, integral: Integral, x1: Int[Tensor, "n L"], labels: Int[Tensor, " n"] | None = None
    ) -> EndCorrection:
        """The closed form of the end of the integral, from one network call at xt = x1 for each sequence."""
        assert integral.end_correction is not None
        found = []
        size = self._rows_per_call(x1)
        for rows, own in zip(x1.split(size), _split(labels, size, x1), strict=True):
            t = torch.ones(len(rows), dtype=self._scores.caller.time_dtype, device=rows.device)
            none, one = torch.zeros_like(t)[:, None], torch.ones_like(t)[:, None]
            sample = PathSample(rows, rows, rows, t, none, one, labels=own)
            found.append(integral.end_correction(self._scores(sample)))
        return EndCorrection.joined(found)

    def _values(
        self,
        integral: Integral,
        draw: PathDraw,
        x0: Int[Tensor, "N L"],
        x1: Int[Tensor, "N L"],
        labels: Int[Tensor, " N"] | None = None,
    ) -> list[Float[Tensor, "N _"]]:
        """The weighted integrand at each draw and position, and its sum for the unigram network; one network call."""
        xt = torch.where(draw.noisy.to(x1.device), x0, x1)
        t = draw.point.t.to(self._scores.caller.time_dtype).to(x1.device)
        point = draw.point.to(x1.device)
        sample = PathSample(x0, x1, xt, t, point.rest, point.speed, labels=labels)
        scores = self._scores(sample)
        sample = scores.sample
        nats = integral.terms(scores, point)
        if bool(torch.isnan(nats).any()):
            raise ValueError("the network returned NaN: check its weights and its inputs.")
        columns = [nats]
        if self.unigram is not None:  # a network whose logits are the token frequencies, on the same xt
            law = self._log_unigram().to(sample.rest.dtype).to(xt.device)
            nothing = torch.zeros(*xt.shape, 1, device=xt.device)
            control = Scores.from_head(nothing, lambda f: law.expand(len(f), -1), sample, Evidence(), self.flow.source)
            columns.append(integral.terms(control, point).sum(1, keepdim=True))
        return [column.cpu().double() * draw.weight[:, None] for column in columns]

    def evaluation_mode(self) -> AbstractContextManager[None]:
        """Disable gradients and dropout of the network inside."""
        return self._scores.caller.evaluation_mode()

    @cached_property
    def _scores(self) -> NetworkScores:
        return NetworkScores(self.model, self.flow, self.precision)

    def _rows_per_call(self, x1: Int[Tensor, "N L"]) -> int:
        return self.batch or self._scores.caller.batch_size(x1.shape[1], x1.device)

    def layout(self, units: int) -> tuple[int, int]:
        """Replicates per unit and strata per replicate: the error needs at least 16 independent replicates in all."""
        replicates = max(2, math.ceil(16 / units))
        return replicates, max(1, self.draws // replicates)

    def checked(self, x1: Int[Tensor, "n L"], labels: Int[Tensor, " n"] | None = None) -> Int[Tensor, "n L"]:
        """The sequences on the device of the network; ValueError unless they and `labels` suit flow and network."""
        self.flow.vocab.check_ids(x1, "(n, L)")
        if x1.numel() == 0:
            raise ValueError(
                f"x1 must contain at least one sequence of at least one token, got shape {tuple(x1.shape)}."
            )
        self.flow.vocab.check_data(x1)
        self.flow.check_length(x1.shape[1])
        check_labels(self.model, labels, len(x1))
        return to_device_of(self.model, x1)

    def result(self, table: Float[Tensor, "units R"], x1: Int[Tensor, "n L"], calls: int, **what: object) -> Estimate:
        """The estimate from a table of independent units and their replicates."""
        return Estimate.of(table, length=x1.shape[1], calls=calls, dtype=self._scores.dtype, **what)

    def _log_unigram(self) -> Float[Tensor, " Vd"]:
        assert self.unigram is not None
        frequencies = self.unigram.cpu().double()
        return (frequencies / frequencies.sum()).log()


def repeat_rows(
    times: int, x: Int[Tensor, "n L"], labels: Int[Tensor, " n"] | None
) -> tuple[Int[Tensor, "N L"], Int[Tensor, " N"] | None]:
    """Each sequence, and its label on the same device, `times` times."""
    own = None if labels is None else labels.to(x.device).repeat_interleave(times)
    return x.repeat_interleave(times, 0), own


def _split(labels: Tensor | None, size: int, x1: Int[Tensor, "n L"]) -> Sequence[Tensor | None]:
    """The labels in parts of `size`, as many as x1 has."""
    return [None] * math.ceil(len(x1) / size) if labels is None else labels.split(size)
