"""Growth: when a run starts one more OT worker."""

import time
from collections.abc import Callable

ENOUGH = 0.01
"""The part of the time that steps may wait for couplings."""
COUNT, SECONDS = 16, 2.0
"""Couplings and seconds that are looked at together, at least."""
HELPED = 0.9
"""What is left of the waiting, at most, for another worker to have helped."""


class Growth:
    """Adds up how long steps wait for couplings, and says when one more worker should be started.

    That is while they wait more than ENOUGH of the time, up to `most` workers, as long as the last one has helped.
    Only the speed depends on it: pairs are the same bits for any number of workers.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most, self._clock = most, clock
        self._last = float("inf")
        self.restart()

    def restart(self) -> None:
        """Forget what was added up; while workers start, couplings are solved in place."""
        self._since: float | None = None
        self._waited, self._count = 0.0, 0

    def note(self, waited: float, workers: int) -> float | None:
        """After each coupling, with the seconds waited for it: the share of waiting if one more worker should start."""
        now = self._clock()
        if self._since is None:
            self._since = now
            return None
        self._waited, self._count = self._waited + waited, self._count + 1
        if self._count < COUNT or now - self._since < SECONDS:
            return None
        share = self._waited / (now - self._since)
        self.restart()
        if share <= ENOUGH or workers >= self.most or share > HELPED * self._last:
            return None
        self._last = share
        return share
