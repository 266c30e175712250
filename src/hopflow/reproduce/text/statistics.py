"""Means over cells: perplexities with errors, and differences that are paired by sequence and by seed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from ...bounds.estimate import mean_and_error
from .cell import BoundValues, Cell, JudgeScores, SamplePoint

Cells = Mapping[str, Sequence[Cell]]
"""The cells of a study by variant."""


@dataclass(frozen=True)
class Mean:
    """A mean and its standard error: over seeds if there are several, else over the sequences of the one seed."""

    value: float
    stderr: float
    seeds: int

    def __str__(self) -> str:
        if math.isinf(self.value):
            return "∞"
        digits = 1 if abs(self.value) >= 10 else 2
        error = "?" if math.isnan(self.stderr) else f"{self.stderr:.{digits}f}"
        return f"{self.value:.{digits}f} ± {error}"

    @property
    def known_error(self) -> float:
        """The length of an error bar: 0 where the error is unknown."""
        return 0.0 if math.isnan(self.stderr) else self.stderr


def mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error; NaN for the error of one value."""
    return mean_and_error(torch.tensor(values, dtype=torch.float64))


def over_seeds(each: Sequence[tuple[float, float]]) -> Mean:
    """From (value, error within the cell) of every seed."""
    if len(each) == 1:
        return Mean(each[0][0], each[0][1], 1)
    value, error = mean([value for value, _ in each])
    return Mean(value, error, len(each))


def perplexity(bound: BoundValues) -> tuple[float, float]:
    """exp(mean nats / length) and its error over sequences; infinite if the bound of any sequence is."""
    if any(nats is None for nats in bound.nats):
        return math.inf, math.nan
    value, error = mean([nats for nats in bound.nats if nats is not None])
    ppl = math.exp(value / bound.length)
    return ppl, ppl * error / bound.length


def judged_perplexity(scores: JudgeScores) -> tuple[float, float]:
    """exp(all nats / all judge tokens) over samples, and its error by the delta method."""
    nats, tokens = math.fsum(scores.nats), sum(scores.tokens)
    per_token = nats / tokens
    left = [n - per_token * t for n, t in zip(scores.nats, scores.tokens, strict=True)]
    error = math.sqrt(math.fsum(value**2 for value in left)) / tokens
    ppl = math.exp(per_token)
    return ppl, ppl * error


def bound_mean(cells: Iterable[Cell], set: str, quantity: str, **keys: object) -> Mean | None:
    """The perplexity of one bound over the seeds of a variant; None if no cell has it."""
    found = [cell.bound(set, quantity, **keys) for cell in cells]
    values = [perplexity(bound) for bound in found if bound is not None]
    return over_seeds(values) if values else None


def tightest_reversal(cells: Sequence[Cell], set: str, paths: int, **keys: object) -> Mean | None:
    """br with this number of paths, for the proposal with the lower mean over the seeds; `keys` as of a bound."""
    proposals = {bound.proposal for cell in cells for bound in cell.bounds if bound.quantity == "br"}
    found = [bound_mean(cells, set, "br", paths=paths, proposal=proposal, **keys) for proposal in proposals]
    return min((one for one in found if one is not None), key=lambda one: one.value, default=None)


def judged_mean(cells: Iterable[Cell], judge: str, steps: int | None, eta: float = 0.0) -> Mean | None:
    """The generative perplexity of samples by a judge, over the seeds of a variant."""
    points = _samples(cells, steps, eta)
    values = [judged_perplexity(point.judges[judge]) for point in points if judge in point.judges]
    return over_seeds(values) if values else None


def entropy_mean(cells: Iterable[Cell], steps: int | None) -> Mean | None:
    """The entropy of samples with η = 0 in bits, over the seeds of a variant."""
    values = [(point.entropy_bits, nan_if_none(point.entropy_bits_stderr)) for point in _samples(cells, steps)]
    return over_seeds(values) if values else None


def hops_mean(cells: Iterable[Cell], steps: int | None) -> Mean | None:
    """Hops per sequence of samples with η = 0, over the seeds of a variant."""
    points = _samples(cells, steps)
    values = [(point.jumps, nan_if_none(point.jumps_stderr)) for point in points if point.jumps is not None]
    return over_seeds(values) if values else None


def _samples(cells: Iterable[Cell], steps: int | None, eta: float = 0.0) -> Iterator[SamplePoint]:
    """The samples of every cell with this number of steps and this η; `steps` is None for those left to right."""
    chosen = (steps, None if steps is None else eta)
    return (point for cell in cells for point in cell.samples if (point.steps, point.eta) == chosen)


def transport_mean(cells: Iterable[Cell], key: str) -> Mean | None:
    """A number of the transport part of the cells, over the seeds of a variant."""
    found = [cell.transport[key] for cell in cells if key in cell.transport]
    values = [(one.value, nan_if_none(one.stderr)) for one in found if one.value is not None]
    return over_seeds(values) if values else None


def training_mean(cells: Iterable[Cell], key: str) -> Mean | None:
    """A number of the training part of the cells, over the seeds of a variant; older cells may lack it."""
    values = [(value, math.nan) for cell in cells if (value := cell.training.get(key)) is not None]
    return over_seeds(values) if values else None


def nan_if_none(value: float | None) -> float:
    """The value, or NaN where it is unknown."""
    return math.nan if value is None else value


def over_seeds_and_within(each: Sequence[tuple[float, float]], *, same_rows: bool) -> tuple[float, float, int]:
    """The mean over seeds of (value, error within the seed), its error, and the number of seeds.

    The error is the larger one of that over seeds and that within seeds. Three seeds often agree by chance: without any
    effect, 2 standard errors over three seeds are exceeded in 18 % of all cases. `same_rows` means that all seeds are
    measured on the same sequences, so that more seeds do not lower the error within them.
    """
    found = over_seeds(each)
    errors = [0.0 if math.isnan(error) else error for _, error in each]
    within = math.fsum(errors) / len(each) if same_rows else math.hypot(*errors) / len(each)
    return found.value, max(found.stderr, within), found.seeds


def difference(
    cells: Sequence[Cell], base: Sequence[Cell], set: str, quantity: str, **keys: object
) -> tuple[float, float, int] | None:
    """Relative difference in perplexity, paired by sequence within a seed: (value, error, seeds).

    With one seed the error is over sequences, and says nothing of another training run.
    """
    by_seed = {cell.seed: cell.bound(set, quantity, **keys) for cell in base}
    each: list[tuple[float, float]] = []
    for cell in cells:
        ours, theirs = cell.bound(set, quantity, **keys), by_seed.get(cell.seed)
        if ours is None or theirs is None:
            continue
        pairs = list(zip(ours.nats, theirs.nats, strict=True))
        apart = [(a - b) / ours.length for a, b in pairs if a is not None and b is not None]
        if len(apart) == len(pairs):
            value, error = mean(apart)
            each.append((math.expm1(value), math.exp(value) * error))
    return over_seeds_and_within(each, same_rows=True) if each else None


def two_runs_apart(cells: Sequence[Cell], quantity: str) -> float | None:
    """The standard deviation of the relative difference in test perplexity of two seeds; None for fewer than two."""
    values = [math.log(perplexity(bound)[0]) for cell in cells if (bound := cell.bound("test", quantity)) is not None]
    return mean(values)[1] * math.sqrt(2 * len(values)) if len(values) > 1 else None


def tightest(cells: Sequence[Cell], set: str, paths: int) -> tuple[str, dict[str, object]] | None:
    """The name and keys of the tightest bound for the few-hops sampler: bk, or br with this number of paths."""
    proposals = sorted({str(bound.proposal) for cell in cells for bound in cell.bounds if bound.quantity == "br"})
    asked: list[tuple[str, dict[str, object]]] = [("bk", {})]
    asked += [("br", {"paths": paths, "proposal": proposal}) for proposal in proposals]
    found = [(bound_mean(cells, set, quantity, **keys), (quantity, keys)) for quantity, keys in asked]
    known = [(one.value, name) for one, name in found if one is not None]
    return min(known, key=lambda one: one[0])[1] if known else None


def share_of_gap(loose: BoundValues, tight: BoundValues, masks: BoundValues) -> tuple[float, float] | None:
    """The share of the gap from `masks` to `loose`, in mean nats, that `tight` closes, and its error over sequences."""
    rows = zip(loose.nats, tight.nats, masks.nats, strict=True)
    known = [(a - b, a - c) for a, b, c in rows if a is not None and b is not None and c is not None]
    gap = math.fsum(whole for _, whole in known)
    if len(known) < len(loose.nats) or gap == 0:
        return None
    share = math.fsum(closed for closed, _ in known) / gap
    left = [closed - share * whole for closed, whole in known]
    return share, mean(left)[1] * len(known) / abs(gap)
