"""Exponential moving averages of a tensor and of all weights of a network."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..kernels import switch
from ..kernels.support import has_kernels

LARGE = 1 << 22
"""Elements above which a Triton kernel is used."""


class Ema:
    """Exponential moving average of a tensor in float32: m ← β_t m + (1 - β_t) x, β_t = min(β, (1 + t)/(10 + t)).

    With `ot_ema` the transport cost reads this average of the embedding table, so that the coupling does not follow
    every update; the network itself never reads it. The ramp of β_t removes the random start within the first steps:
    with a constant β = 0.99999 it would still have a weight of one third after 100,000 steps. App. C [C]
    """

    def __init__(self, tensor: Float[Tensor, "..."], decay: float = 0.99999) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"decay must be between 0 and 1, got {decay}.")
        self.decay = decay
        self.value = tensor.detach().to(torch.float32, copy=True)

    def rate(self, step: int) -> float:
        """β_t at this step, counted from 0."""
        return ramped(self.decay, step)

    @torch.no_grad()
    def update(self, tensor: Float[Tensor, "..."], step: int, finite: Float[Tensor, ""] | None = None) -> None:
        """Add the tensor after the update of this step; no change if `finite` is 0, because the step has failed.

        On a GPU, or with `finite`, `value` becomes a new tensor: couplings may still read the old one in parallel.
        """
        if tensor.shape != self.value.shape:
            raise ValueError(
                f"the tensor must have the shape {tuple(self.value.shape)} of its average, got {tuple(tensor.shape)}."
            )
        weight, now = 1 - self.rate(step), tensor.detach().to(self.value)
        if finite is None and not self.value.is_cuda:
            self.value.lerp_(now, weight)
            return
        value = torch.empty_like(self.value)
        _lerp(
            self.value, now, torch.full((), weight, device=value.device) if finite is None else weight * finite, value
        )
        self.value = value

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state.keys() != {"value"}:
            raise ValueError(
                f"the saved average must contain the entry 'value', got {', '.join(sorted(state)[:3]) or 'nothing'}."
            )
        value = state["value"]
        if not bool(torch.isfinite(value).all()):
            raise ValueError("the saved average contains a value that is not finite.")
        if value.shape != self.value.shape or value.dtype != torch.float32:
            raise ValueError(
                f"the saved average must be float32 of shape {tuple(self.value.shape)}, got {value.dtype} of shape "
                f"{tuple(value.shape)}: it belongs to another table."
            )
        self.value = value.to(self.value.device, copy=True)


class WeightEma:
    """The same average of all weights of a network; it is what is sampled and evaluated."""

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        self.decay = decay
        self.weights = {name: p.detach().to(torch.float32, copy=True) for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int, finite: Float[Tensor, ""] | None = None) -> None:
        """Add the weights after the update of this step; no change if `finite` is 0, because the step has failed."""
        now = [p.detach().float() for p in model.parameters()]
        weight = 1 - ramped(self.decay, step)
        if finite is None:
            torch._foreach_lerp_(list(self.weights.values()), now, weight)
            return
        by = weight * finite
        for average, weights in zip(self.weights.values(), now, strict=True):
            _lerp(average, weights, by, out=average)

    def named(self, model: nn.Module) -> dict[str, Tensor]:
        """The averages by parameter name; tied weights appear under each of their names."""
        first = {id(p): name for name, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        return {name: self.weights[first[id(p)]] for name, p in every}

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """Swap the averaged weights into the network inside; afterwards its own weights are restored."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        try:
            _copy_to(model, self.weights)
            yield
        finally:
            _copy_to(model, own)


def _lerp(
    average: Float[Tensor, "..."], tensor: Float[Tensor, "..."], weight: Float[Tensor, ""], out: Float[Tensor, "..."]
) -> None:
    """average.lerp(tensor, weight) with a weight on the device, so that the host does not wait."""
    alike = all(x.is_contiguous() for x in (average, tensor, out))
    if not (
        average.is_cuda and switch.current.embedding and has_kernels(average) and average.numel() >= LARGE and alike
    ):
        torch.lerp(average, tensor, weight, out=out)
        return
    from ..kernels import embedding_triton

    embedding_triton.lerp(average, tensor, weight, out)


@torch.no_grad()
def _copy_to(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def ramped(decay: float, step: int) -> float:
    """min(β, (1 + t)/(10 + t)) at step t, counted from 0."""
    if step < 0:
        raise ValueError(f"step must be ≥ 0, got {step}.")
    return min(decay, (1 + step) / (10 + step))
