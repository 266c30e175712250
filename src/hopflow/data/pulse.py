"""Pulse: a sign of life every few seconds, and no more than that."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

    @contextmanager
    def meanwhile(self, text: Callable[[], str]) -> Iterator[None]:
        """Beat from a separate thread, while a library works that does not call back; without one it stays silent."""
        done, start = threading.Event(), time.monotonic()

        def keep_beating() -> None:
            while not done.wait(self._seconds / 8):  # often enough that no silence is much longer than `seconds`
                self.beat(lambda: f"{text()} ({time.monotonic() - start:.0f} s)")

        thread = threading.Thread(target=keep_beating, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit on threads: no reason to end the work itself
            yield
            return
        try:
            yield
        finally:
            done.set()
            thread.join()
