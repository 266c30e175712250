"""The events of `/api/draw`: how one sequence hops, as server-sent events for the page."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from ..sampling.generation import Generation
from ..sampling.stream import Frame
from .draw_request import Draw
from .errors import problem
from .served_flow import ServedFlow
from .worker import Item, Job


def server_sent(name: str | None, content: Any) -> bytes:
    """One server-sent event. JSON has no line breaks, so that no text can begin another event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(content, ensure_ascii=True, allow_nan=False)}\n\n".encode()


async def page_events(draw: Draw, job: Job, first: Item) -> AsyncIterator[bytes]:
    """The events of a draw whose first item has arrived: start, frames, and end or error."""
    started, item, served = time.perf_counter(), first, draw.served
    try:
        while isinstance(item, Frame):
            yield _start(draw, item) if item.calls == item.redraws == 0 and not item.t else _frame(served, item)
            item = await job.next()
        if isinstance(item, Generation):
            yield _end(served, item, max(time.perf_counter() - started, 1e-9))
        else:
            yield server_sent("error", {"message": problem(item).message})
    finally:
        job.cancel()


def hops_of(served: ServedFlow, frame: Frame) -> dict[str, Any]:
    """A frame as JSON: its time, its hops and the counts so far."""
    columns = (frame.position, frame.before, frame.after)
    return {
        "t": frame.t,
        "hops": [
            [position, served.token(before), served.token(after)]
            for position, before, after in zip(*(column.tolist() for column in columns), strict=True)
        ],
        "jumps": frame.jumps,
        "calls": frame.calls,
        "redraws": frame.redraws,
    }


def _start(draw: Draw, frame: Frame) -> bytes:
    content = {
        "flow": draw.served.id,
        "length": len(frame.tokens),
        "x0": draw.served.tokens(frame.tokens),
        "fixed": frame.fixed.tolist(),
        "command": draw.command(),
        "python": draw.python(),
    }
    return server_sent("start", content)


def _frame(served: ServedFlow, frame: Frame) -> bytes:
    return server_sent("frame", hops_of(served, frame))


def _end(served: ServedFlow, out: Generation, seconds: float) -> bytes:
    content = {
        "tokens": served.tokens(out.tokens[0]),
        "text": out.text(served.tokenizer)[0],
        "jumps": int(out.jumps[0]),
        "calls": int(out.calls[0]),
        "seconds": seconds,
        "tokens_per_second": out.tokens.shape[1] / seconds,
    }
    return server_sent("end", content)
