"""What a release repeats from pyproject.toml: versions and requirements in other files."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from pages import ROOT, read

import hopflow

PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
CONDA_NAMES = {"torch": "pytorch"}


def conda_section(name: str) -> list[str]:
    text = read("packaging/conda/meta.yaml")
    return re.findall(
        r"^    - (.+)$", re.search(rf"^  {name}:\n((?:    - .+\n)+)", text, re.MULTILINE)[1], re.MULTILINE
    )


def conda_form(line: str) -> str:
    """A requirement as conda writes it: `torch>=2.10,<2.14` is `pytorch >=2.10,<2.14`."""
    need = Requirement(line)
    bounds = sorted((str(bound) for bound in need.specifier), reverse=True)
    return f"{CONDA_NAMES.get(need.name, need.name)} {','.join(bounds)}"


def test_the_conda_recipe_has_the_requirements_of_the_package():
    expected = {f"python {PROJECT['requires-python']}", *map(conda_form, PROJECT["dependencies"])}
    assert set(conda_section("run")) == expected
    assert "NOT BUILT" in read("packaging/conda/meta.yaml").splitlines()[0]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [("packaging/conda/meta.yaml", r'set version = "(.+?)"'), ("CITATION.cff", r"^version: (.+)$")],
    ids=["conda", "citation"],
)
def test_every_file_has_the_version_of_the_package(file, pattern):
    assert re.search(pattern, read(file), re.MULTILINE)[1] == hopflow.__version__


def test_the_lowest_version_of_python_is_the_same_everywhere():
    assert PROJECT["requires-python"] == ">=3.11"
    for page in ("CONTRIBUTING.md", "docs/release.md"):
        assert "3.11 to 3.14" in read(page), page


def test_every_extra_but_those_for_development_is_explained_in_the_docs():
    pages = "".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert [name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in pages] == []
