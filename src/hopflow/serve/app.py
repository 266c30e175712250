"""The web application: routes of the page, of its API and of the OpenAI-like API."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.requests import ClientDisconnect

from .. import __version__
from ..sampling.generation import Generation
from ..sampling.stream import Frame
from .completion_request import CompletionRequest, completion_of
from .completions import CompletionAnswer
from .draw_request import Content, DrawRequest, SamplingFields, TokensRequest, draw_of, read_body
from .errors import RequestError, problem
from .guard import Guard
from .limits import Limits
from .page_events import page_events
from .served_flow import ServedFlow, same_noise, samplers
from .worker import Item, Job, Worker

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SLOWEST_BODY = 20.0
"""Seconds that the body of a request may take to arrive."""
NO_CHAT = "this server has no chat endpoint: its networks are base models, which continue a text. Use /v1/completions."

Handler = Callable[[Request], Awaitable[Response]]


class Application:
    """The endpoints for some flows. `web` is the ASGI application; `failed` is called with an error that is a bug."""

    def __init__(
        self,
        flows: Sequence[ServedFlow],
        limits: Limits,
        host: str,
        token: str | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.flows, self.limits = {flow.id: flow for flow in flows}, limits
        self.worker = Worker(limits.queue, failed)
        self.should_stop: Callable[[], bool] = lambda: False
        self.started = int(time.time())
        self._files = {file.name: file.read_bytes() for file in sorted(STATIC.glob("*")) if file.suffix in TYPES}
        self._offer = self._described()
        self._watchers: set[asyncio.Task[None]] = set()
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=self._lifespan)
        gets: dict[str, Handler] = {
            "/": self.index,
            "/static/{name}": self.static,
            "/health": self.health,
            "/api/flows": self.offer,
            "/v1/models": self.models,
            "/v1/models/{name}": self.model,
        }
        posts: dict[str, Handler] = {
            "/api/tokens": self.tokens,
            "/api/draw": self.draw,
            "/v1/completions": self.completions,
            "/v1/fim/completions": self.completions,
            "/v1/chat/completions": self.chat,
        }
        for path, handler in gets.items():
            app.add_route(path, handler, methods=["GET"])
        for path, handler in posts.items():
            app.add_route(path, handler, methods=["POST"])
        app.add_exception_handler(RequestError, _refused)
        app.add_exception_handler(404, _not_found)
        app.add_exception_handler(405, _not_allowed)
        app.add_exception_handler(Exception, _failed)
        self.web = Guard(app, host, token, failed)

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        self.worker.start()
        leaving = asyncio.create_task(self._stop_when_asked())
        try:
            yield
        finally:
            leaving.cancel()
            self.worker.close()

    async def _stop_when_asked(self) -> None:
        """End open answers as soon as the server is asked to end: uvicorn waits for them, and has no event for it."""
        while not self.should_stop():
            await asyncio.sleep(0.1)
        self.worker.stop()

    # the page

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    async def offer(self, request: Request) -> Response:
        return JSONResponse(self._offer)

    async def tokens(self, request: Request) -> Response:
        asked = await self._body(request, TokensRequest)
        served = self._flow(asked.flow, "flow")
        ids = served.encode(asked.text, "text")
        return JSONResponse({"tokens": [{"id": token, "text": text} for token, text in served.tokens(ids)]})

    async def draw(self, request: Request) -> Response:
        asked = await self._body(request, DrawRequest)
        draw = draw_of(asked, self._flow(asked.flow, "flow"), self.limits)
        job, first = await self._begin(request, draw.open)
        return StreamingResponse(page_events(draw, job, first), media_type="text/event-stream")

    # the API

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, "requests": self.worker.count})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model(flow) for flow in self.flows.values()]})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._model(self._flow(request.path_params["name"], "model")))

    async def completions(self, request: Request) -> Response:
        asked = await self._body(request, CompletionRequest)
        completion = completion_of(asked, self._flow(asked.model, "model"), self.limits)
        answer = CompletionAnswer(completion)
        job, item = await self._begin(request, completion.draw.open)
        if asked.stream:
            return StreamingResponse(answer.events(job, item), media_type="text/event-stream")
        try:
            while isinstance(item, Frame):
                item = await job.next()
        finally:
            job.cancel()
        if not isinstance(item, Generation):
            raise problem(item)
        return JSONResponse(answer.as_json(item))

    async def chat(self, request: Request) -> Response:
        raise RequestError(NO_CHAT, status=404)

    # what they have in common

    async def _begin(self, request: Request, open_stream: Callable[[], Any]) -> tuple[Job, Item]:
        """A job and its first item; the job ends when the client goes away."""
        job = self.worker.submit(open_stream)
        watcher = asyncio.create_task(_cancel_when_gone(request, job))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        try:
            first = await job.next()
        except BaseException:
            job.cancel()
            raise
        if not isinstance(first, Frame | Generation):
            raise problem(first)
        return job, first

    async def _body(self, request: Request, kind: type[Content]) -> Content:
        """The JSON body of a request; it is never read beyond the limit."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise RequestError("the header Content-Type must be application/json.", status=415)
        try:
            return read_body(await asyncio.wait_for(self._bytes(request), SLOWEST_BODY), kind)
        except TimeoutError:
            raise RequestError("the body of the request did not arrive in time.", status=408) from None
        except ClientDisconnect:
            raise RequestError("the connection was closed before the end of the body.") from None

    async def _bytes(self, request: Request) -> bytes:
        found = bytearray()
        async for part in request.stream():
            found += part
            if len(found) > self.limits.body:
                raise RequestError(f"the body may have at most {self.limits.body:,} bytes.", status=413)
        return bytes(found)

    def _flow(self, name: str, param: str) -> ServedFlow:
        if name not in self.flows:
            offered = ", ".join(self.flows)
            raise RequestError(f"{param} must be one of {offered}, got {name!r}.", param=param, status=404)
        return self.flows[name]

    def _file(self, name: str) -> Response:
        """One of the files that were read at the start: no path of a request is opened."""
        if name not in self._files:
            raise RequestError("there is no such file.", status=404)
        return Response(self._files[name], media_type=TYPES[Path(name).suffix])

    def _model(self, flow: ServedFlow) -> dict[str, Any]:
        return {"id": flow.id, "object": "model", "created": self.started, "owned_by": "hopflow"}

    def _described(self) -> dict[str, Any]:
        """What `/api/flows` answers."""
        flows, limits = list(self.flows.values()), self.limits
        shown = ("eta", "temperature", "top_p", "seed", "sampler")
        defaults = {name: SamplingFields.model_fields[name].default for name in shown}
        return {
            "flows": [flow.as_json(limits) for flow in flows],
            "same_noise": same_noise(flows),
            "defaults": {"steps": min(32, limits.steps), "length": min(flows[0].length, limits.length), **defaults},
            "limits": {"steps": limits.steps, "length": limits.length, "body": limits.body, "n": limits.n},
            "samplers": samplers(),
            "version": __version__,
        }


async def _cancel_when_gone(request: Request, job: Job) -> None:
    """Cancel a job when its client closes the connection, or when the answer is complete."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancel()


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return JSONResponse(error.as_json(), status_code=error.status, headers=error.headers)


async def _not_found(request: Request, error: Exception) -> Response:
    return await _refused(request, RequestError("there is no such endpoint.", status=404))


async def _not_allowed(request: Request, error: Exception) -> Response:
    return await _refused(request, RequestError("this endpoint has another method.", status=405))


async def _failed(request: Request, error: Exception) -> Response:
    return await _refused(request, RequestError(f"this is a bug in hopflow: {type(error).__name__}.", status=500))
