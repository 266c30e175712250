"""Components by the names that settings use.

A name is derived from its class (`BagOfWords` is bag_of_words, `ExactOT` is exact): a new source or cost has a name,
and is listed in the help, as soon as its class exists. Numbers follow a colon: `polynomial:2`, `bound:1`.
"""

import re
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ..costs import SequenceCost
from ..couplings import Coupling
from ..objectives import Objective
from ..predictions import Prediction
from ..runs.storage import kinds
from ..sampling.samplers import Sampler
from ..sampling.time_grids import Grid
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

Part = TypeVar("Part")


def members(family: type[Part]) -> dict[str, type[Part]]:
    """The concrete classes of a family, by name."""
    return {word(kind): kind for kind in kinds(family).values()}


def names_of(key: str) -> tuple[str, ...]:
    """The values that a setting allows, for its help: the names of components that a name alone can make."""
    known = members(FAMILIES[key])
    offered = {"vocab", "frequencies"}  # a source is fitted to the text
    needed = {name: {f.name for f in fields(kind) if f.default is MISSING} - offered for name, kind in known.items()}
    return tuple(name for name in known if not needed[name])


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
        raise ValueError(f"{key}={text} is unknown; {nearest(name, list(names_of(key)))}")
    return known[name]


def choose(key: str, text: str, **offered: Any) -> Any:
    """The component that the value of a setting names; it takes those of the offered arguments that it has."""
    kind = kind_of(key, text)
    types = {f.name: f.type for f in fields(kind)}
    own = list(types)
    values = {name: value for name, value in offered.items() if name in own}
    free = [name for name in own if name not in values]
    given = [number for number in text.partition(":")[2].split(",") if number]
    if len(given) > len(free):
        raise ValueError(f"{key}={text}: {text.partition(':')[0]} takes {len(free)} number(s) after the colon")
    for name, number in zip(free, given, strict=False):
        try:
            values[name] = int(number) if types[name] is int else float(number)
        except ValueError:
            raise ValueError(f"{key}={text}: {number!r} is not a number") from None
    try:
        return kind(**values)
    except TypeError:
        raise ValueError(
            f"{key}={text} cannot be made by name, because it needs {', '.join(free)}: build the flow in Python"
        ) from None
