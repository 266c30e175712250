"""One way down: a module may import from the layers below it, and within its layer without a cycle."""

import ast
from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# Lowest first: folders, and the modules at the root of the package. Within a layer, imports must not form a cycle.
LAYERS = (
    ("system",),
    ("kernels", "network"),
    ("transport",),
    (
        *("vocab", "schedules", "sources", "paths", "predictions", "scores", "velocities", "divergences"),
        *("costs", "couplings", "objectives", "flow"),
    ),
    ("bounds", "sampling", "exact"),
    ("models", "data"),
    ("runs",),
    ("training", "evaluation"),
    ("recipes",),
    ("bench", "reproduce", "report", "serve", "adapters"),
    ("demo", "doctor", "cli", "__main__"),
)
FORBIDDEN = {"evaluation": "training", "report": "training"}
"""Imports that the order of the layers would allow: a run is evaluated and reported without the code that trains it."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def modules_of(package: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name below it; a folder's __init__ goes by the folder's name."""
    named = {".".join(file.relative_to(package).with_suffix("").parts): file for file in package.rglob("*.py")}
    return {name.removesuffix(".__init__"): file for name, file in sorted(named.items())}


def imports_of(file: Path, package: Path, modules: Collection[str]) -> set[str]:
    """The modules of the package that a file imports, also inside functions; a public name stands for itself."""
    here = (package.name, *file.relative_to(package).parent.parts)
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        targets: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = here[: len(here) - node.level + 1] if node.level else ()
            base = (*stem, *(node.module.split(".") if node.module else ()))
            # `from . import atomic` names a module, `from .atomic import write` a thing in one
            targets = [(*base, alias.name) for alias in node.names]
        for target in targets:
            if target[0] == package.name:
                name = ".".join(target[1:])
                parent = ".".join(target[1:-1])
                found.add(parent if name not in modules and parent in modules else name)
    return found


def layer_errors(package: Path) -> list[str]:
    """Every folder or module without a place, every import that goes up, and every cycle of modules."""
    errors: list[str] = []
    modules = modules_of(package)
    graph: dict[str, set[str]] = {}
    for name, file in modules.items():
        part = name.partition(".")[0]
        if part == "__init__":  # the public names; imports everything, lazily
            continue
        if part not in RANK:
            errors.append(f"{part} is not listed in LAYERS")
            continue
        # what is not a module is a public name of the package, and __init__ knows every layer
        targets = imports_of(file, package, modules) - {name, "__version__"}
        for target in sorted(targets):
            place = target.partition(".")[0]
            if place not in RANK:
                errors.append(f"{name} imports hopflow.{target}: import it from the module it lives in")
            elif RANK[place] > RANK[part]:
                errors.append(f"{name} imports {place}, which is above it")
            elif FORBIDDEN.get(part) == place:
                errors.append(f"{name} imports {place}, on which {part} must not depend")
        graph[name] = targets
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        errors.append(f"imports form a cycle: {' -> '.join(error.args[1])}")
    return errors


def test_every_import_of_hopflow_goes_down():
    assert layer_errors(SOURCE / "hopflow") == []


def test_no_layer_is_listed_twice_or_for_nothing():
    listed = [name for layer in LAYERS for name in layer]
    assert len(listed) == len(set(listed))
    assert [name for name in listed if not list((SOURCE / "hopflow").glob(f"{name}*"))] == []


@pytest.fixture
def tree(tmp_path):
    def build(**files: str) -> Path:
        package = tmp_path / "hopflow"
        for name, text in files.items():
            file = package / f"{name.replace('__in__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return package

    return build


def test_a_clean_tree_has_no_errors(tree):
    assert (
        layer_errors(tree(vocab="", sources="from .vocab import Vocab", models__in__mlp="from ..flow import Flow"))
        == []
    )


@pytest.mark.parametrize(
    "line",
    [
        "import hopflow.cli",
        "from hopflow.cli import main",
        "from hopflow import cli",
        "from .cli import main",
        "from . import cli",
        "def late():\n    from .cli import main",
    ],
)
def test_an_import_that_goes_up_is_found_in_every_spelling(tree, line):
    assert layer_errors(tree(vocab=line)) == ["vocab imports cli, which is above it"]


def test_an_import_that_goes_up_is_found_in_a_subpackage(tree):
    assert layer_errors(tree(models__in__mlp="from ..training.train import train")) == [
        "models.mlp imports training, which is above it"
    ]


@pytest.mark.parametrize("part", ["evaluation", "report"])
def test_evaluation_and_report_may_not_import_training(tree, part):
    (error,) = layer_errors(tree(**{f"{part}__in__rows": "from ..training.train import train"}))
    assert error == f"{part}.rows imports training, on which {part} must not depend"


def test_a_module_without_a_place_is_found(tree):
    assert layer_errors(tree(utils="")) == ["utils is not listed in LAYERS"]


def test_importing_a_public_name_from_the_package_itself_is_found(tree):
    (error,) = layer_errors(tree(sources="from hopflow import Vocab"))
    assert "import it from the module it lives in" in error


def test_neighbours_may_import_each_other_only_without_a_circle(tree):
    assert layer_errors(tree(paths="from .sources import Source", sources="")) == []
    (error,) = layer_errors(tree(paths="from .sources import Source", sources="from .paths import ConvexPath"))
    assert "cycle" in error
