"""Matching: how many sampling steps one run needs to reach the quality of another, such as "32 times fewer".

Quality is a generative perplexity, by one judge. Between measured numbers of steps it is interpolated, straight in the
logarithms of both. A low perplexity with a low entropy is no win, so that entropies stand beside it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..estimate import for_json, plus_minus
from .rows import Row

LEVEL = 1.96
"""Standard errors of an interval: 95 %."""


@dataclass(frozen=True)
class Point:
    """The quality of a run at a number of steps, and the entropy of the same samples, if it was measured."""

    steps: int
    ppl: float
    stderr: float
    entropy: float | None = None
    entropy_stderr: float = 0.0


@dataclass(frozen=True)
class Match:
    """The steps after which `run` is as good as `target` with the most steps that target was measured at.

    `steps` is None where it never gets there; `low` and `high` end its 95 % interval, None for beyond what was
    measured. `first` says that fewer steps than the fewest measured may do: `steps` is then an upper limit.
    """

    run: str
    target: str
    at: dict[str, Any]
    """η, temperature and judge of the samples."""
    goal: Point
    steps: float | None
    low: float | None
    high: float | None
    first: bool
    reached: Point | None
    """The fewest measured steps that suffice."""
    best: Point

    @property
    def factor(self) -> float | None:
        """The target's steps for each of the run's."""
        return None if self.steps is None else self.goal.steps / self.steps

    @property
    def less_varied(self) -> bool:
        """Whether the samples that are as good have less entropy, beyond the errors."""
        if self.reached is None or self.reached.entropy is None or self.goal.entropy is None:
            return False
        error = math.hypot(self.reached.entropy_stderr, self.goal.entropy_stderr)
        return self.reached.entropy < self.goal.entropy - LEVEL * error

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = for_json({**asdict(self), "factor": self.factor, "less_varied": self.less_varied})
        return found

    def __str__(self) -> str:
        goal = f"{self.target} with {self.goal.steps} ({plus_minus(self.goal.ppl, self.goal.stderr)})"
        if self.steps is None:
            near = "" if self.low is None else f", within the errors from {self.low:.3g} on"
            best = f"{plus_minus(self.best.ppl, self.best.stderr)} with {self.best.steps} steps"
            return f"{self.run} does not reach {goal}: its best is {best}{near}"
        most, least = ("at most ", "at least ") if self.first else ("", "")
        ends = "their error is unknown"
        if self.low is not None:
            ends = f"95 %: {'less than ' * self.first}{self.low:.3g} to {_or_more(self.high)}"
        factor = self.goal.steps / self.steps
        times = f"{factor:.3g} times fewer" if factor >= 1 else f"{1 / factor:.3g} times as many"
        return (
            f"{self.run} needs {most}{self.steps:.3g} steps ({ends}) to reach {goal}: {least}{times}; "
            f"{self._entropies()}"
        )

    def _entropies(self) -> str:
        assert self.reached is not None
        if self.reached.entropy is None or self.goal.entropy is None:
            return "entropies were not measured, and without them it may be no win"
        beside = f"entropy {self.reached.entropy:.4g} beside {self.goal.entropy:.4g} bits"
        return f"{beside}: less varied, so no plain win" if self.less_varied else beside


def match(run: str, points: Sequence[Point], target: str, others: Sequence[Point], at: Mapping[str, Any]) -> Match:
    """The steps at which a run's curve first comes down to the target's last point."""
    goal = max(others, key=lambda point: point.steps)
    curve = sorted(points, key=lambda point: point.steps)
    level = math.log(goal.ppl)

    unknown = any(math.isnan(point.stderr) for point in (goal, *curve))

    def crossing(errors: float) -> float | None:
        shifts = (math.hypot(point.stderr / point.ppl, goal.stderr / goal.ppl) for point in curve)
        lifted = (math.log(p.ppl) + (errors * s if errors else 0.0) for p, s in zip(curve, shifts, strict=True))
        return _crossing(list(zip((p.steps for p in curve), lifted, strict=True)), level)

    reached = next((point for point in curve if point.ppl <= goal.ppl), None)
    return Match(
        run,
        target,
        dict(at),
        goal,
        crossing(0.0),
        None if unknown else crossing(-LEVEL),
        None if unknown else crossing(LEVEL),
        reached is curve[0],
        reached,
        min(curve, key=lambda point: point.ppl),
    )


def curves(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[Point]]:
    """Generative perplexities over steps, by all else that decides them: judge, η, temperature, length, text."""
    entropies = {_drawn(row): row for row in rows if row.quantity == "entropy_bits"}
    found: dict[tuple[Any, ...], list[Point]] = {}
    for row in rows:
        if row.quantity == "gen_ppl" and row.more.get("steps") is not None:
            beside = entropies.get(_drawn(row))
            more = () if beside is None else (beside.value, beside.stderr)
            found.setdefault(_curve(row), []).append(Point(row.more["steps"], row.value, row.stderr, *more))
    return found


CURVE = ("set", "eta", "temperature", "length", "judge_hash", "retokenised")


def _curve(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    return tuple(content.get(name) for name in CURVE)


def _drawn(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    return tuple(content.get(name) for name in ("set", "eta", "temperature", "length", "steps", "seed", "checkpoint"))


def _crossing(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    """Where a curve of (steps, log value) first comes down to a level, straight between points in log steps."""
    before: tuple[int, float] | None = None
    for steps, value in curve:
        if value <= level:
            if before is None:
                return float(steps)
            share = (before[1] - level) / (before[1] - value)
            return math.exp(math.log(before[0]) + share * math.log(steps / before[0]))
        before = (steps, value)
    return None


def _or_more(steps: float | None) -> str:
    return "more than was measured" if steps is None else f"{steps:.3g}"
