"""What clients may ask for: JSON bodies, read and checked into prompts and sampling options."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from ..recipes.components import choose, names_of
from ..runs.named_networks import network_folder
from ..sampling.generation import HOLE
from ..sampling.prompts import prompt as parsed_prompt
from ..sampling.samplers import Sampler
from ..sampling.stream import Stream, stream
from ..system import bounded_json
from .errors import RequestError
from .limits import Limits
from .served_flow import ServedFlow

Finite = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
LARGEST_SEED = (1 << 63) - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]


class Body(BaseModel):
    """A JSON object with known fields of exact types; null means the default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Content = TypeVar("Content", bound=Body)


class SamplingFields(Body):
    """The fields that all requests to draw have in common."""

    steps: Count | None = None
    eta: Finite = 0.0
    temperature: Finite = 1.0
    top_p: Share = 1.0
    seed: Seed = 0
    sampler: str = "euler"

    def options(self, limits: Limits) -> dict[str, Any]:
        """The keywords of `hf.generate`; those with their default value are left out."""
        if self.steps is not None and self.steps > limits.steps:
            raise RequestError(f"steps must be at most {limits.steps}, got {self.steps}.", param="steps")
        shown = {"eta": 0.0, "temperature": 1.0, "top_p": 1.0}
        found = {key: getattr(self, key) for key, default in shown.items() if getattr(self, key) != default}
        return {**self._sampler(), **found, "seed": self.seed}

    def _sampler(self) -> dict[str, Any]:
        """steps=N for Euler, sampler=… for others."""
        if self.sampler not in names_of("sampler"):
            allowed = ", ".join(names_of("sampler"))
            raise RequestError(f"sampler must be one of {allowed}, got {self.sampler!r}.", param="sampler")
        if self.sampler == "euler":
            return {"steps": 32 if self.steps is None else self.steps}
        offered = {} if self.steps is None else {"steps": self.steps}
        sampler: Sampler = choose("sampler", self.sampler, **offered)
        return {"sampler": sampler}


class PromptToken(Body):
    """A token of a prompt: its id, or a text of one or more tokens."""

    id: Annotated[int, Field(ge=0)] | None = None
    text: str | None = None


class DrawRequest(SamplingFields):
    """The body of `/api/draw`."""

    flow: str
    length: Count | None = None
    prompt: list[PromptToken | None] | None = None


class TokensRequest(Body):
    """The body of `/api/tokens`."""

    flow: str
    text: str


@dataclass(frozen=True, eq=False)
class Draw:
    """Prompts and options of one request: a call of `hf.infill`."""

    served: ServedFlow
    prompts: list[Tensor]
    options: dict[str, Any]

    def open(self) -> Stream:
        """The stream of its frames; a single request is too short to compile a network for."""
        same_length = len({len(prompt) for prompt in self.prompts}) == 1
        prompts = torch.stack(self.prompts) if same_length else self.prompts
        label = self.served.label
        labels = None if label is None else torch.full((len(self.prompts),), label)
        return stream(self.served.model, self.served.flow, prompts, compile=False, labels=labels, **self.options)

    def command(self) -> str:
        """The command that draws the first of these sequences."""
        options = dict(self.options)
        sampler = options.pop("sampler", None)
        if sampler is not None:
            options["sampler"] = _typed_sampler(sampler)
        settings = " ".join(
            [
                *(f"{key}={_number(value)}" for key, value in options.items()),
                *(f"{key}={shlex.quote(str(value))}" for key, value in self.served.typed.items()),
            ]
        )
        run, prompt = shlex.quote(self.served.run), self.prompts[0]
        if bool((prompt == HOLE).all()):
            return f"hopflow sample {run} n=1 length={len(prompt)} {settings}"
        text = _prompt_text(self.served, prompt.tolist())
        if text is None:
            return "# these tokens are not those of a text: only Python can pass them"
        if re.match("[a-z_]+=", text):
            return "# hopflow may read this prompt as a setting: write it into a file, prompts=FILE, or use Python"
        if len(prompt) > self.served.length:  # infill refuses it without its length
            settings += f" length={len(prompt)}"
        if text.startswith("-"):
            return f"hopflow infill {run} {settings} -- {shlex.quote(text)}"
        return f"hopflow infill {run} {shlex.quote(text)} {settings}"

    def python(self) -> str:
        """The Python program that draws the first of these sequences."""
        options = "".join(
            f", {key}={f'hf.{value!r}' if key == 'sampler' else _number(value)}" for key, value in self.options.items()
        )
        ids, label = self.prompts[0].tolist(), self.served.label
        options += "" if label is None else f", labels=torch.tensor([{label}])"
        device = "" if self.served.device.type == "cpu" else f", device={str(self.served.device)!r}"
        module, _, network = self.served.typed.get("model", "").partition(":")
        own, model = (f"from {module} import {network}\n", f", model_class={network}") if network else ("", "")
        saved = f"saved = hf.from_pretrained({str(network_folder(self.served.run))!r}{device}{model})\n"
        show = "print(out.text(saved.tokenizer)[0])\n"
        if all(token == HOLE for token in ids):
            call = f"out = hf.generate(saved.model, saved.flow, n=1, length={len(ids)}{options})\n"
            imports = "import hopflow as hf\n" if label is None else "import torch\n\nimport hopflow as hf\n"
            return f"{imports}{own}\n{saved}{call}{show}"
        prompt = f"prompt = torch.tensor({ids})  # {HOLE} is a hole\n"
        call = f"out = hf.infill(saved.model, saved.flow, [prompt]{options})\n"
        return f"import torch\n\nimport hopflow as hf\n{own}\n{saved}{prompt}{call}{show}"


def read_body(raw: bytes, kind: type[Content]) -> Content:
    """The object in a body; RequestError says what is wrong with which field."""
    try:
        content = bounded_json.loads(raw.decode(), parse_constant=_not_a_number)
    except UnicodeDecodeError:
        raise RequestError("the body must be UTF-8.") from None
    except ValueError as error:
        raise RequestError(f"the body must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise RequestError(f"the body must be a JSON object, got {_json_kind(content)}.")
    try:
        return kind.model_validate({key: value for key, value in content.items() if value is not None})
    except ValidationError as error:
        raise _refusal(error) from None


def draw_of(request: DrawRequest, served: ServedFlow, limits: Limits) -> Draw:
    """The draw of the page: one sequence."""
    if request.prompt is None:
        length = request.length or min(served.length, limits.length)
        check_length(length, limits)
        return Draw(served, [torch.full((length,), HOLE)], request.options(limits))
    ids = [token for entry in request.prompt for token in _ids(entry, served)]
    if request.length is not None and request.length != len(ids):
        raise RequestError(f"prompt has {len(ids)} tokens, and length is {request.length}.", param="prompt")
    check_length(len(ids), limits)
    if HOLE not in ids:
        raise RequestError("prompt has no hole (null): there is nothing to draw.", param="prompt")
    return Draw(served, [torch.tensor(ids)], request.options(limits))


def check_length(length: int, limits: Limits, param: str = "length") -> None:
    """Raise RequestError for a sequence that is longer than the server allows."""
    if length > limits.length:
        raise RequestError(f"a sequence may have at most {limits.length} tokens, got {length}.", param=param)


def _ids(entry: PromptToken | None, served: ServedFlow) -> list[int]:
    if entry is None:
        return [HOLE]
    if (entry.id is None) == (entry.text is None):
        raise RequestError('a token of the prompt must be null, {"id": …} or {"text": …}.', param="prompt")
    if entry.text is not None:
        ids = served.encode(entry.text, "prompt")
        if not ids:
            raise RequestError("the text of a token must not be empty.", param="prompt")
        return ids
    assert entry.id is not None
    if entry.id >= served.flow.vocab.data:
        raise RequestError(f"token ids are from 0 to {served.flow.vocab.data - 1}, got {entry.id}.", param="prompt")
    return [entry.id]


def _prompt_text(served: ServedFlow, ids: Sequence[int]) -> str | None:
    """A prompt as `hopflow infill` takes it; None if that would have other tokens."""
    parts, start = [], 0
    while start < len(ids):
        end = start
        while end < len(ids) and (ids[end] == HOLE) == (ids[start] == HOLE):
            end += 1
        text = f"[MASK:{end - start}]" if ids[start] == HOLE else served.tokenizer.decode(list(ids[start:end]))
        parts.append(text if ids[start] == HOLE else text.replace("[MASK", "\\[MASK"))
        start = end
    try:
        text = "".join(parts)
        found = parsed_prompt(text, served.tokenizer).tolist()
    except ValueError:
        return None
    return text if found == list(ids) and text.isprintable() | ("\n" in text) else None


def _typed_sampler(sampler: Sampler) -> str:
    from ..recipes.components import word

    numbers = [str(value) for value in vars(sampler).values() if isinstance(value, int | float)]
    return ":".join([word(type(sampler)), ",".join(numbers)]).rstrip(":")


def _number(value: Any) -> str:
    return repr(value).removesuffix(".0")


def _refusal(error: ValidationError) -> RequestError:
    """The first problem in words: which field, what is wrong."""
    found = error.errors(include_url=False, include_context=False)
    # a field that may be a text or a list reports both: what is wrong within a list is more helpful
    first = next(
        (each for each in found if each["type"] != "string_type" or not isinstance(each["input"], list)), found[0]
    )
    name = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "extra_forbidden":
        if len(first["loc"]) > 1:
            name = ".".join(map(str, first["loc"]))
        return RequestError(f"{name!r} is not supported.", param=name)
    if first["type"] == "missing":
        return RequestError(f"{name} is missing.", param=name)
    got = json.dumps(first["input"], default=str)[:80]
    return RequestError(f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {got}.", param=name)


def _json_kind(value: object) -> Literal["a list", "a string", "a number", "true or false", "null"]:
    if isinstance(value, bool):
        return "true or false"
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else "a string" if isinstance(value, str) else "a number"


def _not_a_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")
