"""Heads in the float type of their weights, for sampling and bounds: bf16 logits would keep three digits."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels.fused_head import Bf16x3Head
from .network import Network

Head = Callable[[Tensor], Tensor]


class FullPrecisionHead:
    """A network's own head, computed in the float type of its weights even inside autocast."""

    def __init__(self, model: Network, outputs: int | None) -> None:
        self._model: Any = model
        self._outputs = outputs

    def __call__(self, features: Float[Tensor, "n D"]) -> Float[Tensor, "n Vd"]:
        parameters = getattr(self._model, "parameters", tuple)
        weights = next(iter(parameters()), features).dtype
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self._model.head(features.to(weights))
        check_outputs(logits.shape[-1], self._outputs)
        return logits


def full_precision_head(model: Network, outputs: int | None) -> FullPrecisionHead | Bf16x3Head:
    """The head of a network in the type of its weights; a float32 linear head on a GPU runs as three bf16 products."""
    head: Any = getattr(model, "head", None)
    if not Bf16x3Head.supports(head):
        return FullPrecisionHead(model, outputs)
    check_outputs(head.out_features, outputs)
    return Bf16x3Head(head)


def check_outputs(count: int, outputs: int | None) -> None:
    """Reject a network that predicts anything but data tokens; None accepts every number of outputs."""
    if outputs is not None and count != outputs:
        raise ValueError(
            f"a network predicts data tokens only: it must return {outputs} logits per position, got {count}."
        )
