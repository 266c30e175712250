"""Which tests to run for a changed module: those that import it, nearest first, by the static graph of imports."""

import ast
from pathlib import Path

COMMAND_LINE = "hopflow.cli"
PAGES = ("test_pages.py", "test_notebooks.py", "test_site.py", "test_site_in_chromium.py")
"""Tests that run all pages of the documentation: minutes, for any change."""


class Imports:
    """The graph of imports between the package's modules and the test files; `hf.Name` leads to the name's module."""

    def __init__(self, root: Path):
        self.root, self.package = root, root / "src" / "hopflow"
        self.modules = {module_name(file, self.package): file for file in self.package.rglob("*.py")}
        self.homes = lazy_names(self.package / "__init__.py")
        self.edges = {name: self.imported(file, name) - {"hopflow"} for name, file in self.modules.items()}
        self.helpers = {file.stem: file for file in (root / "tests" / "helpers").glob("*.py")}
        self.tests = sorted(
            file for file in (root / "tests").rglob("test_*.py") if not {"slow", *PAGES}.intersection(file.parts)
        )
        self.direct = {file: self.by_test(file, set()) for file in self.tests}

    def imported(self, file: Path, name: str = "") -> set[str]:
        """Modules of the package that a file imports, lazily or not."""
        tree = ast.parse(file.read_bytes())
        found: set[str] = set()
        parts = name.split(".") if name else []
        if name and file.name != "__init__.py":
            parts = parts[:-1]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found |= self.known(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = parts[: len(parts) - node.level + 1] if node.level else []
                home = ".".join([*base, *(node.module.split(".") if node.module else [])])
                found |= self.known(home)
                for alias in node.names:
                    found |= self.known(f"{home}.{alias.name}")
                    if home == "hopflow" and alias.name in self.homes:
                        found.add(self.homes[alias.name])
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("hf", "hopflow")
            ):
                found |= self.known(self.homes.get(node.attr, f"hopflow.{node.attr}"))
        return found

    def known(self, name: str) -> set[str]:
        return {name} if name in self.modules else set()

    def by_test(self, file: Path, seen: set[Path]) -> set[str]:
        """What a test file imports, its helper files and conftest included."""
        if file in seen:
            return set()
        seen.add(file)
        found = self.imported(file)
        tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.arg) and node.arg == "hopflow":  # the fixture that runs a command
                found.add(COMMAND_LINE)
            for name in names:
                if name in self.helpers:
                    found |= self.by_test(self.helpers[name], seen)
        conftest = file.parent / "conftest.py"
        if file.name != "conftest.py" and conftest.exists() and file.parent != self.root / "tests":
            found |= self.by_test(conftest, seen)
        return found

    def distances(self, module: str) -> dict[str, int]:
        """How many imports lie between each module that reaches `module` and `module`."""
        found, layer, step = {module: 0}, [module], 0
        users: dict[str, set[str]] = {}
        for user, used in self.edges.items():
            for name in used:
                users.setdefault(name, set()).add(user)
        while layer:
            step += 1
            layer = sorted({user for name in layer for user in users.get(name, ())} - set(found))
            found.update(dict.fromkeys(layer, step))
        return found

    def ranked(self, path: str) -> list[tuple[int, str]]:
        """Test files that reach a file of the package, each with its distance; the module's own test file has -1."""
        module = module_name(self.package / path, self.package)
        own = {f"test_{Path(path).stem}.py", f"test_{Path(path).parent.name}.py"}
        distances = self.distances(module)
        ranks = []
        for file, direct in self.direct.items():
            reached = [distances[name] for name in direct if name in distances]
            if file.name in own:
                reached.append(-1)
            if reached:
                ranks.append((min(reached), file.relative_to(self.root).as_posix()))
        return sorted(ranks)


def module_name(file: Path, package: Path) -> str:
    parts = ("hopflow", *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def lazy_names(file: Path) -> dict[str, str]:
    """The table of public names: name -> module."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == "_HOME":
            return {name: f"hopflow.{home}" for name, home in ast.literal_eval(node.value).items()}
    return {}
