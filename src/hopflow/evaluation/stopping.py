"""StoppingRule: estimate block after block of sequences until the error is small enough or the budget is spent."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from jaxtyping import Int
from torch import Tensor

from ..bounds.estimate import Estimate

FIRST, LARGEST = 16, 256
"""Sequences of the first and of the largest block; each block is twice as large as the one before."""
MINIBATCHES = 2
"""Minibatches of the first block where sequences are coupled: a single one has no spread."""
UNITS = 8
"""Sequences or minibatches from which on their spread is used to stop."""


@dataclass(frozen=True)
class StoppingRule:
    """Stop at a relative standard error of the perplexity, after `seconds`, or after `rows` sequences.

    At least one block is measured. After the last sequence only the draws can lower the error: the sequences are
    measured again with new draws until the error that these leave is small enough.
    """

    error: float = 0.01
    seconds: float = 60.0
    rows: int | None = None

    def __post_init__(self) -> None:
        if not (self.error >= 0 and self.seconds >= 0):  # also refuses nan
            raise ValueError(f"error and seconds must be ≥ 0; got error={self.error}, seconds={self.seconds}")
        if self.rows is not None and self.rows < 2:
            raise ValueError(f"rows must be ≥ 2, because one sequence has no standard error, got {self.rows}")

    def reason(self, totals: Sequence[Estimate], rows: int, complete: bool, started: float) -> str | None:
        """The reason to stop: "error", "rows" or "seconds"; None to go on."""
        # the error of log ppl is the relative error of ppl
        errors = [(total.draw_stderr if complete else total.stderr, total) for total in totals]
        left = [error / total.length for error, total in errors if not math.isinf(total.nats)]  # infinite stays so
        enough = complete or totals[0].n >= UNITS
        if enough and max(left, default=0.0) <= self.error:
            return "error"
        if self.rows is not None and rows >= self.rows:
            return "rows"
        return "seconds" if time.monotonic() - started >= self.seconds else None


@dataclass(frozen=True)
class StoppedEstimates:
    """Estimates from the same draws, the number of sequences behind them, and why the estimation stopped."""

    estimates: list[Estimate]
    rows: int
    reason: str


def estimate_in_blocks(
    estimator: Callable[[Int[Tensor, "m L"], int], Sequence[Estimate]],
    x1: Int[Tensor, "n L"],
    rule: StoppingRule,
    *,
    unit: int = 1,
    report: Callable[[Sequence[Estimate], int], None] = lambda estimates, rows: None,
) -> StoppedEstimates:
    """Call `estimator(sequences, turn)` for block after block; it returns one or more estimates of the same draws.

    `turn` counts the calls, so that each has its own draws. `unit` sequences belong together, such as those of a
    coupled minibatch; a remainder is not used. `report` receives the estimates so far and the number of sequences.
    """
    x1 = x1[: min(len(x1), rule.rows or len(x1))]
    x1 = x1[: len(x1) // unit * unit]
    blocks = _blocks(x1, unit)
    found: list[list[Sequence[Estimate]]] = [[] for _ in blocks]
    started, visits = time.monotonic(), 0
    for turn in count():  # over the blocks again and again, each time with other draws
        at = turn % len(blocks)
        found[at].append(estimator(blocks[at], turn))
        visits += len(blocks[at])
        seen = [[average_repeats(passes) for passes in zip(*block, strict=True)] for block in found if block]
        totals = [_at_least_draw_error(combine_blocks(parts)) for parts in zip(*seen, strict=True)]
        report(totals, min(visits, len(x1)))
        if reason := rule.reason(totals, visits, visits >= len(x1), started):
            return StoppedEstimates(totals, min(visits, len(x1)), reason)
    raise AssertionError


def combine_blocks(parts: Sequence[Estimate]) -> Estimate:
    """The estimate for all sequences from those of disjoint blocks, as if they had been measured at once."""
    n = sum(part.n for part in parts)
    if len(parts) == 1:
        return parts[0]
    nats = math.fsum(part.n * part.nats for part in parts) / n
    draws = math.sqrt(math.fsum((part.n * part.draw_stderr) ** 2 for part in parts)) / n
    calls = round(math.fsum(part.n * part.calls for part in parts) / n)
    within = math.fsum((part.n - 1) * part.n * part.stderr**2 for part in parts if part.n > 1)
    between = math.fsum(part.n * (part.nats - nats) ** 2 for part in parts)
    stderr = math.sqrt((within + between) / (n - 1) / n)
    each = tuple(chain.from_iterable(part.each for part in parts))
    averages = {key: math.fsum(part.n * part.diagnostics[key] for part in parts) / n for key in parts[0].diagnostics}
    found: dict[str, Any] = {"nats": nats, "stderr": stderr, "draw_stderr": draws, "n": n}
    found |= {"calls": calls, "freedom": n - 1}
    return replace(parts[0], **found, each=each, diagnostics=averages)


def average_repeats(passes: Sequence[Estimate]) -> Estimate:
    """The mean of several estimates for the same sequences, each with its own draws."""
    first, times = passes[0], len(passes)
    if times == 1:
        return first
    nats = math.fsum(one.nats for one in passes) / times
    draws = math.fsum(one.draw_stderr**2 for one in passes) / times**2
    sequences = math.fsum(one.stderr**2 - one.draw_stderr**2 for one in passes) / times
    stderr = math.nan if math.isnan(sequences) else math.sqrt(max(draws, draws + sequences))
    each = tuple(math.fsum(values) / times for values in zip(*(one.each for one in passes), strict=True))
    calls = sum(one.calls for one in passes)
    averages = {key: math.fsum(one.diagnostics[key] for one in passes) / times for key in first.diagnostics}
    found: dict[str, Any] = {"nats": nats, "stderr": stderr, "draw_stderr": math.sqrt(draws), "calls": calls}
    return replace(first, **found, each=each, diagnostics=averages)


def _at_least_draw_error(estimate: Estimate) -> Estimate:
    """With few sequences the spread may be small by chance; the noise of the draws is a known part of it."""
    least = estimate.draw_stderr
    return replace(estimate, stderr=least if estimate.stderr < least else estimate.stderr)


def _blocks(x1: Int[Tensor, "n L"], unit: int) -> list[Int[Tensor, "m L"]]:
    """Blocks of growing size, each a multiple of the unit; a remainder too small for an error joins the last block."""
    least = FIRST if unit == 1 else MINIBATCHES * unit
    blocks, start, size = [], 0, least
    while start < len(x1):
        stop = start + size
        if len(x1) - stop < least:
            stop = len(x1)
        blocks.append(x1[start:stop])
        start, size = stop, max(least, min(2 * size, LARGEST // unit * unit))
    return blocks
