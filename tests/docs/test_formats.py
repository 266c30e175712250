"""The table of file formats in docs/formats.md is right and complete."""

import ast
import re
from importlib import import_module

from pages import ROOT, read

NAMES = {"FORMAT", "VERSION", "SCHEMA"}


def table() -> dict[str, int]:
    """The version of each constant in the table."""
    rows = re.findall(r"^\|.*\| `(hopflow[\w.]+)` \| (\d+) \|", read("docs/formats.md"), re.MULTILINE)
    return {name: int(version) for name, version in rows}


def constants() -> dict[str, int]:
    """Every integer constant of the package that is the version of a format."""
    found = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign):
                targets = {
                    name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)
                }
                found |= {f"{module}.{name}": getattr(import_module(module), name) for name in targets & NAMES}
    return {name: value for name, value in found.items() if type(value) is int}


def test_the_table_of_formats_has_every_version_of_the_code():
    assert table() == constants()


def test_every_file_of_the_table_is_written_by_the_package():
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    for cell in re.findall(r"^\| (.*?`.*?) \|", read("docs/formats.md"), re.MULTILINE):
        for name in re.findall(r"[\w-]+\.jsonl?", cell):
            assert f'"{name}"' in source, name
