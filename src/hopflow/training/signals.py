"""Signals: the first one makes a run finish its step, save and end; a second Ctrl-C ends it at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# a closed terminal, a scheduler's warning, the soft limit on CPU time; Windows has none of them
OPTIONAL_SIGNALS = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGXCPU") if hasattr(signal, name))
"""Signals that end a process by default. A program that ignores (nohup) or handles one keeps that."""


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal; it has finished its step and saved."""


class StopSignals:
    """A context in which signals are stored in `received`; afterwards the previous handlers are restored."""

    def __init__(self) -> None:
        self.received: str | None = None
        """The name of the last signal, such as "SIGTERM"; None if there was none."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        # only the main thread may install handlers
        if threading.current_thread() is threading.main_thread():
            unhandled = [number for number in OPTIONAL_SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
            for number in (*STOP_SIGNALS, *unhandled):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
