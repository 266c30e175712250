"""Averages over the steps: of a tensor, and of all weights of a network."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..gpu import has_kernels

LARGE = 1 << 22
"""Numbers from which a kernel of its own is worth starting."""


class Ema:
    """m ← β_t m + (1 - β_t) x with β_t = min(β, (1 + t)/(10 + t)), in float32 whatever the tensor's type. App. C [C]

    Of the embedding table it is what the transport cost sees (`ot_ema`), so that the coupling does not chase every
    update; the network itself never reads it. The ramp lets the average leave the initial table within the first
    steps: without it, β = 0.99999 still weighs the random start by a third after 100,000 steps.
    """

    def __init__(self, tensor: Float[Tensor, "..."], decay: float = 0.99999) -> None:
        if not 0 <= decay <= 1:
            raise ValueError(f"an average's decay is between 0 (follows at once) and 1 (never moves); got {decay}")
        self.decay = decay
        self.value = tensor.detach().to(torch.float32, copy=True)

    def rate(self, step: int) -> float:
        """β_t at this step, counted from 0."""
        return ramped(self.decay, step)

    @torch.no_grad()
    def update(self, tensor: Float[Tensor, "..."], step: int, sound: Float[Tensor, ""] | None = None) -> None:
        """Take in the tensor as it is after the update of this step; not at all where `sound` is 0.

        On a GPU, or with `sound`, `value` is a new tensor afterwards: who reads the old one beside the steps may go on.
        """
        if tensor.shape != self.value.shape:
            raise ValueError(f"the average is of shape {tuple(self.value.shape)}; got {tuple(tensor.shape)}")
        weight, now = 1 - self.rate(step), tensor.detach().to(self.value)
        if sound is None and not self.value.is_cuda:
            self.value.lerp_(now, weight)
            return
        value = torch.empty_like(self.value)
        _lerp(self.value, now, torch.full((), weight, device=value.device) if sound is None else weight * sound, value)
        self.value = value

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if state.keys() != {"value"}:
            raise ValueError(f"the saved average lacks value; it has {', '.join(sorted(state)[:3]) or 'nothing'}")
        value = state["value"]
        if not bool(torch.isfinite(value).all()):
            raise ValueError("the saved average is not finite")
        if value.shape != self.value.shape or value.dtype != torch.float32:
            raise ValueError(
                f"the average is float32 of shape {tuple(self.value.shape)}; the state holds {value.dtype} of shape "
                f"{tuple(value.shape)}: it belongs to another table"
            )
        self.value = value.to(self.value.device, copy=True)


class WeightEma:
    """The same average of all weights of a network, which is what is sampled and evaluated."""

    def __init__(self, model: nn.Module, decay: float = 0.9999) -> None:
        self.decay = decay
        self.weights = {name: p.detach().to(torch.float32, copy=True) for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int, sound: Float[Tensor, ""] | None = None) -> None:
        """Take in the weights as they are after the update of this step; not at all where `sound` is 0."""
        now = [p.detach().float() for p in model.parameters()]
        weight = 1 - ramped(self.decay, step)
        if sound is None:
            torch._foreach_lerp_(list(self.weights.values()), now, weight)
            return
        by = weight * sound
        for average, weights in zip(self.weights.values(), now, strict=True):
            _lerp(average, weights, by, out=average)

    def named(self, model: nn.Module) -> dict[str, Tensor]:
        """The averages, under every name that a weight of this network goes by: tied ones have two."""
        first = {id(p): name for name, p in model.named_parameters()}
        every = model.named_parameters(remove_duplicate=False)
        return {name: self.weights[first[id(p)]] for name, p in every}

    @contextmanager
    def worn(self, model: nn.Module) -> Iterator[None]:
        """The network wears the average inside, and its own weights again afterwards."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        try:
            _put(model, self.weights)
            yield
        finally:
            _put(model, own)


def _lerp(
    average: Float[Tensor, "..."], tensor: Float[Tensor, "..."], weight: Float[Tensor, ""], out: Float[Tensor, "..."]
) -> None:
    """average.lerp(tensor, weight), with a weight on the device."""
    alike = all(x.is_contiguous() for x in (average, tensor, out))
    if not (has_kernels(average) and average.numel() >= LARGE and alike):
        torch.lerp(average, tensor, weight, out=out)
        return
    from .. import triton_table

    triton_table.lerp(average, tensor, weight, out)


@torch.no_grad()
def _put(model: nn.Module, weights: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def ramped(decay: float, step: int) -> float:
    """min(β, (1 + t)/(10 + t)) at step t, counted from 0."""
    if step < 0:
        raise ValueError(f"steps are counted from 0; got {step}")
    return min(decay, (1 + step) / (10 + step))
