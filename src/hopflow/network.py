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
    """No gradients and no dropout inside; a module is left in the mode it was found in."""
    training = isinstance(model, nn.Module) and model.training
    try:
        if isinstance(model, nn.Module):
            model.eval()
        with torch.no_grad():
            yield
    finally:
        if isinstance(model, nn.Module):
            model.train(training)
