"""When one more OT worker is started."""

import pytest

from hopflow.training.pairing.pool_growth import COUNT, PoolGrowth


class Run:
    """Steps of a tenth of a second, a coupling each, which wait for part of it."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.growth = PoolGrowth(most, lambda: self.now)

    def asks(self, share: float, workers: int, couplings: int = 2 * COUNT) -> list[float]:
        """The shares at which one more worker was asked for."""
        found = []
        self.growth.restart()
        for _ in range(couplings):
            self.now += 0.1
            found.append(self.growth.add(share * 0.1, workers))
        return [share for share in found if share is not None]


def test_one_more_worker_is_asked_for_while_more_than_a_hundredth_of_the_time_is_waited():
    assert Run(4).asks(0.009, 1) == []
    (share,) = Run(4).asks(0.1, 1)
    assert share == pytest.approx(0.1)


def test_workers_are_added_while_they_help_and_up_to_the_limit():
    run = Run(3)
    assert len(run.asks(0.4, 1)) == 1
    assert len(run.asks(0.2, 2)) == 1
    assert run.asks(0.1, 3) == []
    other = Run(8)
    assert len(other.asks(0.4, 1)) == 1
    assert other.asks(0.39, 2) == []  # the second one did not help


def test_waiting_while_a_worker_starts_does_not_count():
    run = Run(4)
    assert run.asks(0.5, 1, couplings=COUNT) == []
    assert run.asks(0.0, 1) == []  # it restarts


def test_no_worker_is_added_before_enough_couplings_and_seconds_were_measured():
    assert Run(4).asks(0.5, 1, couplings=COUNT) == []  # the first one starts the clock
    brief = Run(4)
    brief.growth._clock = lambda: 0.0
    assert brief.asks(0.5, 1, couplings=10 * COUNT) == []
