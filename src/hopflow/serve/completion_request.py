"""The bodies of `/v1/completions` and `/v1/fim/completions`: prompts that are continued, or filled in the middle."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from ..sampling.generation import HOLE
from .draw_request import Body, Count, Draw, SamplingFields, check_length
from .errors import RequestError
from .limits import Limits
from .served_flow import ServedFlow

MOST_STOPS = 4
LONGEST_STOP = 256
Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Id = Annotated[int, Field(ge=0)]


class StreamOptions(Body):
    """What a stream has in addition to its text."""

    include_usage: bool = False
    hops: bool = False


class CompletionRequest(SamplingFields):
    """The fields of OpenAI's completions that are supported, and `steps`, `eta` and `sampler`."""

    model: str
    prompt: str | list[str] | list[Id] | list[list[Id]] = ""
    suffix: str = ""
    max_tokens: Count | None = None
    n: Count = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = []  # noqa: RUF012  (frozen)

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop


@dataclass(frozen=True, eq=False)
class Completion:
    """The draws of a completion; choice i has `before[i]` tokens of the prompt, then those that are drawn."""

    draw: Draw
    before: list[int]
    drawn: list[int]
    drops_blank: list[bool]
    """Whether the prompt ends with a blank that is part of the first drawn token."""
    stops: list[str]
    asked: CompletionRequest

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts and suffixes; a prompt counts once, however many choices it has."""
        fixed = [int((prompt != HOLE).sum()) for prompt in self.draw.prompts]
        return sum(fixed[:: self.asked.n])


def completion_of(request: CompletionRequest, served: ServedFlow, limits: Limits) -> Completion:
    """The prompts, the suffix and the holes between them as one draw."""
    if request.stream_options != StreamOptions() and not request.stream:
        raise RequestError("stream_options needs stream=true.", param="stream_options")
    texts = _prompts(request)
    if len(texts) * request.n > limits.n:
        raise RequestError(
            f"a request may ask for at most {limits.n} sequences, got {len(texts) * request.n}.", param="n"
        )
    suffix = served.encode(request.suffix, "suffix")
    rows, before, drawn, drops = [], [], [], []
    for text in texts:
        # as in `hopflow infill`: if a word and the blank before it are one token, the blank belongs to the hole
        drops_blank = isinstance(text, str) and served.tokenizer.attaches_blanks and text.endswith(" ")
        ids = _ids(text.removesuffix(" ") if drops_blank and isinstance(text, str) else text, served)
        room = max(1, min(served.length, limits.length) - len(ids) - len(suffix))
        count = request.max_tokens or room
        check_length(len(ids) + count + len(suffix), limits, "max_tokens")
        row = torch.tensor([*ids, *[HOLE] * count, *suffix])
        rows += [row] * request.n
        before += [len(ids)] * request.n
        drawn += [count] * request.n
        drops += [drops_blank] * request.n
    return Completion(Draw(served, rows, request.options(limits)), before, drawn, drops, request.stops, request)


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """One prompt, or a list of them; a list of numbers is one prompt."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt must not be an empty list.", param="prompt")
    numbers = [part for part in prompt if isinstance(part, int)]
    return [numbers] if numbers else [part for part in prompt if not isinstance(part, int)]


def _ids(prompt: str | list[int], served: ServedFlow) -> list[int]:
    if isinstance(prompt, str):
        return served.encode(prompt, "prompt")
    if prompt and max(prompt) >= served.flow.vocab.data:
        raise RequestError(f"token ids are from 0 to {served.flow.vocab.data - 1}, got {max(prompt)}.", param="prompt")
    return prompt
