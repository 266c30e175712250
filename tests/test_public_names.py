"""The public names: lazy, complete, and the same for Python and for type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hopflow

HEAVY = ("torch", "scipy", "numpy", "pydantic")


def test_importing_hopflow_imports_nothing_heavy():
    probe = f"import sys, hopflow; dir(hopflow); print([m for m in {HEAVY} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [*hopflow._HOME, *hopflow._SUBMODULES])
def test_every_public_name_resolves(name):
    assert getattr(hopflow, name) is not None
    assert name in dir(hopflow)


def test_type_checkers_are_shown_exactly_the_names_in_the_table():
    tree = ast.parse(Path(hopflow.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {alias.name: node.module for node in block.body for alias in node.names}
    assert shown == {**hopflow._HOME, **dict.fromkeys(hopflow._SUBMODULES)}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Vocabulary'"):
        hopflow.Vocabulary  # noqa: B018
