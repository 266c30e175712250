"""SamplingOptions: the keywords of `generate` and `infill`."""

from collections.abc import Callable
from typing import TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from ..velocities import Eta
from .samplers import Sampler


class SamplingOptions(TypedDict, total=False):
    """Keywords of `generate` and `infill`; every key has a default."""

    steps: int
    """Number of Euler steps (default 32)."""
    sampler: Sampler
    """Another sampler, or Euler with another time grid; in place of `steps`."""
    eta: Eta
    """Strength of the corrector, which replaces some tokens by new noise (default 0: off, fewest hops)."""
    temperature: float
    """Temperature of the softmax (default 1)."""
    top_k: int | None
    """Keep the k most probable tokens."""
    top_p: float | None
    """Keep the fewest tokens whose probabilities sum to at least p."""
    min_p: float | None
    """Keep tokens with at least this fraction of the largest probability."""
    labels: Int[Tensor, " n"] | None
    """The label of each sequence, for a network with labels: integers from 0, or -1 for no label."""
    guidance: float
    """Classifier-free guidance g (default 1: off): logits u + g·(c - u), c with label and prompt, u without them."""
    trajectory: bool
    """Record every hop in `Generation.hops` (default False)."""
    seed: int
    """Seed of the random numbers (default 0); the same on every device."""
    first: int
    """Index of the first sequence (default 0). Random numbers depend on seed and index: a set can be drawn in parts."""
    batch: int
    """Sequences per network call; a value that suits the device by default."""
    precision: str
    """Float type of the network up to its head: auto, float32 or bf16. `auto` is bf16 on a GPU that supports it."""
    compile: bool | str
    """True, False or auto: compile the network, once per length. `auto` compiles on a GPU if thousands of calls are
    expected. After eight lengths in one process torch stops compiling and warns."""
    draw: Callable[[Tensor, Tensor], Tensor]
    """Draws a token from log-probabilities and a uniform number (default `categorical`)."""
    device: torch.device | str
    """Device of the sequences (default: that of the network's weights)."""
    progress: Callable[[int, int], None]
    """Called with the number of finished sequences and their total."""
