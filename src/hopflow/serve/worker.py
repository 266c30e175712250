"""Worker: one thread that draws the sequences of all requests, one network call at a time.

Requests take turns: after one step of one request the next request is served. Each has its own `Stream`, so that its
tokens do not depend on the others. On a CPU the requests are not joined into one batch: float32 sums of a batch differ
in their last bits from those of a single sequence, and an answer would depend on who else asked.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from ..sampling.generation import Generation
from ..sampling.stream import Frame, Stream
from .errors import RequestError

AHEAD = 64
"""Frames that may wait for a slow client before its request pauses."""
STALLED = 60.0
"""Seconds after which a request whose client does not read is given up."""
PATIENCE = 0.5
"""Seconds to wait for the thread at the end; it may be in a long network call."""

Item = Frame | Generation | Exception | None
"""A frame; at the end the sequences, what went wrong, or None after a cancellation."""


class Job:
    """The draws of one request: the worker takes the steps, the event loop reads their frames."""

    def __init__(self, open_stream: Callable[[], Stream], failed: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._open, self._failed = open_stream, failed
        self._stream: Stream | None = None
        self._put, self._taken = 0, 0
        self._last_read = time.monotonic()
        self.cancelled = False

    async def next(self) -> Item:
        """The next item; nothing follows one that is not a frame."""
        item = await self._items.get()
        self._taken += 1
        self._last_read = time.monotonic()
        return item

    def cancel(self) -> None:
        """End the work before its next network call."""
        self.cancelled = True

    def waits_for_client(self) -> bool:
        """Whether enough frames are unread; gives up if they are for too long."""
        waits = self._put - self._taken >= AHEAD
        if waits and time.monotonic() - self._last_read > STALLED:
            self.cancelled = True
        return waits and not self.cancelled

    def step(self) -> bool:
        """Take one step, with at most one network call; returns whether there is more to do."""
        if self.cancelled:
            self._end(None)
            return False
        try:
            if self._stream is None:
                self._stream = self._open()
            self._send(next(self._stream))
            return True
        except StopIteration:
            assert self._stream is not None
            self._end(self._stream.result)
        except Exception as error:
            if not isinstance(error, ValueError | RequestError):  # those are the client's
                self._failed(error)
            self._end(error)
        return False

    def _end(self, item: Item) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._send(item)

    def _send(self, item: Item) -> None:
        self._put += 1
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the event loop is closed: the server has ended
            self.cancelled = True


class Worker:
    """A thread that works on up to `most` jobs in turns; `failed` is called with every error that is a bug."""

    def __init__(self, most: int, failed: Callable[[Exception], None] = lambda error: None) -> None:
        self.most, self._failed = most, failed
        self._jobs: deque[Job] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="hopflow-worker", daemon=True)

    @property
    def count(self) -> int:
        """The number of jobs that are not finished."""
        return self._count

    def start(self) -> None:
        self._thread.start()

    def submit(self, open_stream: Callable[[], Stream]) -> Job:
        """Add a job; raises RequestError (429) if there are too many already."""
        with self._changed:
            if self._closed:
                raise RequestError("the server is shutting down.", status=503)
            if self._count >= self.most:
                raise RequestError(
                    f"the server is busy with {self._count} requests: try again later.",
                    status=429,
                    headers={"Retry-After": "1"},
                )
            job = Job(open_stream, self._failed)
            self._jobs.append(job)
            self._count += 1
            self._changed.notify()
        return job

    def stop(self) -> None:
        """Cancel all jobs and accept no others; the thread ends after its current network call."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.cancel()
            self._changed.notify()

    def close(self) -> None:
        """Stop, and wait a moment for the thread."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            more = job.step()
            with self._changed:
                if more:
                    self._jobs.append(job)
                    if self._closed:
                        job.cancel()
                else:
                    self._count -= 1
            del job  # the last reference to its tensors while the thread waits

    def _next_job(self) -> Job | None:
        """The next job that can take a step; None at the end."""
        with self._changed:
            while True:
                for _ in range(len(self._jobs)):
                    job = self._jobs.popleft()
                    if not job.waits_for_client():
                        return job
                    self._jobs.append(job)
                if self._closed and not self._jobs:
                    return None
                # a paused job is looked at again after a moment, without a signal from its client
                self._changed.wait(0.02 if self._jobs else None)
