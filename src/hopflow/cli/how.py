"""How sequences are drawn: the settings of sample and infill, and what `generate` makes of them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from .words import at_least_one, one_of, real_number, row_length, truth, whole_number

if TYPE_CHECKING:
    from ..samplers import Sampler
    from ..sampling import How

Grid = str | tuple[float, ...]


def grid(text: str) -> Grid:
    """`even`, `cosine`, or times written out."""
    if text[:1] in "0123456789.":
        return tuple(real_number(part) for part in text.split(","))
    try:
        return one_of("even", "cosine")(text)
    except ValueError as error:
        raise ValueError(f"{error}\nor write times from 0 to 1, e.g. 0,0.3,1") from None


def _compile(text: str) -> bool | str:
    return "auto" if text == "auto" else truth(text)


READERS: dict[str, Callable[[str], Any]] = {
    "n": at_least_one,
    "length": row_length,
    "steps": whole_number,
    "seed": whole_number,
    "eta": real_number,
    "temperature": real_number,
    "top_k": whole_number,
    "top_p": real_number,
    "min_p": real_number,
    "sampler": one_of("euler", "random_order"),
    "per_call": whole_number,
    "grid": grid,
    "draw": one_of("categorical", "gumbel32"),
    "cut": truth,
    "batch": at_least_one,
    "compile": _compile,
    "device": str,
    "threads": at_least_one,
    "precision": one_of("auto", "float32", "bf16"),
}
CAUSAL = ("n", "length", "seed", "temperature", "cut", "device", "threads")
"""Of these, what a causal network knows, which draws one token after the other."""
PASSED = ("eta", "temperature", "top_k", "top_p", "min_p", "seed", "batch", "compile", "precision", "guidance")
"""What `generate` takes as it is."""


def how(chosen: Mapping[str, Any]) -> "How":
    """What `generate` is told; a setting that cannot be is refused here, before any network is read."""
    from ..categorical import categorical, gumbel32
    from ..filters import Filter

    if chosen.get("eta", 0.0) < 0:
        raise ValueError(f"eta says how much is corrected, 0 or more; got {chosen['eta']:g}")
    Filter(**{key: chosen[key] for key in ("temperature", "top_k", "top_p", "min_p") if key in chosen})
    draw = gumbel32 if chosen.get("draw") == "gumbel32" else categorical
    passed = {key: chosen[key] for key in PASSED if key in chosen}
    return cast("How", {**passed, "sampler": sampler(chosen), "draw": draw})


def sampler(chosen: Mapping[str, Any]) -> "Sampler":
    from ..grids import CosineGrid, EvenGrid
    from ..samplers import Euler, RandomOrder

    if chosen.get("sampler") == "random_order":
        if extra := [key for key in ("steps", "grid") if key in chosen]:
            raise ValueError(f"random_order runs in continuous time and has no {extra[0]}: leave it out")
        return RandomOrder(chosen.get("per_call", 1))
    if "per_call" in chosen:
        raise ValueError(
            "per_call is a setting of sampler=random_order; with Euler, steps decides how much moves at once"
        )
    times = chosen.get("grid", "even")
    if not isinstance(times, tuple):
        return Euler(chosen.get("steps", 32), CosineGrid() if times == "cosine" else EvenGrid())
    if chosen.get("steps", len(times) - 1) != len(times) - 1:
        raise ValueError(f"the times of grid make {len(times) - 1} steps, not {chosen['steps']}: leave steps out")
    return Euler.at(times)


def check_causal(chosen: Mapping[str, Any], watch: bool) -> None:
    """Refuse what means nothing to a causal network."""
    extra = [key for key in chosen if key not in CAUSAL] + (["--watch"] if watch else [])
    if extra:
        raise ValueError(
            f"{extra[0]} means nothing to a causal network, which draws one token after the other\n"
            f"its settings are {', '.join(CAUSAL)}"
        )
