"""Networks: callables (xt, t) -> logits over data tokens, and the autoregressive baseline."""

from .causal import Causal
from .convolutional import Convolutional
from .dit import DiT
from .mlp import MLP
from .model import Model
from .sizes import SIZES, Size
from .transformer import Transformer

__all__ = ["MLP", "SIZES", "Causal", "Convolutional", "DiT", "Model", "Size", "Transformer"]
