"""A server of the page for tests, from the standard library: each draw is one `hf.infill`, replayed as events."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

import hopflow as hf

STATIC = Path(hf.__file__).parent / "serve" / "static"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
SAMPLERS = [
    {"name": "euler", "label": "Euler", "has_steps": True, "needs_disjoint": False, "has_corrector": True},
    {
        "name": "random_order",
        "label": "Random order",
        "has_steps": False,
        "needs_disjoint": True,
        "has_corrector": False,
    },
]
OPTIONS = {"eta": float, "temperature": float, "top_p": float, "seed": int, "steps": int}


@dataclass(frozen=True)
class ServedFlow:
    """A network with its flow and tokenizer, under a name."""

    id: str
    model: Any
    flow: hf.Flow
    tokenizer: Any
    predicted_hops: float | None = None
    length: int = 64
    longest: int = 1024

    def token(self, token: int) -> list[Any]:
        return [token, self.tokenizer.decode([token]) if token < self.flow.vocab.data else ""]

    def drawn(self, request: dict[str, Any]) -> hf.Generation:
        length = request["length"]
        ids = [hf.HOLE if entry is None else entry["id"] for entry in request.get("prompt") or [None] * length]
        options = {key: kind(request[key]) for key, kind in OPTIONS.items() if key in request}
        if request.get("sampler") == "random_order":
            options["sampler"] = hf.RandomOrder()
        return hf.infill(self.model, self.flow, torch.tensor([ids]), trajectory=True, **options)


def _set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@dataclass
class PageServer:
    """Flows on a loopback port; `delay` seconds pass between frames.

    The first `busy` requests to draw are refused: the first asks for a wait of one second, the next of two, and so on.
    """

    flows: list[ServedFlow]
    delay: float = 0.0
    busy: int = 0
    token: str | None = None
    error: str | None = None
    """A message that every draw ends with after its first frame."""
    complete: bool = True
    """Whether a draw has its last event."""
    chunk: int | None = None
    """Bytes that are sent at once; one event is sent at once if it is None."""
    longest: int = 1024
    """The largest length of a sequence."""
    same_noise: bool | None = None
    """Whether the flows start from the same noise; None: if there are two."""
    refused: int = 0
    going: threading.Event = field(default_factory=_set)
    """While it is cleared, a draw stops after its first frame."""
    draws: list[dict[str, Any]] = field(default_factory=list)
    """The requests to draw that were answered."""
    address: str = ""

    @contextmanager
    def running(self) -> Iterator["PageServer"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"served": self}))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.address = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def flow(self, name: str) -> ServedFlow:
        return next(flow for flow in self.flows if flow.id == name)

    def offer(self) -> dict[str, Any]:
        default = self.flows[0].length
        defaults = {"steps": 32, "eta": 0, "temperature": 1, "top_p": 1, "length": default, "seed": 0}
        return {
            "flows": [_described(flow) for flow in self.flows],
            "same_noise": len(self.flows) > 1 if self.same_noise is None else self.same_noise,
            "defaults": {**defaults, "sampler": "euler"},
            "limits": {"steps": 1024, "length": self.longest, "body": 65536, "n": 16},
            "samplers": SAMPLERS,
            "version": hf.__version__,
        }

    def events(self, request: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events of one draw; frames without hops are left out."""
        flow = self.flow(request["flow"])
        begun = time.perf_counter()
        out = flow.drawn(request)
        seconds, tokens = time.perf_counter() - begun, out.tokens[0].tolist()
        assert out.hops is not None
        columns = (out.hops.t, out.hops.position, out.hops.before, out.hops.after)
        hops = list(zip(*(column.tolist() for column in columns), strict=True))
        start = {"flow": flow.id, "length": len(tokens), "x0": [flow.token(token) for token in out.x0[0].tolist()]}
        command = f"hopflow sample {flow.id} n=1 seed={request['seed']}"
        python = f"import hopflow as hf\n\nsaved = hf.from_pretrained({flow.id!r})"
        yield "start", {**start, "fixed": out.fixed[0].tolist(), "command": command, "python": python}
        jumps = 0
        for calls, (t, group) in enumerate(groupby(hops, key=lambda hop: hop[0]), start=1):
            moved = [[place, flow.token(before), flow.token(after)] for _, place, before, after in group]
            jumps += len(moved)
            yield "frame", {"t": t, "hops": moved, "jumps": jumps, "calls": calls, "redraws": jumps}
            if self.error:
                yield "error", {"message": self.error}
                return
        if not self.complete:
            return
        counts = {"jumps": int(out.jumps[0]), "calls": int(out.calls[0]), "seconds": seconds}
        text = flow.tokenizer.decode(tokens)
        ended = {"tokens": [flow.token(token) for token in tokens], "text": text, **counts}
        yield "end", {**ended, "tokens_per_second": len(tokens) / seconds}


def _described(flow: ServedFlow) -> dict[str, Any]:
    vocab, source = flow.flow.vocab, flow.flow.source
    return {
        "id": flow.id,
        "label": flow.id,
        "description": f"{type(source).__name__}, {type(flow.flow.coupling).__name__}",
        "vocab": {"data": vocab.data, "masks": vocab.masks},
        "disjoint": source.disjoint,
        "has_end": flow.tokenizer.end is not None,
        "length": {"default": flow.length, "max": flow.longest},
        "predicted_hops": flow.predicted_hops,
        "predicted_hops_length": None if flow.predicted_hops is None else flow.length,
        "run": flow.id,
        "device": "cpu",
    }


class _Handler(BaseHTTPRequestHandler):
    served: PageServer

    def do_GET(self) -> None:
        name = "index.html" if self.path == "/" else self.path.removeprefix("/static/")
        if self.path == "/api/flows":
            self._json(self.served.offer()) if self._allowed() else None
        elif (file := STATIC / name).parent == STATIC and file.is_file():
            self._answer(200, TYPES[file.suffix], file.read_bytes())
        else:
            self._refuse(404, f"there is no {name}")

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if self.path == "/api/tokens":
            self._tokens(content)
        elif self.served.refused < self.served.busy:
            self.served.refused += 1
            self._refuse(429, "the queue is full", {"Retry-After": str(self.served.refused)})
        else:
            self._draw(content)

    def _tokens(self, content: dict[str, Any]) -> None:
        flow = self.served.flow(content["flow"])
        try:
            ids = flow.tokenizer.encode(content["text"])
        except ValueError as error:
            self._refuse(400, str(error))
        else:
            self._json({"tokens": [{"id": int(each), "text": flow.tokenizer.decode([int(each)])} for each in ids]})

    def _draw(self, content: dict[str, Any]) -> None:
        try:
            events = list(self.served.events(content))
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self.served.draws.append(content)
        self.send_response(200)
        self._headers("text/event-stream", {})
        try:
            for name, data in events:
                if name == "end" or data.get("calls", 1) > 1:
                    self.served.going.wait(60)
                self._send(f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode())
        except OSError:
            pass  # the page is gone

    def _send(self, event: bytes) -> None:
        chunk = self.served.chunk or len(event)
        for start in range(0, len(event), chunk):
            self.wfile.write(event[start : start + chunk])
            self.wfile.flush()
            time.sleep(self.served.delay)

    def _allowed(self) -> bool:
        token = self.served.token
        if token is None or self.headers.get("Authorization") == f"Bearer {token}":
            return True
        self._refuse(401, "this server needs a token")
        return False

    def _json(self, content: Any) -> None:
        self._answer(200, "application/json", json.dumps(content).encode())

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        self._answer(status, "application/json", json.dumps({"error": error}).encode(), headers)

    def _answer(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self._headers(kind, {"Content-Length": str(len(body)), **(headers or {})})
        self.wfile.write(body)

    def _headers(self, kind: str, headers: dict[str, str]) -> None:
        for name, value in {"Content-Type": kind, "Content-Security-Policy": POLICY, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
