"""How often tokens will hop, from pairs alone: before any training."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

from ..estimate import mean_and_error
from ..flow import Flow
from .pairs import Pairing


def predicted_jumps(
    flow: Flow, batches: Callable[[int], Int[Tensor, "n L"]], *, length: int, size: int, count: int, seed: int = 0
) -> tuple[float, float]:
    """The mean Hamming distance of pairs, from `count` OT batches of this size before any training, and its error.

    A perfect network hops as often in its few-hops sampler. Cor. 3.2 [coro1]
    """
    with Pairing(flow, batches, length=length, batch=size, seed=seed, workers=0, ahead=0) as pairing:
        pairs = [pairing.step(step) for step in range(count)]
    return mean_and_error(torch.stack([(x0 != x1).sum(1).double().mean() for x0, x1 in pairs]))
