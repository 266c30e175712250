"""The names of a family of components, read from the source code: `--help` lists them without importing torch."""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def component_names(module: str, base: str) -> tuple[str, ...]:
    """The public subclasses of `base` that a module of hopflow defines, as typed: random_order for RandomOrder.

    >>> component_names("sampling.samplers", "Sampler")
    ('euler', 'random_order')
    """
    source = PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            bases = {parent.id for parent in node.bases if isinstance(parent, ast.Name)}
            if bases & {base, *found}:
                found[node.name] = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name.removesuffix(base)).lower()
    return tuple(word for name, word in found.items() if not name.startswith("_"))
