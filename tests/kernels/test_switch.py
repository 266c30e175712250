"""The switch of kernel parts: what is current, what is restored, and that compiled code notices a change."""

import subprocess
import sys

import pytest

from hopflow import kernels
from hopflow.kernels import switch


def test_all_parts_are_on_by_default():
    assert all(getattr(switch.current, part) for part in switch.PARTS)
    assert len(switch.PARTS) == 10


def test_parts_are_off_inside_and_on_again_afterwards():
    with kernels.using(short_attention=False) as outer:
        assert switch.current is outer
        assert not switch.current.short_attention
        with kernels.using(gelu_mlp=False):
            assert not switch.current.gelu_mlp
            assert not switch.current.short_attention
        assert switch.current.gelu_mlp
    assert switch.current == kernels.Kernels()


def test_an_error_inside_restores_the_parts():
    with pytest.raises(RuntimeError), kernels.using(fused_head=False):
        raise RuntimeError
    assert switch.current.fused_head


def test_an_unknown_kernel_part_is_rejected():
    with (
        pytest.raises(ValueError, match="unknown kernel parts: attention; parts are fused_head"),
        kernels.using(attention=False),
    ):
        pass


COMPILED = """
import torch
from hopflow import kernels
from hopflow.kernels import switch

def answer(x):
    return x + 1 if switch.current.gelu_mlp else x - 1

compiled = torch.compile(answer, fullgraph=True, backend="eager")
x = torch.zeros(2)
assert compiled(x).tolist() == [1, 1]
with kernels.using(gelu_mlp=False):
    assert compiled(x).tolist() == [-1, -1]
with kernels.using(fused_head=False):  # another object with the same answer
    assert compiled(x).tolist() == [1, 1]
assert compiled(x).tolist() == [1, 1]
"""


@pytest.mark.slow
def test_compiled_code_follows_the_switch_without_a_graph_break():
    # in a separate process: the shape checks of the tests are Python that no graph can contain
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
