"""Choices: parts of a flow by the names people type.

The names come from the classes themselves (`BagOfWords` is bag_of_words, `ExactOT` is exact), so that a new source or
cost has its name once it exists. Numbers follow a colon: `polynomial:2`, `bound:1`.
"""

import re
from dataclasses import fields
from typing import Any, TypeVar

from ..costs import SequenceCost
from ..couplings import Coupling
from ..objectives import Objective
from ..picks import Pick
from ..predictions import Prediction
from ..schedules import Schedule
from ..sources import Source
from ..storage import kinds
from ..training.settings import nearest

FAMILIES: dict[str, type[Any]] = {
    "source": Source,
    "schedule": Schedule,
    "prediction": Prediction,
    "objective": Objective,
    "coupling": Coupling,
    "cost": SequenceCost,
    "draw": Pick,
}

Part = TypeVar("Part")


def members(family: type[Part]) -> dict[str, type[Part]]:
    """The concrete classes of a family by the words for them."""
    return {word(kind): kind for kind in kinds(family).values()}


def word(kind: type[Any]) -> str:
    """BagOfWords -> bag_of_words, ExactOT -> exact; multimask is one word in the field."""
    if kind.__name__ == "MultiMask":
        return "multimask"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("OT")).lower()


def kind_of(key: str, text: str) -> type[Any]:
    """The class that a name stands for."""
    known = members(FAMILIES[key])
    name = text.partition(":")[0]
    if name not in known:
        raise ValueError(f"{key}={text} is not known; {nearest(name, sorted(known))}")
    return known[name]


def choose(key: str, text: str, **offered: Any) -> Any:
    """The part that a name stands for; of what is offered it takes the fields it has."""
    kind = kind_of(key, text)
    own = [f.name for f in fields(kind)]
    values = {name: value for name, value in offered.items() if name in own}
    free = [name for name in own if name not in values]
    given = [number for number in text.partition(":")[2].split(",") if number]
    if len(given) > len(free):
        raise ValueError(f"{key}={text}: {text.partition(':')[0]} takes {len(free)} number(s) after the colon")
    for name, number in zip(free, given, strict=False):
        try:
            values[name] = float(number)
        except ValueError:
            raise ValueError(f"{key}={text}: {number!r} is not a number") from None
    try:
        return kind(**values)
    except TypeError:
        raise ValueError(
            f"{key}={text} needs more than a name can say: {', '.join(free)}; build it in Python instead"
        ) from None
