"""Signals: the first one asks a run to save and leave, the second Ctrl-C ends it at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

POLITE = (signal.SIGINT, signal.SIGTERM)
# a closed terminal, a scheduler's warning, the soft limit on CPU time; Windows has none of them
DEADLY = tuple(getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGXCPU") if hasattr(signal, name))
"""Signals that end a process unless it handles them. A program that ignores one (nohup) or handles it keeps that."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, finished its step and saved."""


class Stop:
    """While it is entered, signals are noted in `asked`; afterwards the previous handlers are restored."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        # only the main thread may install handlers; elsewhere whoever owns the process takes care of them
        if threading.current_thread() is threading.main_thread():
            unhandled = [number for number in DEADLY if signal.getsignal(number) == signal.SIG_DFL]
            for number in (*POLITE, *unhandled):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
