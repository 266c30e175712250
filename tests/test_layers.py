"""One way down: a module may import from the layers below it, and within its layer without a cycle."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

# Lowest first. A module is named by its first part below hopflow: models/mlp.py is `models`.
LAYERS = (
    (
        "atomic",
        "child_process",
        "hints",
        "regular_file",
        "later",
        "storage",
        "symbols",
        "vocab",
        "schedules",
        "network",
        "reader",
        "replay",
        "noise",
        "grids",
        "filters",
        "categorical",
        "split",
        "gpu",
        "products",
        "linear_rows",
        "heads",
        "precision",
        "triton_divergence",
        "triton_rows",
        "triton_table",
    ),
    (
        "sources",
        "paths",
        "predictions",
        "scores",
        "velocities",
        "divergences",
        "costs",
        "ot",
        "sinkhorn",
        "picks",
        "x0_prediction",
        "x0_law",
    ),
    ("couplings", "objectives"),
    ("flow",),
    (
        *("draws", "controls", "estimate", "integrals", "bounds", "exact", "storage", "network_scores"),
        *("reversal", "reversed_paths", "reversed_steps"),
        *("samplers", "turns", "generation", "sampling"),
    ),
    ("models", "data", "prompts"),
    ("pretrained",),
    ("training", "evaluation"),
    ("recipes",),
    ("bench", "reproduce", "report"),
    ("demo", "doctor", "cli", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports_of(file: Path, package: Path) -> set[str]:
    """The parts of the package that a file imports, also inside functions; "" is the package itself."""
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
        found |= {target[1] if len(target) > 1 else "" for target in targets if target[0] == package.name}
    return found


def layer_errors(package: Path) -> list[str]:
    """Every module without a place, every import that goes up, and every circle within a layer."""
    errors: list[str] = []
    graph: dict[str, set[str]] = {}
    for file in sorted(package.rglob("*.py")):
        part = file.relative_to(package).with_suffix("").parts[0]
        if part == "__init__":  # the public names; imports everything, lazily
            continue
        if part not in RANK:
            errors.append(f"{part} is not listed in LAYERS")
            continue
        # what is not a module is a public name of the package, and __init__ knows every layer
        targets = imports_of(file, package) - {part, "__version__"}
        for target in sorted(targets):
            if target not in RANK:
                errors.append(f"{part} imports hopflow.{target}: import it from the module it lives in")
            elif RANK[target] > RANK[part]:
                errors.append(f"{part} imports {target}, which is above it")
        graph.setdefault(part, set()).update(targets)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        errors.append(f"imports go in a circle: {' -> '.join(error.args[1])}")
    return errors


def test_every_import_of_hopflow_goes_down():
    assert layer_errors(SOURCE / "hopflow") == []


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
    assert layer_errors(tree(models__in__mlp="from ..training.loop import train")) == [
        "models imports training, which is above it"
    ]


def test_a_module_without_a_place_is_found(tree):
    assert layer_errors(tree(utils="")) == ["utils is not listed in LAYERS"]


def test_importing_a_public_name_from_the_package_itself_is_found(tree):
    (error,) = layer_errors(tree(sources="from hopflow import Vocab"))
    assert "import it from the module it lives in" in error


def test_neighbours_may_import_each_other_only_without_a_circle(tree):
    assert layer_errors(tree(paths="from .sources import Source", sources="")) == []
    (error,) = layer_errors(tree(paths="from .sources import Source", sources="from .paths import ConvexPath"))
    assert "circle" in error
