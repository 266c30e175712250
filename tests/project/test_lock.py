"""The lock file: one line with a hash for each package, and nothing without one."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lock():
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(**hashes):
    packages = [
        {
            "metadata": {"name": name, "version": "1.0"},
            "download_info": {"archive_info": {"hashes": {"sha256": sha256} if sha256 else {}}},
        }
        for name, sha256 in hashes.items()
    ]
    own = {"metadata": {"name": "hopflow", "version": "0"}, "download_info": {"dir_info": {}}}
    environment = {"python_full_version": "3.11.7", "sys_platform": "linux", "platform_machine": "x86_64"}
    return {"install": [own, *packages], "environment": environment}


def test_every_package_but_hopflow_itself_is_pinned_by_its_hash(lock):
    text = lock.locked(report(torch="b" * 64, NumPy="a" * 64))
    first, *lines = text.splitlines()
    assert first.startswith("#")
    assert "3.11.7, linux x86_64" in first
    assert lines == [f"numpy==1.0 --hash=sha256:{'a' * 64}", f"torch==1.0 --hash=sha256:{'b' * 64}"]


def test_a_package_without_a_hash_is_an_error(lock):
    with pytest.raises(SystemExit, match="no sha256 for torch"):
        lock.locked(report(torch=""))


def test_actions_of_the_workflow_are_pinned_by_version_and_it_runs_the_readmes_tests():
    lines = [line.strip().removeprefix("- ") for line in (ROOT / ".github/workflows/ci.yml").read_text().splitlines()]
    used = [line.removeprefix("uses: ") for line in lines if line.startswith("uses: ")]
    assert used
    for action in used:
        version = action.partition("@")[2].removeprefix("v").split(".")
        assert len(version) == 3, f"{action} names no exact version"
        assert all(part.isdigit() for part in version)
    assert "run: make test" in lines
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "CONTRIBUTING.md").read_text()
