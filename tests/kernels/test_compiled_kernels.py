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


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no triton to compile kernels")
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    script = [sys.executable, str(ROOT / "tests" / "helpers" / "compiled_kernels.py")]
    run = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    started = {
        f"{file.stem}.{name}"
        for file in (ROOT / "src" / "hopflow" / "kernels").glob("*_triton.py")
        for name in re.findall(r"^ +(_\w+)\[", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(started) >= 12
    assert {".".join(line.split(".")[-2:]) for line in run.stdout.split()} == started


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
