"""The most used settings of train, read from the source code: `hopflow train --help` does not import torch."""

import ast
from collections.abc import Iterator
from typing import Any

from .component_names import PACKAGE

MOST_USED = (
    "steps",
    "size",
    "batch",
    "length",
    "tokens",
    "source",
    "coupling",
    "ot_batch",
    "lr",
    "seed",
    "device",
    "out",
)
CHOICES = {
    "source": ("bag_of_words", "mask", "mixed", "multimask", "position_frequencies", "uniform"),
    "coupling": ("exact", "independent", "rectified", "sinkhorn"),
}
"""Names to choose from; a test compares them with the classes that exist."""
DECLARATIONS = ("training/settings.py", "recipes/recipe.py")
DEFAULTS = "recipes/text_file.py"


def most_used() -> list[tuple[str, Any, Any, str, tuple[str, ...]]]:
    """Name, default on a CPU, default on a GPU, help and choices of each; in the order of MOST_USED."""
    declared = dict(_declarations())
    cpu = _keywords("text")
    gpu = {**cpu, **_keywords("text_gpu")}
    found = []
    for name in MOST_USED:
        default, help = declared[name]
        found.append((name, cpu.get(name, default), gpu.get(name, default), help, CHOICES.get(name, ())))
    return found


def names() -> tuple[str, ...]:
    """The names of all settings of train."""
    return tuple(name for name, _ in _calls())


def _declarations() -> Iterator[tuple[str, tuple[Any, str]]]:
    """Default and help of the fields, as in `steps: int = learns(1000, "number of steps")`."""
    for name, call in _calls():
        if name in MOST_USED:
            default, help = (ast.literal_eval(argument) for argument in call.args[:2])
            yield name, (default, help)


def _calls() -> Iterator[tuple[str, ast.Call]]:
    """The name of each setting, and the call of `learns` or `runs` that declares it."""
    for file in DECLARATIONS:
        for node in ast.walk(_source(file)):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            call = node.value
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("learns", "runs"):
                yield node.target.id, call


def _keywords(function: str) -> dict[str, Any]:
    """The keywords of the call that a function returns, as in `return Recipe(steps=2000)`."""
    for node in _source(DEFAULTS).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            result = node.body[-1]
            assert isinstance(result, ast.Return)
            assert isinstance(result.value, ast.Call)
            return {key.arg: ast.literal_eval(key.value) for key in result.value.keywords if key.arg}
    raise AssertionError(f"{DEFAULTS} has no function {function}")


def _source(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))
