"""Progress messages of long work, at most one every few seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ProgressCallback = Callable[[str], None]


class Progress:
    """Passes progress messages to a callback; `update` may be called at any rate.

    Without a callback nothing is reported.
    """

    def __init__(self, callback: ProgressCallback | None, seconds: float = 2.0) -> None:
        self._callback = callback
        self._seconds = seconds
        self._last = time.monotonic()

    def write(self, text: str) -> None:
        """Report this message now."""
        if self._callback is not None:
            self._callback(text)
        self._last = time.monotonic()

    def update(self, text: Callable[[], str]) -> None:
        """Report `text()` if the last message is at least `seconds` old; otherwise `text` is not called."""
        if time.monotonic() - self._last >= self._seconds:
            self.write(text())

    @contextmanager
    def keep_updating(self, text: Callable[[], str]) -> Iterator[None]:
        """Update from a separate thread during the `with` block, for a library call that reports nothing itself.

        If no thread can be started, the block runs without messages.
        """
        done, start = threading.Event(), time.monotonic()

        def repeat() -> None:
            while not done.wait(self._seconds / 8):  # a pause between messages is at most 1/8 longer than `seconds`
                self.update(lambda: f"{text()} ({time.monotonic() - start:.0f} s)")

        thread = threading.Thread(target=repeat, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit on threads; the work itself can go on
            yield
            return
        try:
            yield
        finally:
            done.set()
            thread.join()
