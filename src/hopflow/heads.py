"""Heads: logits from features in the type of the head's weights, also under autocast."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from .linear_rows import WideHead
from .network import Network
from .vocab import Vocab

Head = Callable[[Tensor], Tensor]


class OwnHead:
    """A network's head in the type of its weights: logits in bf16 would keep three digits."""

    def __init__(self, model: Network, vocab: Vocab) -> None:
        self._model: Any = model
        self._vocab = vocab

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n Vd"]:
        parameters = getattr(self._model, "parameters", tuple)
        weights = next(iter(parameters()), features).dtype
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self._model.head(features.to(weights))
        self._vocab.check_logits(logits)
        return logits


def head_of(model: Network, vocab: Vocab) -> OwnHead | WideHead:
    """The head of a network that has one; on a GPU with bf16, a float32 linear head is made of bf16 products."""
    head: Any = getattr(model, "head", None)
    if not WideHead.suits(head):
        return OwnHead(model, vocab)
    vocab.check_outputs(head.out_features)
    return WideHead(head)
