"""Kernels: one switch for every GPU kernel, CUDA graph and asynchronous copy of hopflow.

A part that is switched off, or that the device does not support, is replaced by plain PyTorch with the same result up
to rounding. Code reads `switch.current.<part>` where it chooses; inside a compiled network torch.compile guards on that
bool and compiles again when it changes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace


@dataclass(frozen=True)
class Kernels:
    """Which parts may be used. All are on by default."""

    fused_head: bool = True
    """Loss from features and a linear head: one pass over the logits, which become their gradient in place."""
    bf16x3_head: bool = True
    """The float32 head of samplers and bounds as three bf16 matrix products."""
    draw_tokens: bool = True
    """Draw tokens from the logits of that head in two passes."""
    short_attention: bool = True
    """Attention over at most 128 positions, rotary embedding included."""
    residual_norm: bool = True
    """Residual sum, dropout, gate and layer norm in one pass."""
    gelu_mlp: bool = True
    """GELU fused with the bias; recomputed in the backward pass instead of stored."""
    divergence: bool = True
    """The divergence of a row of logits, for bounds, in one pass."""
    embedding: bool = True
    """Lookup of centered bf16 embeddings for the transport cost, and the moving average of large tables."""
    cuda_graph: bool = True
    """Sampler calls of one shape replayed as a CUDA graph."""
    async_copy: bool = True
    """Copies between host and GPU through pinned memory that the host does not wait for."""


PARTS = tuple(field.name for field in fields(Kernels))
current = Kernels()
"""The parts in use by this process."""


@contextmanager
def using(**parts: bool) -> Iterator[Kernels]:
    """Switch parts on or off inside, for the complete process: `using(short_attention=False)`.

    A network reader or a captured CUDA graph keeps the choice that was current when it was made.
    """
    global current
    if unknown := parts.keys() - set(PARTS):
        raise ValueError(f"unknown kernel parts: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    before, current = current, replace(current, **parts)
    try:
        yield current
    finally:
        current = before
