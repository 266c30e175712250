"""The types of settings: how the text after key= becomes a value, and what an error says is allowed."""

import sys
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from .component_names import component_names

LARGEST_SEED = 2**63 - 1
WORDS: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
DEVICE = "auto, cpu, cuda, cuda:1 or mps"
SIZE = "size of the transformer: micro, tiny, mini, small or medium"
"""Help of settings that several commands have."""
REPEATED = "repeated"
"""Marks a setting that may be repeated."""


@dataclass(frozen=True)
class Allowed:
    """What a value may be, for types whose text does not follow from their range."""

    text: str
    words: tuple[str, ...] = ()
    """Words among them, for did-you-mean."""


@dataclass(frozen=True)
class NameOf:
    """A component by its name: a class of this family, with numbers after a colon (random_order:4)."""

    family: str
    modules: tuple[str, ...]
    """Those that define its classes, the family's own first."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes in hopflow's files and, once the family is imported, of the user's own classes."""
        found = component_names(self.family, *self.modules)
        loaded = sys.modules.get(f"hopflow.{self.modules[0]}")
        if loaded is None:
            return found
        from ..recipes.components import members

        return tuple(dict.fromkeys((*found, *members(getattr(loaded, self.family)))))

    def check(self, text: str) -> str:
        if text.partition(":")[0] not in self.names:
            raise ValueError(text)
        return text


def setting(default: Any, help: str, *, shown: str | None = None, **ranges: Any) -> Any:
    """A field of a command's settings; `shown` describes the default where the value itself does not."""
    return Field(default, description=help, json_schema_extra={"shown": shown}, **ranges)


def by_device(cpu: Any, gpu: Any, help: str, **ranges: Any) -> Any:
    """A field whose default depends on the device; None until the device is known."""
    extra = {"shown": f"{cpu}, on a GPU {gpu}", "cpu": cpu, "gpu": gpu}
    return Field(None, description=help, json_schema_extra=extra, **ranges)


def _integer(text: Any) -> Any:
    """Digits only: pydantic alone would also take 1_000 and 3.0."""
    if isinstance(text, str) and not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return text


def _flag(text: Any) -> Any:
    """`true` or `false` only: pydantic alone would also take yes, on and 1."""
    if isinstance(text, str) and text not in ("true", "false"):
        raise ValueError(text)
    return text


def _split(text: Any) -> Any:
    return tuple(text.split(",")) if isinstance(text, str) else text


def _flag_or_auto(text: Any) -> Any:
    return text if text == "auto" or isinstance(text, bool) else _flag(text) == "true"


GRIDS = tuple(name for name in component_names("Grid", "sampling.samplers") if name != "given")
"""Grids of times by name; a given grid is typed as its times."""


def _grid(text: Any) -> Any:
    """The name of a grid, or a tuple of times."""
    return text if text in GRIDS else tuple(float(part) for part in text.split(","))


Integer = Annotated[int, BeforeValidator(_integer)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Positive = Annotated[Integer, Field(ge=1)]
Seed = Annotated[Integer, Field(ge=0, le=LARGEST_SEED)]
Count = Annotated[Integer, Field(ge=1, le=1 << 15)]
"""A number of sequences that one batch can hold."""
ThreadCount = Annotated[Integer, Field(ge=1, le=1024)]
Length = Annotated[Integer, Field(ge=1, le=1 << 20)]
Integers = Annotated[tuple[Length, ...], BeforeValidator(_split)]
Numbers = Annotated[tuple[Annotated[Number, Field(ge=0)], ...], BeforeValidator(_split)]
Seeds = Annotated[tuple[Seed, ...], BeforeValidator(_split)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Texts = Annotated[tuple[str, ...], REPEATED]
FlagOrAuto = Annotated[
    bool | str, BeforeValidator(_flag_or_auto), Allowed("auto, true or false", ("auto", "true", "false"))
]
Times = Annotated[
    str | tuple[float, ...],
    BeforeValidator(_grid),
    Allowed(f"{', '.join(GRIDS)}, or times from 0 to 1 such as 0,0.3,1", GRIDS),
]
Precision = Literal["auto", "float32", "bf16"]
SAMPLERS = NameOf("Sampler", ("sampling.samplers", "sampling.planners"))
SamplerName = Annotated[str, AfterValidator(SAMPLERS.check), SAMPLERS]


def allowed(field: FieldInfo) -> str:
    """What a setting may be, in words: "an integer ≥ 1"."""
    return _allowed(field.annotation, field.metadata)


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words to choose from, if the setting is one of a few words."""
    kind, metadata = _unwrapped(field.annotation, field.metadata)
    for mark in metadata:
        if isinstance(mark, NameOf):
            return mark.names
        if isinstance(mark, Allowed):
            return mark.words
    return get_args(kind) if get_origin(kind) is Literal else ()


def is_repeated(field: FieldInfo) -> bool:
    """Whether a setting may be typed several times."""
    return REPEATED in field.metadata


def _unwrapped(kind: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:
    """Without Annotated and `| None`."""
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            metadata = [*metadata, *more]
        elif get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind):
            rest = [part for part in get_args(kind) if part is not NoneType]
            if len(rest) > 1:
                return kind, metadata
            (kind,) = rest
        else:
            return kind, metadata


def _allowed(kind: Any, metadata: list[Any]) -> str:
    kind, metadata = _unwrapped(kind, metadata)
    marks = [part for mark in metadata for part in (mark.metadata if isinstance(mark, FieldInfo) else [mark])]
    for mark in marks:
        if isinstance(mark, Allowed):
            return mark.text
        if isinstance(mark, NameOf):
            return one_of(mark.names)
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    if get_origin(kind) is tuple:
        each = _allowed(get_args(kind)[0], [])
        return "a file or a name" if REPEATED in marks else f"{each}, or a comma-separated list"
    return f"{WORDS[kind]}{_range(marks)}"


def one_of(words: tuple[str, ...]) -> str:
    """a, b or c."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _range(marks: list[Any]) -> str:
    """The limits in words: " ≥ 1", " from 0 to 1"."""
    limits = {name: getattr(mark, name) for mark in marks for name in ("ge", "gt", "le", "lt") if hasattr(mark, name)}
    if {"ge", "le"} <= limits.keys():
        highest = "2^63 - 1" if limits["le"] == LARGEST_SEED else limits["le"]
        return f" from {limits['ge']} to {highest}"
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return " and".join(f" {signs[name]} {limit}" for name, limit in limits.items())


class CommandSettings(BaseModel):
    """The settings of a command, read and checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def typed(self, *without: str) -> dict[str, Any]:
        """Those that were typed, in the order of the declaration; for functions with the same defaults."""
        names = [name for name in type(self).model_fields if name in self.model_fields_set]
        return {name: getattr(self, name) for name in names if name not in without}
