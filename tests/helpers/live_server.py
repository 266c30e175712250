"""A server in this process for tests, and requests to it."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import uvicorn
from saved_networks import LENGTH, LETTERS, SMALL, shaken

import hopflow as hf
from hopflow.serve.app import Application
from hopflow.serve.limits import Limits
from hopflow.serve.served_flow import ServedFlow

LIMITS = Limits(steps=64, length=64, n=4, queue=60, body=4096)


def served(name: str, source: hf.Source, seed: int = 0, predicted: tuple[float, int] | None = None) -> ServedFlow:
    """A network without training."""
    torch.manual_seed(seed)
    network = shaken(hf.Transformer(source.vocab, SMALL))
    device = torch.device("cpu")
    return ServedFlow(name, f"runs/{name}", network, hf.Flow(source), LETTERS, LENGTH, device, None, predicted)


def two_flows() -> dict[str, ServedFlow]:
    """One flow from masks, and one from data tokens."""
    return {
        "masks": served("masks", hf.MultiMask(hf.Vocab(LETTERS.size, 3))),
        "letters": served("letters", hf.Uniform(hf.Vocab(LETTERS.size))),
    }


@dataclass(frozen=True)
class LiveServer:
    """A server that is running in another thread."""

    port: int
    application: Application
    server: uvicorn.Server
    thread: threading.Thread
    failures: list[Exception]
    """What the server has reported as bugs."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def wait_until_idle(self, seconds: float = 20) -> None:
        """Wait until no request is worked on."""
        until = time.monotonic() + seconds
        while self.application.worker.count and time.monotonic() < until:
            time.sleep(0.01)
        assert self.application.worker.count == 0


@contextmanager
def running(flows: Sequence[ServedFlow], token: str | None = None, limits: Limits = LIMITS) -> Iterator[LiveServer]:
    failures: list[Exception] = []
    application = Application(flows, limits, "127.0.0.1", token, failures.append)
    server = uvicorn.Server(uvicorn.Config(application.web, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + 60
    while not server.started and time.monotonic() < until:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield LiveServer(port, application, server, thread, failures)
    finally:
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def ask(port: int, path: str, content: Any = None, headers: dict[str, str] | None = None, raw: Any = None) -> Any:
    """The status, headers and text of the answer to one request; GET if there is no body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = raw if raw is not None else None if content is None else json.dumps(content)
    kind = {} if body is None else {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, {**kind, **(headers or {})})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return SimpleNamespace(status=answer.status, headers=answer.headers, text=text)


def events(text: str) -> list[tuple[str, Any]]:
    """The server-sent events of `/api/draw`."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    return [(lines[0].removeprefix("event: "), json.loads(lines[-1].removeprefix("data: "))) for lines in blocks]


def chunks(text: str) -> list[Any]:
    """The chunks of a streamed completion."""
    *found, last = [block.removeprefix("data: ") for block in text.split("\n\n") if block]
    assert last == "[DONE]"
    return [json.loads(chunk) for chunk in found]


def message(answer: Any, status: int, param: str | None = None) -> str:
    """Assert that an answer is an error of one line."""
    assert answer.status == status, answer.text
    error = json.loads(answer.text)["error"]
    assert error["param"] == param
    assert error["message"].isprintable()
    return str(error["message"])
