"""Answers of `/v1/completions` in the shapes of OpenAI's API: complete, or as a stream of deltas."""

import json
import time
import uuid
from bisect import bisect_left
from collections.abc import AsyncIterator
from typing import Any

import torch

from ..sampling.generation import Generation
from ..sampling.stream import Frame
from .completion_request import Completion
from .errors import problem
from .page_events import hops_of, server_sent
from .worker import Item, Job

UNFINISHED = "\ufffd"
"""What a tokenizer returns for the first bytes of a character whose other bytes are in later tokens."""


class CompletionAnswer:
    """The answer to one request: texts of its choices, their reasons to finish, and counts."""

    def __init__(self, completion: Completion) -> None:
        self.completion = completion
        self.served = completion.draw.served
        self.head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.served.id,
        }

    def as_json(self, out: Generation) -> dict[str, Any]:
        """The answer as one object."""
        choices = []
        for index, row in enumerate(out.rows()):
            text, _, reason = self.text(index, row, complete=True)
            choices.append(_choice(index, text, reason or "length"))
        return {**self.head, "choices": choices, "usage": self.usage(out)}

    async def events(self, job: Job, first: Item) -> AsyncIterator[bytes]:
        """Deltas of the committed prefix of each choice; with `hops` every frame as well."""
        options = self.completion.asked.stream_options
        sent = [""] * len(self.completion.before)
        item = first
        try:
            while isinstance(item, Frame):
                if options.hops:
                    yield self._chunk([], hops=self._hops(item))
                if delta := self._delta(item, sent[item.row]):
                    sent[item.row] += delta
                    yield self._chunk([_choice(item.row, delta, None)])
                item = await job.next()
            if isinstance(item, Generation):
                for index, row in enumerate(item.rows()):
                    text, _, reason = self.text(index, row, complete=True)
                    yield self._chunk([_choice(index, text.removeprefix(sent[index]), reason or "length")])
                if options.include_usage:
                    yield self._chunk([], usage=self.usage(item))
                yield b"data: [DONE]\n\n"
            else:
                yield server_sent(None, problem(item).as_json())
        finally:
            job.cancel()

    def usage(self, out: Generation) -> dict[str, int]:
        """Tokens up to the end of each text, and the hops and network calls of all sequences."""
        drawn = sum(self.text(index, row, complete=True)[1] for index, row in enumerate(out.rows()))
        prompt = self.completion.prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
            "jumps": int(out.jumps.sum()),
            "calls": int(out.calls.sum()),
        }

    def text(
        self, index: int, row: torch.Tensor, complete: bool, count: int | None = None
    ) -> tuple[str, int, str | None]:
        """The text of the first `count` drawn tokens of a choice, their number, and "stop" if it ends before them.

        While the sequence is incomplete, a text that may still become a stop text, or change, is held back.
        """
        before, drawn = self.completion.before[index], self.completion.drawn[index]
        ids, prompt = row[before : before + (drawn if count is None else count)].tolist(), row[:before].tolist()
        end = self.served.tokenizer.end
        reason = "stop" if end in ids else None
        ids = ids[: ids.index(end)] if end in ids else ids
        text = self._after(prompt, ids)
        dropped = int(self.completion.drops_blank[index] and text.startswith(" "))
        text = text[dropped:]
        places = [place for stop in self.completion.stops if (place := text.find(stop)) >= 0]
        if places:
            return text[: min(places)], self._count(prompt, ids, dropped + min(places)), "stop"
        if not complete and reason is None:
            text = text.rstrip(UNFINISHED)
            held = max((len(stop) - 1 for stop in self.completion.stops), default=0)
            text = text[: len(text) - held] if held else text
        return text, len(ids), reason

    def _after(self, prompt: list[int], ids: list[int]) -> str:
        """The text of tokens that follow a prompt: some tokenizers drop a blank at the start of a text."""
        decode = self.served.tokenizer.decode
        start, text = decode(prompt), decode([*prompt, *ids])
        return str(text[len(start) :] if text.startswith(start) else decode(ids))

    def _count(self, prompt: list[int], ids: list[int], characters: int) -> int:
        """How many of the tokens contain the first characters of their text."""
        return bisect_left(range(len(ids)), characters, key=lambda count: len(self._after(prompt, ids[:count])))

    def _delta(self, frame: Frame, sent: str) -> str:
        """The text that a frame adds to the committed prefix: the tokens before the first one that may change."""
        index = frame.row
        before, drawn = self.completion.before[index], self.completion.drawn[index]
        final = frame.final[before : before + drawn]
        count = int(final.long().cumprod(0).sum())
        text, _, _ = self.text(index, frame.tokens, complete=False, count=count)
        return text.removeprefix(sent) if text.startswith(sent) else ""

    def _hops(self, frame: Frame) -> dict[str, Any]:
        """A frame for clients that asked for hops; the first one has the noise."""
        noise = {"x0": self.served.tokens(frame.tokens)} if not frame.redraws and not frame.calls else {}
        return {"index": frame.row, **noise, **hops_of(self.served, frame)}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return f"data: {json.dumps({**self.head, 'choices': choices, **more}, allow_nan=False)}\n\n".encode()


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
