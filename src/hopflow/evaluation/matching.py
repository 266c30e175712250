"""StepsToMatch: how many sampling steps one run needs to reach the quality of another, such as "32 times fewer".

Quality is the generative perplexity under one judge. Between measured numbers of steps it is interpolated, linearly in
the logarithms of both. A low perplexity may come from repetitive text, so entropies are reported with it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..bounds.estimate import for_json, plus_minus
from .rows import Row

LEVEL = 1.96
"""Half the width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class QualityPoint:
    """Generative perplexity of a run at a number of steps, and the entropy of the same samples where measured."""

    steps: int
    ppl: float
    stderr: float
    entropy: float | None = None
    entropy_stderr: float = 0.0


@dataclass(frozen=True)
class StepsToMatch:
    """The steps after which `run` is as good as `target` with the most steps that were measured of `target`.

    `steps` is None where `run` does not get there. `low` and `high` are its 95 % interval, None beyond the measured
    steps. `first` is True where the fewest measured steps suffice already: `steps` is then an upper limit.
    """

    run: str
    target: str
    at: dict[str, Any]
    """η, temperature and judge of the samples."""
    goal: QualityPoint
    steps: float | None
    low: float | None
    high: float | None
    first: bool
    reached: QualityPoint | None
    """The point with the fewest measured steps that suffice."""
    best: QualityPoint

    @property
    def factor(self) -> float | None:
        """Steps of the target divided by steps of the run."""
        return None if self.steps is None else self.goal.steps / self.steps

    @property
    def less_varied(self) -> bool:
        """Whether the samples that match have a lower entropy than the target's, beyond the errors."""
        if self.reached is None or self.reached.entropy is None or self.goal.entropy is None:
            return False
        error = math.hypot(self.reached.entropy_stderr, self.goal.entropy_stderr)
        return self.reached.entropy < self.goal.entropy - LEVEL * error

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = for_json({**asdict(self), "factor": self.factor, "less_varied": self.less_varied})
        return found

    def __str__(self) -> str:
        goal = f"{self.target} at {self.goal.steps} steps (perplexity {plus_minus(self.goal.ppl, self.goal.stderr)})"
        if self.steps is None:
            near = "" if self.low is None else f", within the errors from {self.low:.3g} steps on"
            best = f"{plus_minus(self.best.ppl, self.best.stderr)} with {self.best.steps} steps"
            return f"{self.run} does not reach {goal}: its best is {best}{near}"
        most, least = ("at most ", "at least ") if self.first else ("", "")
        ends = "their error is unknown"
        if self.low is not None:
            ends = f"95 %: {'less than ' * self.first}{self.low:.3g} to {_or_more(self.high)}"
        factor = self.goal.steps / self.steps
        times = f"{factor:.3g} times fewer steps" if factor >= 1 else f"{1 / factor:.3g} times as many steps"
        return (
            f"{self.run} needs {most}{self.steps:.3g} steps ({ends}) to reach {goal}: {least}{times}; "
            f"{self._entropies()}"
        )

    def _entropies(self) -> str:
        assert self.reached is not None
        if self.reached.entropy is None or self.goal.entropy is None:
            return "entropies were not measured, so the text may be more repetitive"
        both = f"entropy {self.reached.entropy:.4g} against {self.goal.entropy:.4g} bits"
        return f"{both}: the text is more repetitive" if self.less_varied else both


def steps_to_match(
    run: str, points: Sequence[QualityPoint], target: str, others: Sequence[QualityPoint], at: Mapping[str, Any]
) -> StepsToMatch:
    """The steps at which the curve of a run first reaches the last point of the target."""
    goal = max(others, key=lambda point: point.steps)
    curve = sorted(points, key=lambda point: point.steps)
    level = math.log(goal.ppl)
    unknown = any(math.isnan(point.stderr) for point in (goal, *curve))

    def crossing(errors: float) -> float | None:
        shifts = (math.hypot(point.stderr / point.ppl, goal.stderr / goal.ppl) for point in curve)
        lifted = (math.log(p.ppl) + (errors * s if errors else 0.0) for p, s in zip(curve, shifts, strict=True))
        return _crossing(list(zip((p.steps for p in curve), lifted, strict=True)), level)

    reached = next((point for point in curve if point.ppl <= goal.ppl), None)
    return StepsToMatch(
        run,
        target,
        {key: value for key, value in at.items() if key != "sampler_family" or value is not None},
        goal,
        crossing(0.0),
        None if unknown else crossing(-LEVEL),
        None if unknown else crossing(LEVEL),
        reached is curve[0],
        reached,
        min(curve, key=lambda point: point.ppl),
    )


def quality_curves(rows: Sequence[Row]) -> dict[tuple[Any, ...], list[QualityPoint]]:
    """Generative perplexities over steps, one curve for each judge, η, temperature, length and text."""
    entropies = {_drawn(row): row for row in rows if row.quantity == "entropy_bits"}
    found: dict[tuple[Any, ...], list[QualityPoint]] = {}
    for row in rows:
        if row.quantity == "gen_ppl" and row.more.get("steps") is not None:
            entropy = entropies.get(_drawn(row))
            more = () if entropy is None else (entropy.value, entropy.stderr)
            found.setdefault(_curve(row), []).append(QualityPoint(row.more["steps"], row.value, row.stderr, *more))
    return found


CURVE = ("set", "eta", "temperature", "length", "judge_hash", "retokenised", "sampler_family")
"""Keys in which the points of one curve agree; `sampler_family` is missing for the default sampler."""


def _curve(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    return tuple(content.get(name) for name in CURVE)


def _drawn(row: Row) -> tuple[Any, ...]:
    content = row.as_json()
    names = ("set", "eta", "temperature", "length", "steps", "seed", "checkpoint", "sampler_label")
    return tuple(content.get(name) for name in names)


def _crossing(curve: Sequence[tuple[int, float]], level: float) -> float | None:
    """Where a curve of (steps, log value) first reaches a level, interpolated linearly in log steps."""
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
