"""Pulse: a sign of life every few seconds, and no more than that."""

import time
from collections.abc import Callable

Progress = Callable[[str], None]


class Pulse:
    """Passes on one text every `seconds`; long work calls `beat` as often as it likes."""

    def __init__(self, progress: Progress | None, seconds: float = 2.0) -> None:
        self._progress = progress
        self._seconds = seconds
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        """Pass this on now."""
        if self._progress is not None:
            self._progress(text)
        self._last = time.monotonic()

    def beat(self, text: Callable[[], str]) -> None:
        """Pass this on if it is time; the text is only made then."""
        if time.monotonic() - self._last >= self._seconds:
            self.say(text())
