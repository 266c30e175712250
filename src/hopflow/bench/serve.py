"""Speed of the server: requests per second and time to the first hops, against `generate` in the same process."""

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

from ..data.symbols import Numbers
from ..flow import Flow
from ..models import Transformer
from ..sampling.generate import generate
from ..serve.limits import Limits
from ..serve.served_flow import ServedFlow
from ..serve.server import running
from .case import SpeedCase, seconds_of, source_by_name
from .sample import sampling_transformer

ALONE, AT_ONCE = "generate, one at a time", "generate, all at once"
NAME = "bench"
TURNS = 4
"""Parts of the requests; the ways take turns part by part."""


@dataclass(frozen=True)
class ServingCase(SpeedCase):
    """Requests to draw one sequence each."""

    n: int = 64
    clients: int = 16
    steps: int = 32

    GPU_DEFAULTS = {"n": 256, "tokens": 50_257, "size": "small"}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n", "clients", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer ≥ 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class ServingSpeed:
    """One way to draw n sequences, with the same seeds. The times are from a request to its first hops."""

    source: str
    way: str
    n: int
    requests_per_s: float
    first_frame_ms: float | None = None
    """Median over the requests."""
    slowest_first_frame_ms: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(case: ServingCase, progress: Callable[[str], None] = lambda text: None) -> list[ServingSpeed]:
    """Every way on every source, in turns: other programs slow down all of them alike."""
    rows = []
    for name in case.sources:
        flow = Flow(source_by_name(name, case.tokens))
        model = sampling_transformer(case, flow)
        served = ServedFlow(NAME, NAME, model, flow, Numbers(case.tokens), case.length, case.device)
        limits = Limits(case.steps, case.length, queue=2 * case.clients)  # a request counts until its end was noticed
        timers = {
            ALONE: Timer(partial(_generate_each, case, model, flow)),
            "server, one client": Timer(partial(_request, case, clients=1)),
            f"server, {case.clients} clients": Timer(partial(_request, case, clients=case.clients)),
            AT_ONCE: Timer(partial(_generate_all, case, model, flow)),
        }
        generate(model, flow, n=1, length=case.length, steps=2, compile=False)  # warms up kernels and caches
        for seeds in _turns(case):
            for way, timer in timers.items():
                progress(f"{name}: {way}, request {seeds[0] - case.seed + 1} of {case.n}")
                with running([served], limits) as port:
                    timer.time(case, port, seeds)
        rows += [timer.speed(name, way, case.n) for way, timer in timers.items()]
    return rows


Work = Callable[[int, Sequence[int]], list[float]]
"""Draws a sequence for each seed, maybe by the server at this port; returns the times to the first hops."""


@dataclass
class Timer:
    """One way to draw sequences, and the time it has taken so far."""

    work: Work
    seconds: float = 0.0
    waited: list[float] = field(default_factory=list)

    def time(self, case: ServingCase, port: int, seeds: Sequence[int]) -> None:
        self.seconds += seconds_of(lambda: self.waited.extend(self.work(port, seeds)), case.device)

    def speed(self, source: str, way: str, n: int) -> ServingSpeed:
        times = (1000 * median(self.waited), 1000 * max(self.waited)) if self.waited else (None, None)
        return ServingSpeed(source, way, n, n / self.seconds, *times)


def _turns(case: ServingCase) -> list[range]:
    """The seeds of each turn."""
    size = max(1, -(-case.n // TURNS))
    end = case.seed + case.n
    return [range(start, min(start + size, end)) for start in range(case.seed, end, size)]


def _generate_each(case: ServingCase, model: Transformer, flow: Flow, port: int, seeds: Sequence[int]) -> list[float]:
    for seed in seeds:
        generate(model, flow, n=1, length=case.length, steps=case.steps, seed=seed, compile=False)
    return []


def _generate_all(case: ServingCase, model: Transformer, flow: Flow, port: int, seeds: Sequence[int]) -> list[float]:
    """One call of `generate`: what joining requests could reach at most."""
    generate(model, flow, n=len(seeds), length=case.length, steps=case.steps, seed=seeds[0], compile=False)
    return []


def _request(case: ServingCase, port: int, seeds: Sequence[int], clients: int) -> list[float]:
    """One request for each seed by this many clients, which are threads of this process."""
    left, waited = list(seeds), list[float]()
    failed: list[Exception] = []

    def client() -> None:
        try:
            while left:
                waited.append(_first_frame(port, case, left.pop()))
        except IndexError:  # another client took the last one
            pass
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return waited


def _first_frame(port: int, case: ServingCase, seed: int) -> float:
    """The seconds from a request to its first hops; returns when the answer is complete."""
    asked = {"flow": NAME, "length": case.length, "steps": case.steps, "seed": seed}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    started, first = time.perf_counter(), 0.0
    try:
        connection.request("POST", "/api/draw", json.dumps(asked), {"Content-Type": "application/json"})
        answer, last = connection.getresponse(), b""
        while line := answer.readline():
            if line == b"event: frame\n" and not first:
                first = time.perf_counter() - started
            if line.startswith(b"event: "):
                last = line
    finally:
        connection.close()
    if last != b"event: end\n":
        raise RuntimeError(f"the server answered with status {answer.status}, and its last event was {last!r}")
    return first


def ratios(rows: list[ServingSpeed]) -> Iterator[tuple[ServingSpeed, float]]:
    """Every row with its speed relative to `generate`, one at a time."""
    alone = {row.source: row.requests_per_s for row in rows if row.way == ALONE}
    for row in rows:
        yield row, row.requests_per_s / alone[row.source]
