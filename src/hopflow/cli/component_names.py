"""The names of a family of components, read from the source code: `--help` lists them without importing torch."""

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def component_names(base: str, *modules: str) -> tuple[str, ...]:
    """The concrete public subclasses of `base` that modules of hopflow define, as typed: random_order for RandomOrder.

    A later module may subclass the classes of those before it.

    >>> component_names("Sampler", "sampling.samplers")
    ('euler', 'random_order')
    """
    found: dict[str, str] = {}
    abstract = {base}
    for module in modules:
        source = PACKAGE.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {parent.id for parent in node.bases if isinstance(parent, ast.Name)}
            if bases & {*abstract, *found}:
                if node.name.startswith("_") or _has_abstract_method(node):
                    abstract.add(node.name)
                else:
                    found[node.name] = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name.removesuffix(base)).lower()
    return tuple(found.values())


def _has_abstract_method(node: ast.ClassDef) -> bool:
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    marks = [mark for method in methods for mark in method.decorator_list]
    return any(isinstance(mark, ast.Name) and mark.id == "abstractmethod" for mark in marks)
