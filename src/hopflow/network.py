"""What hopflow asks of a network.

Any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens will do; a mask is then never predicted. Where
a network also offers `features(xt, t) -> (B, L, D)` and `head(features)`, `Scores.from_network` and `Reader` need no
full logits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Network = Callable[..., Tensor]


@contextmanager
def resting(model: Network) -> Iterator[None]:
    """No gradients and no dropout inside; every part of a module is left in the mode it was found in."""
    modes = {part: part.training for part in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        for part in modes:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, training in modes.items():
            part.training = training


def clock_dtype(model: Network, plain: torch.dtype = torch.float32) -> torch.dtype:
    """The float type of the t a network is given: float64 for a float64 module, else float32, since bf16 has no clock.

    `plain` is that of a plain function; the oracle needs float64, its integrators would stumble over a rounded clock.
    """
    if not isinstance(model, nn.Module):
        return plain
    return torch.float64 if next(model.parameters(), torch.empty(0)).dtype == torch.float64 else torch.float32


def home(model: Network) -> torch.device:
    """Where a module's weights are; the CPU for a plain function."""
    if not isinstance(model, nn.Module):
        return torch.device("cpu")
    return next(model.parameters(), torch.empty(0)).device
