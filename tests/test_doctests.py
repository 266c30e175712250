"""The examples in docstrings, run as written: root modules, bounds, sampling and transport."""

import doctest
import importlib
import pkgutil

import pytest

import hopflow

FOLDERS = ("bounds", "sampling", "transport")
NOT_IMPORTED = ("hopflow.__main__",)


def modules() -> list[str]:
    """The modules at the root of the package and in the folders above."""
    names = [info.name for info in pkgutil.iter_modules(hopflow.__path__, "hopflow.") if not info.ispkg]
    for folder in FOLDERS:
        package = importlib.import_module(f"hopflow.{folder}")
        names += [info.name for info in pkgutil.iter_modules(package.__path__, f"hopflow.{folder}.")]
    return [name for name in names if name not in NOT_IMPORTED]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_print_what_its_docstrings_say(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize(
    "name", ["Flow", "Euler", "Linear", "Mask", "Hamming", "Vocab", "nll_bound", "generate", "EvenGrid"]
)
def test_the_main_public_names_have_an_example(name):
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(hopflow, name), name=name)
    assert found.examples
