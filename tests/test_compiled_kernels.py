"""Every kernel that is started anywhere compiles for a GPU, also where there is none."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(find_spec("triton") is None, reason="there is no triton to compile kernels")
def test_every_kernel_compiles_for_a_gpu(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    script = [sys.executable, str(HERE / "compiled_kernels.py")]
    run = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    started = {
        f"{file.stem}.{name}"
        for file in (HERE.parent / "src" / "hopflow").rglob("triton_*.py")
        for name in re.findall(r"^ +(_\w+)\[", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(started) >= 12
    assert {".".join(line.split(".")[-2:]) for line in run.stdout.split()} == started
