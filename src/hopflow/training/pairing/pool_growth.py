"""Growth of the worker pool: when a run starts one more OT worker."""

import time
from collections.abc import Callable

ENOUGH = 0.01
"""The share of the time that steps may wait for couplings."""
COUNT, SECONDS = 16, 2.0
"""The minimum of couplings and of seconds in one measurement."""
HELPED = 0.9
"""The last worker has helped if the waiting fell to at most this factor."""


class PoolGrowth:
    """Measures how long steps wait for couplings, and decides when to start one more worker.

    It does so while they wait more than ENOUGH of the time, up to `most` workers, as long as the last one has helped.
    Only the speed depends on it: pairs are equal to the bit for any number of workers.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.most, self._clock = most, clock
        self._last = float("inf")
        self.restart()

    def restart(self) -> None:
        """Start a new measurement, for example while workers start and couplings are solved in the trainer."""
        self._since: float | None = None
        self._waited, self._count = 0.0, 0

    def add(self, waited: float, workers: int) -> float | None:
        """Add the seconds waited for one coupling; returns the share of waiting if one more worker should start."""
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
