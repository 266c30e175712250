"""Every kernel compiles for a GPU, also on a machine without one."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import hopflow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> list[list[str]]:
    """For each kernel: its module and name, and its products that exceed 32 bits in large tensors."""
    if find_spec("triton") is None:
        pytest.skip("there is no triton to compile kernels")
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_INTERPRET": "0"}
    script = [sys.executable, str(ROOT / "tests" / "helpers" / "compiled_kernels.py")]
    run = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    return [line.split("\t") for line in run.stdout.splitlines()]


def test_every_kernel_compiles_for_a_gpu(compiled):
    started = {
        f"{file.stem}.{name}"
        for file in (ROOT / "src" / "hopflow" / "kernels").glob("*_triton.py")
        for name in re.findall(r"^ +(_\w+)\[", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(started) >= 12
    assert {".".join(name.split(".")[-2:]) for name, _ in compiled} == started


def test_places_in_tensors_with_more_than_two_to_the_31_numbers_are_computed_in_64_bits(compiled):
    assert {name: products for name, products in compiled if products} == {}


def test_shapes_are_checked_in_all_modules_but_kernels():
    """Triton compiles a kernel's source; a kernel that the import hook has changed does not compile on a GPU."""
    hooks = [finder for finder in sys.meta_path if hasattr(finder, "should_instrument")]
    if not hooks:
        pytest.skip("needs beartype")
    files = Path(hopflow.__file__).parent.rglob("*.py")
    source = {file: file.read_text() for file in files if not file.name.startswith("__")}
    checked = {file for file in source if any(hook.should_instrument(_module(file)) for hook in hooks)}
    assert {file for file, text in source.items() if "@triton.jit" in text} == source.keys() - checked


def _module(file: Path) -> str:
    return ".".join(file.relative_to(Path(hopflow.__file__).parents[1]).with_suffix("").parts)
