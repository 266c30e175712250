"""Networks: callables (xt, t) -> logits over data tokens."""

from .mlp import MLP

__all__ = ["MLP"]
