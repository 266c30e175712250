"""A copy of the package that notes which of its blocks run: `tools/mutate.py map` runs the tests on it.

A block is the body of a function, a branch, a loop or a handler. It is named FILE:LINE by its first statement. The
first time that a block runs in a test, one line is appended to the file $MUTATE_REACHED, also by child processes.
"""

import ast
import shutil
from functools import cache
from pathlib import Path

import mutate_sites

NOTES = '''"""Blocks that ran."""
import os
seen = set()
def reached(name):
    seen.add(name)
    if path := os.environ.get("MUTATE_REACHED"):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, name.encode() + b"\\n")
        os.close(file)
'''
BODIES = ("body", "orelse", "finalbody")


def copy(package: Path, target: Path) -> None:
    """Write the package with a note at the start of every block of a function."""
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "reached_blocks.py").write_text(NOTES)
    for file in sorted(target.rglob("*.py")):
        path = file.relative_to(target).as_posix()
        if path in ("__init__.py", "reached_blocks.py") or mutate_sites.left_out(path):
            continue
        tree = ast.parse(file.read_bytes())
        noted = False
        for body in blocks(tree):
            place = is_docstring(body[0]) and len(body) > 1
            note = f"if {named(path, body)!r} not in _seen: _reached({named(path, body)!r})"
            body.insert(int(place), ast.parse(note).body[0])
            noted = True
        if noted:
            first = ast.parse("from hopflow.reached_blocks import reached as _reached, seen as _seen").body[0]
            start = next(i for i, node in enumerate(tree.body) if not is_docstring(node) and not is_future(node))
            tree.body.insert(start, first)
            file.write_text(ast.unparse(ast.fix_missing_locations(tree)))


def named(path: str, body: list[ast.stmt]) -> str:
    return f"{path}:{body[0].lineno}"


def blocks(tree: ast.AST, inside: bool = False) -> list[list[ast.stmt]]:
    """The blocks of all functions, outer ones first; a kernel has none."""
    found = []
    for node in ast.iter_child_nodes(tree):
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if function and any("jit" in ast.unparse(mark) for mark in node.decorator_list):
            continue
        within = function or (inside and not isinstance(node, ast.ClassDef))
        if within and not isinstance(node, ast.IfExp | ast.Lambda):
            found += [body for name in BODIES if isinstance(body := getattr(node, name, None), list) and body]
        found += blocks(node, within)
    return found


@cache
def block_lines(file: Path) -> list[tuple[int, int]]:
    """First and last line of every block of a file."""
    return [(body[0].lineno, body[-1].end_lineno or 0) for body in blocks(ast.parse(file.read_bytes()))]


def block_of(package: Path, site: mutate_sites.Site) -> str | None:
    """The innermost block around a change, or the one that takes a changed default; None for code run at import."""
    lines = block_lines(package / site.path)
    around = [block for block in lines if block[0] <= site.line <= block[1]]
    if around:
        return f"{site.path}:{max(around, key=lambda block: (block[0], -block[1]))[0]}"
    later = [first for first, _ in lines if first > site.line]
    is_function = site.function.split(".")[-1].lstrip("_")[:1].islower()
    return f"{site.path}:{min(later)}" if is_function and later else None


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
