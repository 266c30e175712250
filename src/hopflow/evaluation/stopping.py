"""Stopping: block after block of sequences, until the number is good enough or the budget is spent."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from jaxtyping import Int
from torch import Tensor

from ..estimate import Estimate

FIRST, LARGEST = 16, 256
"""Sequences of the first block, and of the largest: each is twice the one before."""
MINIBATCHES = 2
"""Of the first block, where sequences are coupled: one alone says nothing of the spread between them."""
UNITS = 8
"""Sequences or minibatches from which on their spread is believed."""


@dataclass(frozen=True)
class Until:
    """When to stop: at a relative standard error of the perplexity, after so many seconds, or sequences.

    At least one block is measured. Once all sequences were seen, more of them cannot be had: the error is then what the
    draws leave open, and further draws lower it.
    """

    error: float = 0.01
    seconds: float = 60.0
    rows: int | None = None

    def __post_init__(self) -> None:
        if not (self.error >= 0 and self.seconds >= 0):  # also refuses nan
            raise ValueError(f"error and seconds are not negative; got error={self.error}, seconds={self.seconds}")
        if self.rows is not None and self.rows < 2:
            raise ValueError(f"an error needs at least rows=2 sequences; got {self.rows}")

    def why(self, totals: Sequence[Estimate], rows: int, complete: bool, started: float) -> str | None:
        """The word for what has ended it, if anything has."""
        # the error of log ppl is the relative error of ppl
        sides = [(total.draw_stderr if complete else total.stderr, total) for total in totals]
        left = [error / total.length for error, total in sides if not math.isinf(total.nats)]  # that stays infinite
        enough = complete or totals[0].n >= UNITS
        if enough and max(left, default=0.0) <= self.error:
            return "error"
        if self.rows is not None and rows >= self.rows:
            return "rows"
        return "seconds" if time.monotonic() - started >= self.seconds else None


@dataclass(frozen=True)
class Stopped:
    """Estimates from the same draws, how many sequences they are of, and what has ended it."""

    estimates: list[Estimate]
    rows: int
    why: str


def measure(
    question: Callable[[Int[Tensor, "m L"], int], Sequence[Estimate]],
    x1: Int[Tensor, "n L"],
    until: Until,
    *,
    unit: int = 1,
    told: Callable[[Sequence[Estimate], int], None] = lambda estimates, rows: None,
) -> Stopped:
    """Ask a question of (sequences, the turn it is) block by block; an answer is one or more numbers.

    Each turn has draws of its own. `unit` sequences belong together, such as those of a coupled minibatch; what is left
    over is not used.
    """
    x1 = x1[: min(len(x1), until.rows or len(x1))]
    x1 = x1[: len(x1) // unit * unit]
    blocks = _blocks(x1, unit)
    found: list[list[Sequence[Estimate]]] = [[] for _ in blocks]
    started, visits = time.monotonic(), 0
    for turn in count():  # over the blocks again and again, each time with other draws
        at = turn % len(blocks)
        found[at].append(question(blocks[at], turn))
        visits += len(blocks[at])
        seen = [[again(passes) for passes in zip(*block, strict=True)] for block in found if block]
        totals = [_cautious(beside(parts)) for parts in zip(*seen, strict=True)]
        told(totals, min(visits, len(x1)))
        if why := until.why(totals, visits, visits >= len(x1), started):
            return Stopped(totals, min(visits, len(x1)), why)
    raise AssertionError


def beside(parts: Sequence[Estimate]) -> Estimate:
    """The estimate for all sequences from those of disjoint parts of them, as if they had been measured at once."""
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


def again(passes: Sequence[Estimate]) -> Estimate:
    """The estimate from several for the same sequences, each with draws of its own."""
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


def _cautious(estimate: Estimate) -> Estimate:
    """Among a few sequences the spread may look small by chance; the noise of the draws is a part of it and known."""
    least = estimate.draw_stderr
    return replace(estimate, stderr=least if estimate.stderr < least else estimate.stderr)


def _blocks(x1: Int[Tensor, "n L"], unit: int) -> list[Int[Tensor, "m L"]]:
    """Of growing sizes, each a multiple of the unit; a rest that is too small for an error goes with its neighbour."""
    least = FIRST if unit == 1 else MINIBATCHES * unit
    blocks, start, size = [], 0, least
    while start < len(x1):
        stop = start + size
        if len(x1) - stop < least:
            stop = len(x1)
        blocks.append(x1[start:stop])
        start, size = stop, max(least, min(2 * size, LARGEST // unit * unit))
    return blocks
