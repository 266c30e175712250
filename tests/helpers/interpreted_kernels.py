"""hopflow's Triton kernels, run by Triton's interpreter, which needs no GPU. On a GPU tests that use it are skipped."""

import os
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType

import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("kernels are tested on the GPU that is here, in test_fast_paths.py", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined, those of triton itself included
pytest.importorskip("triton", reason="there is no triton to interpret kernels")

from hopflow import kernels


def without_shape_checks(package: ModuleType, name: str) -> ModuleType:
    """A module without the shape checks of the tests: Triton reads the source of kernels."""
    spec = PathFinder.find_spec(name, package.__path__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fused_head_triton, embedding_triton, divergence_triton = (
    without_shape_checks(kernels, name) for name in ("fused_head_triton", "embedding_triton", "divergence_triton")
)
residual_norm_triton, short_attention_triton, gelu_mlp_triton = (
    without_shape_checks(kernels, name)
    for name in ("residual_norm_triton", "short_attention_triton", "gelu_mlp_triton")
)
del os.environ["TRITON_INTERPRET"]  # only the kernels of this file are interpreted


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def close(found: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.detach(), rtol=2e-5, atol=2e-5)
