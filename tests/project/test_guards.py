"""Static guards: no file can run code, no dependency forbids its use, no path of a developer's machine."""

import ast
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BANNED_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
BANNED_CALLS = {"torch.load", "yaml.load", "yaml.unsafe_load", "os.system", "os.popen"}
BANNED_BUILTINS = {"eval", "exec"}  # the method model.eval() is another thing
BANNED_KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}
EXCEPTIONS = {"src/hopflow/adapters/unpickle_tensors.py": ["torch.load"]}
"""The program that copies the tensors of other projects' checkpoints: a child process without network, with limited
memory, and with `weights_only=True`."""


def violations(code: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in BANNED_MODULES]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            found += [name for name in names if module.split(".")[0] in BANNED_MODULES or name in BANNED_CALLS]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in BANNED_CALLS | {
            "builtins.eval",
            "builtins.exec",
        }:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Name) and node.id in BANNED_BUILTINS:
            found.append(node.id)
        elif isinstance(node, ast.keyword) and node.arg in BANNED_KEYWORDS and ast.unparse(node.value) != "False":
            found.append(f"{node.arg}={ast.unparse(node.value)}")
    return found


def test_nothing_in_the_source_can_run_code_from_a_file():
    found = {
        file.relative_to(ROOT).as_posix(): bad
        for file in sorted((ROOT / "src").rglob("*.py"))
        if (bad := violations(file.read_text(encoding="utf-8")))
    }
    assert found == EXCEPTIONS


def test_the_one_exception_loads_weights_only_and_nothing_of_the_package_imports_it():
    (file,) = EXCEPTIONS
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    (keyword,) = [keyword for keyword in call.keywords if keyword.arg == "weights_only"]
    assert ast.unparse(keyword.value) == "True"
    importers = [
        str(other)
        for other in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(other.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom) and "unpickle_tensors" in ast.unparse(node)
    ]
    assert importers == []


@pytest.mark.parametrize(
    "code",
    [
        "torch.load('x')",
        "read = torch.load",
        "from torch import load",
        "import pickle",
        "import pickle as p",
        "def f():\n    from pickle import loads",
        "eval('1')",
        "exec('1')",
        "run = eval",
        "yaml.load(f)",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "AutoModel.from_pretrained('x', trust_remote_code=flag)",
        "subprocess.run('ls', shell=True)",
        "os.system('ls')",
        "np.load('x', allow_pickle=True)",
    ],
)
def test_the_guard_finds_calls_that_can_run_code(code):
    assert violations(code)


@pytest.mark.parametrize("code", ["model.eval()", "json.load(f)", "run(['ls'], shell=False)", "'pickle'", "evaluate()"])
def test_the_guard_accepts_calls_that_look_similar(code):
    assert not violations(code)


# MPL and LGPL ask nothing of a program that only imports them
REFUSED = re.compile(
    r"(?<!L)(?<!Lesser )\bA?GPL|(?<!Lesser )General Public License|\bNC\b|Non-?Commercial", re.IGNORECASE
)


def licence(package: metadata.Distribution) -> str:
    """What a package declares; a license pasted in full is judged by its first line."""
    fields = package.metadata
    classifiers = [line for line in fields.get_all("Classifier") or [] if line.startswith("License ::")]
    declared = fields.get("License-Expression") or " ".join(classifiers) or fields.get("License") or "unknown"
    return declared.strip().splitlines()[0]


def installed_dependencies() -> dict[str, metadata.Distribution]:
    """Core and extras and all that they pull, as far as it is installed."""
    found: dict[str, metadata.Distribution] = {}
    waiting = list(metadata.requires("hopflow") or [])
    every_extra = {extra: {"extra": extra} for extra in metadata.metadata("hopflow").get_all("Provides-Extra") or []}
    while waiting:
        need = Requirement(waiting.pop())
        name = need.name.lower().replace("_", "-")
        wanted = need.marker is None or any(need.marker.evaluate(e) for e in [{"extra": ""}, *every_extra.values()])
        if not wanted or name in found or name == "hopflow":
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        # of a dependency only what it always needs, not its own extras
        waiting += [line for line in found[name].requires or [] if "extra ==" not in line]
    return found


def test_no_dependency_has_a_licence_that_forbids_its_use():
    found = installed_dependencies()
    assert {"torch", "typer", "pot", "pytest"} <= set(found)
    assert {name: licence(package) for name, package in found.items() if REFUSED.search(licence(package))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "GPL-3.0-or-later",
        "AGPL-3.0",
        "GNU General Public License v3 (GPLv3)",
        "CC-BY-NC-4.0",
        "non-commercial",
    ],
)
def test_gpl_and_noncommercial_licenses_are_refused(text):
    assert REFUSED.search(text)


@pytest.mark.parametrize(
    "text",
    ["MIT", "Apache-2.0", "MPL-2.0", "BSD-3-Clause", "LGPL-3.0", "GNU Lesser General Public License v3"],
)
def test_permissive_licenses_and_lgpl_are_accepted(text):
    assert not REFUSED.search(text)


MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|Users)/\w")


def project_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return [file for file in files if file.is_file()]


def test_no_file_names_a_path_of_a_developers_machine():
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in project_files()
        if (match := MACHINE_PATH.search(file.read_text(encoding="utf-8", errors="ignore")))
    ]
    assert found == []


def test_the_path_test_finds_a_path():
    assert MACHINE_PATH.search("open('/" + "home/someone/data')")
    assert not MACHINE_PATH.search("https://example.org/" + "home/page")
