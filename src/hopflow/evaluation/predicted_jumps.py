"""The expected number of hops per sequence, computed from pairs alone, without training."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds.estimate import mean_and_error
from ..flow import Flow
from ..runs.training_pairs import TrainingPairs


def predicted_jumps(
    flow: Flow, batches: Callable[[int], Int[Tensor, "n L"]], *, length: int, size: int, count: int, seed: int = 0
) -> tuple[float, float]:
    """The mean Hamming distance of the pairs of `count` OT batches of `size` rows, and its standard error.

    `batches(b)` returns the data rows of OT batch b. A perfect network hops as often in the sampler with η = 0.
    Cor. 3.2 [coro1]
    """
    pairs, distances = TrainingPairs.of(replace(flow, coupling=flow.solved_coupling), length), []
    for index in range(count):
        x1 = batches(index).to("cpu", torch.int64)
        if x1.shape != (size, length):
            raise ValueError(f"batches({index}) must return rows of shape {(size, length)}, got {tuple(x1.shape)}.")
        x0, x1 = pairs.batch(x1, seed, index)
        distances.append((x0 != x1).sum(1).double().mean())
    return mean_and_error(torch.stack(distances))
