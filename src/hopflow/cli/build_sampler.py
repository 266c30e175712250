"""From the settings of sample, infill, rectify and eval to a sampler and the keywords of `hf.generate`."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sampling.samplers import Sampler
    from .command_settings import EvalSettings, SampleSettings

AUTOREGRESSIVE = ("n", "length", "seed", "temperature", "cut", "device", "threads", "model")
"""The settings of sample that apply to an autoregressive network."""
PASSED = ("eta", "temperature", "top_k", "top_p", "min_p", "seed", "batch", "compile", "precision", "guidance")
"""The settings that are keywords of `generate`."""
OF_SAMPLERS = ("steps", "grid", "refresh", "per_call")
"""The settings that are fields of samplers."""


def sampling_options(settings: "SampleSettings") -> dict[str, Any]:
    """The keywords of `generate`; checked before any network is loaded."""
    from ..sampling.random_draws import categorical, gumbel32

    typed = settings.typed()
    passed = {key: typed[key] for key in PASSED if key in typed}
    draw = gumbel32 if settings.draw == "gumbel32" else categorical
    sampler = build_sampler(settings.sampler, {key: typed[key] for key in OF_SAMPLERS if key in typed})
    return {**passed, "sampler": sampler, "draw": draw}


def build_sampler(text: str, typed: Mapping[str, Any]) -> "Sampler":
    """The sampler of this name, `name` or `name:numbers`; its fields are taken from the settings that were typed.

    A new sampler needs nothing here: its class is found by name, and numbers after a colon fill its fields.
    """
    from ..recipes.components import FAMILIES, choose, members

    own = sampler_fields(text)
    for key in typed:
        if key not in own:
            owners = [name for name in members(FAMILIES["sampler"]) if key in sampler_fields(name)]
            shown = [name for name in own if name in OF_SAMPLERS]
            numbers = f"takes {', '.join(own)} after a colon, such as {text.partition(':')[0]}:4" if own else "has none"
            has = f"has {', '.join(shown)}" if shown else numbers
            raise ValueError(f"{key} is a setting of sampler={' or '.join(owners)}; sampler={text} {has}")
    sampler: Sampler = choose("sampler", text, **_with_grid(typed))
    return sampler


def sampler_fields(text: str) -> list[str]:
    """The fields of a sampler's class."""
    from ..recipes.components import kind_of

    return [field.name for field in fields(kind_of("sampler", text))]


def evaluated_sampler(settings: "EvalSettings") -> "Sampler | Callable[[int], Sampler] | None":
    """The sampler of an evaluation: None is the default, a function makes a sampler for each number of steps."""
    typed = {key: value for key, value in settings.typed("steps").items() if key in OF_SAMPLERS}
    if settings.sampler == "euler" and not typed:
        return None
    fixed = build_sampler(settings.sampler, typed)  # refuses a wrong setting before the work
    if "steps" not in sampler_fields(settings.sampler) or isinstance(typed.get("grid"), tuple):
        return fixed
    return lambda steps: build_sampler(settings.sampler, {**typed, "steps": steps})


def _with_grid(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a sampler, with the grid of times as an object."""
    from ..recipes.components import choose
    from ..sampling.samplers import GivenGrid

    grid = typed.get("grid")
    if grid is None:
        return dict(typed)
    if not isinstance(grid, tuple):
        return {**typed, "grid": choose("grid", grid)}
    steps = len(grid) - 1
    if typed.get("steps", steps) != steps:
        raise ValueError(f"the times of grid make {steps} steps, not {typed['steps']}: leave steps out")
    return {**typed, "steps": steps, "grid": GivenGrid(grid)}


def check_autoregressive(typed: Collection[str], watch: bool) -> None:
    """Refuse settings that an autoregressive network does not have."""
    extra = [key for key in typed if key not in AUTOREGRESSIVE] + (["--watch"] if watch else [])
    if extra:
        raise ValueError(
            f"{extra[0]} does not apply to an autoregressive network, which draws tokens from left to right\n"
            f"its settings are {', '.join(AUTOREGRESSIVE)}"
        )
