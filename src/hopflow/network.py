"""What hopflow asks of a network.

Any callable `(xt (B, L), t (B,)) -> logits (B, L, Vd)` over data tokens will do; a mask is then never predicted. A
network that also offers `features(xt, t) -> (B, L, D)` and `head(features)` has its head run only where it is needed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Network = Callable[[Tensor, Tensor], Tensor]


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
