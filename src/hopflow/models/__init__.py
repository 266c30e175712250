"""Networks: callables (xt, t) -> logits over data tokens, and the autoregressive baseline."""

from .causal import Causal
from .mlp import MLP
from .sizes import SIZES, Size
from .transformer import Transformer

__all__ = ["MLP", "SIZES", "Causal", "Size", "Transformer"]
