"""Components by the names that settings use.

A name is derived from its class (`BagOfWords` is bag_of_words, `ExactOT` is exact): a new source or cost has a name,
and is listed in the help, as soon as its class exists. Numbers, or a folder, follow a colon: `polynomial:2`,
`bound:1`, `rectified:STORE`.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from inspect import signature
from typing import Any, TypeVar, get_type_hints

from torch import Tensor

from ..costs import SequenceCost
from ..couplings import Coupling
from ..objectives import Objective
from ..predictions import Prediction
from ..runs.storage import kinds
from ..sampling import planners  # noqa: F401  # its samplers are found by name once it is imported
from ..sampling.samplers import Grid, Sampler
from ..schedules import Schedule
from ..sources import Source
from ..training.settings import nearest
from ..transport.plan_sampling import Pick

FAMILIES: dict[str, type[Any]] = {
    "source": Source,
    "schedule": Schedule,
    "prediction": Prediction,
    "objective": Objective,
    "coupling": Coupling,
    "cost": SequenceCost,
    "draw": Pick,
    "sampler": Sampler,
    "grid": Grid,
}

FITTED = ("counts", "masks")
"""Arguments of `Source.fit` that come from the text and its settings."""

Part = TypeVar("Part")


def members(family: type[Part]) -> dict[str, type[Part]]:
    """The concrete classes of a family, by name."""
    return {word(kind): kind for kind in kinds(family).values()}


def names_of(key: str) -> tuple[str, ...]:
    """The names of components that a name alone can make."""
    return tuple(name for name, kind in members(FAMILIES[key]).items() if not _needed(kind))


def names_to_type(key: str) -> tuple[str, ...]:
    """The same with the names that a folder or file must follow, such as `rectified:STORE`."""
    ends = {name: _after_colon(kind) for name, kind in members(FAMILIES[key]).items()}
    return tuple(sorted((*names_of(key), *(f"{name}:{end}" for name, end in ends.items() if end))))


def _needed(kind: type[Any]) -> list[str]:
    """The arguments without a default; a source is fitted to the text."""
    return [f.name for f in fields(kind) if f.default is MISSING and f.name not in ("vocab", "frequencies")]


def _after_colon(kind: type[Any]) -> str | None:
    """What must follow the colon of a component's name: a folder or file, in capitals, as its field declares it."""
    return next((f.metadata["typed"] for f in fields(kind) if "typed" in f.metadata), None)


def word(kind: type[Any]) -> str:
    """BagOfWords -> bag_of_words, ExactOT -> exact, EvenGrid -> even; MultiMask -> multimask."""
    if kind.__name__ == "MultiMask":
        return "multimask"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("OT").removesuffix("Grid")).lower()


def kind_of(key: str, text: str) -> type[Any]:
    """The class of a component by the value of a setting, such as source=mask."""
    known = members(FAMILIES[key])
    name = text.partition(":")[0]
    if name not in known:
        raise ValueError(f"{key}={text} is unknown; {nearest(name, list(names_to_type(key)))}")
    return known[name]


def choose(key: str, text: str, **offered: Any) -> Any:
    """The component that the value of a setting names; it takes those of the offered arguments that it has."""
    kind = kind_of(key, text)
    types = {f.name: f.type for f in fields(kind)}
    own = list(types)
    values = {name: value for name, value in offered.items() if name in own}
    free = [name for name in own if name not in values]
    if free and types[free[0]] is str and ":" in text:  # a folder, which may contain commas
        values[free.pop(0)] = text.partition(":")[2]
        text = text.partition(":")[0]
    values |= _numbers(key, text, {name: types[name] for name in free})
    try:
        return kind(**values)
    except TypeError:
        if end := _after_colon(kind):
            raise ValueError(f"{key}={text} needs a {end.lower()}: {key}={text}:{end}") from None
        raise ValueError(
            f"{key}={text} cannot be made by name, because it needs {', '.join(free)}: build the flow in Python"
        ) from None


def fit_source(text: str, counts: Tensor, masks: int | None = None) -> Source:
    """The source that a setting names, for a text with these token counts; numbers after a colon are passed to `fit`.

    >>> import torch
    >>> fit_source("mixed:0.2", torch.tensor([5, 2, 1]))
    Mixed(vocab=Vocab(data=3, masks=1), uniform=0.2)
    """
    kind: type[Source] = kind_of("source", text)
    types = get_type_hints(kind.fit)
    further = {name: types.get(name, float) for name in signature(kind.fit).parameters if name not in FITTED}
    return kind.fit(counts, masks, **_numbers("source", text, further))


def _numbers(key: str, text: str, types: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers after the colon of a setting such as polynomial:2, for arguments of these types."""
    name, _, after = text.partition(":")
    given = [number for number in after.split(",") if number]
    if len(given) > len(types):
        takes = f"{len(types)} number{'s' * (len(types) > 1)}" if types else "no number"
        raise ValueError(f"{key}={text}: {name} takes {takes} after the colon")
    found: dict[str, int | float] = {}
    for argument, number in zip(types, given, strict=False):
        try:
            found[argument] = int(number) if types[argument] is int else float(number)
        except ValueError:
            raise ValueError(f"{key}={text}: {number!r} is not a number") from None
    return found
