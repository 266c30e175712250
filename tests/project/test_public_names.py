"""The public names: lazy, complete, and the same for Python and for type checkers."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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


OLD_NAMES = {
    ("hopflow.sampling", "How"): ("hopflow.sampling.options", "SamplingOptions"),
    ("hopflow.sampling", "Unfinished"): ("hopflow.sampling.generate", "Unfinished"),
    ("hopflow.sampling", "infill"): ("hopflow.sampling.generate", "infill"),
    ("hopflow.bounds", "nll_bound"): ("hopflow.bounds.nll", "nll_bound"),
    ("hopflow.bounds", "coupled_bound"): ("hopflow.bounds.coupled", "coupled_bound"),
    ("hopflow.bounds", "precise_perplexity"): ("hopflow.bounds.precise", "precise_perplexity"),
}


@pytest.mark.parametrize("old", OLD_NAMES, ids=".".join)
def test_an_old_name_still_works_and_warns_with_the_new_one(old):
    module, name = OLD_NAMES[old]
    with pytest.warns(DeprecationWarning, match=rf"{old[0]}.{old[1]} is now {module}.{name}"):
        found = getattr(importlib.import_module(old[0]), old[1])
    assert found is getattr(importlib.import_module(module), name)


def test_an_unknown_name_of_a_package_with_old_names_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'hopflow.sampling' has no attribute 'Whatever'"):
        importlib.import_module("hopflow.sampling").Whatever  # noqa: B018


def test_old_method_names_of_predictions_still_work_and_warn():
    prediction, source = hopflow.Evidence(), hopflow.Uniform(hopflow.Vocab(3))
    with pytest.warns(DeprecationWarning, match="keeps_data_tokens"):
        assert prediction.stays(source) == prediction.keeps_data_tokens(source)
    with pytest.warns(DeprecationWarning, match="has_finite_bounds"):
        assert prediction.settles(source) == prediction.has_finite_bounds(source)


def test_the_old_method_name_of_costs_still_works_and_warns():
    x = torch.tensor([[0, 1], [1, 1]])
    with pytest.warns(DeprecationWarning, match="cost_matrix"):
        costs = hopflow.Hamming().split(x, x)
    assert costs.full().tolist() == [[0.0, 1.0], [1.0, 0.0]]
