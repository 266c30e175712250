"""Bounds on -log p_θ(continuation | context): the context is fixed as in infilling, and the free positions are a flow.

Infilling changes the free positions only, so that it is an ordinary flow on these positions, with a network that reads
the context at every call. Every bound, every sampler and the exact oracle apply to this network as they are.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..bounds.estimate import Estimate
from ..bounds.nll import kappa_bound, nll_bound
from ..bounds.reversal import reversal_bound
from ..flow import Flow
from ..network.network import Network, NetworkCaller, device_of, has_head
from ..paths import PathSample
from ..sampling.generation import HOLE

BOUNDS = ("b0", "b1", "bk", "bn", "br")


class Conditioned:
    """A network on the holes of a prompt: the other tokens are inserted before every call.

    `condition` makes one, and keeps a network with a head one with a head.
    """

    def __init__(self, model: Network, prompt: Int[Tensor, " L"]) -> None:
        self.model, self.prompt = model, prompt
        self.holes = (prompt == HOLE).nonzero()[:, 0]
        self.time = getattr(model, "time", True)
        if hasattr(model, "vocab"):
            self.vocab = model.vocab

    def complete(self, xt: Int[Tensor, "B m"]) -> Int[Tensor, "B L"]:
        """The prompt with xt in its holes."""
        rows = self.prompt.to(xt.device).repeat(len(xt), 1)
        rows[:, self.holes.to(xt.device)] = xt
        return rows

    def at_holes(self, values: Float[Tensor, "B L D"]) -> Float[Tensor, "B m D"]:
        """The values at the holes."""
        return values[:, self.holes.to(values.device)]

    def __call__(self, xt: Int[Tensor, "B m"], t: Float[Tensor, " B"]) -> Float[Tensor, "B m Vd"]:
        return self.at_holes(self.model(self.complete(xt), t))


class ConditionedModule(nn.Module):
    """A `Conditioned` network that is a module, so that its float type, device and mode are those of the network."""

    def __init__(self, model: nn.Module, prompt: Int[Tensor, " L"]) -> None:
        super().__init__()
        self.model, self.inner = model, Conditioned(model, prompt)
        self.time, self.vocab = self.inner.time, getattr(model, "vocab", None)

    def forward(self, xt: Int[Tensor, "B m"], t: Float[Tensor, " B"]) -> Float[Tensor, "B m Vd"]:
        return self.inner(xt, t)


class ConditionedHead(ConditionedModule):
    """The same for a network with features and a head."""

    def features(self, xt: Int[Tensor, "B m"], t: Float[Tensor, " B"]) -> Float[Tensor, "B m D"]:
        """The input of the head at the holes."""
        return self.inner.at_holes(cast(Any, self.model).features(self.inner.complete(xt), t))

    @property
    def head(self) -> Any:
        """The head of the network itself."""
        return self.model.head


def condition(model: Network, prompt: Int[Tensor, " L"]) -> Network:
    """The network on the holes (HOLE) of a prompt: (xt (B, m), t) -> logits (B, m, Vd), m the number of holes."""
    if not isinstance(model, nn.Module):
        return Conditioned(model, prompt)
    return (ConditionedHead if has_head(model) else ConditionedModule)(model, prompt)


def tightest_bound(flow: Flow) -> str:
    """The bound that is tight for a perfect network of this flow: b0 from masks, b1 for independent pairs, else br."""
    if flow.prediction.keeps_data_tokens(flow.source):
        return "b0"
    return "b1" if flow.prediction.has_finite_bounds(flow.source) and not flow.couples else "br"


@dataclass(frozen=True)
class ConditionalBound:
    """A bound on -log p_θ(continuation | context) by at most `draws` network calls, with fixed random numbers.

    The estimate depends on the two texts only, not on other requests or on `batch`.
    """

    quantity: str
    """b0, b1, bk, bn or br."""
    draws: int = 128
    steps: int = 32
    """Steps of the sampler that bn and br bound; br draws max(1, draws // steps) paths."""
    seed: int = 0
    batch: int | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.quantity not in BOUNDS:
            raise ValueError(f"bound must be auto or one of {', '.join(BOUNDS)}, got {self.quantity!r}.")

    @property
    def eta(self) -> float:
        """The η of the sampler that the bound refers to."""
        return 1.0 if self.quantity == "b1" else 0.0

    @property
    def sampler(self) -> str:
        """The sampler that the bound refers to, in words."""
        how = f"{self.steps} steps" if self.quantity in ("bn", "br") else "continuous time"
        return f"infilling with η = {self.eta:g}, {how}"

    def __call__(
        self, model: Network, flow: Flow, context: Int[Tensor, " c"], continuation: Int[Tensor, " m"]
    ) -> Estimate:
        if not flow.schedule.shared:
            raise ValueError("a conditional bound needs one schedule for all positions, got a position-specific one.")
        if not flow.source.shared:
            raise ValueError(f"a conditional bound needs one p0 for all positions, got {flow.source}.")
        device, prompt = device_of(model), torch.cat([context, torch.full_like(continuation, HOLE)])
        network, x1 = condition(model, prompt), continuation[None].to(device)
        common: dict[str, Any] = {"seed": self.seed, "batch": self.batch, "precision": self.precision}
        if self.quantity == "br":
            paths = max(1, self.draws // self.steps)
            return reversal_bound(network, flow, x1, steps=self.steps, paths=paths, **common)
        if self.quantity == "bk":
            return kappa_bound(network, flow, x1, draws=self.draws, **common)
        if self.quantity == "b0" and self._can_enumerate(network, flow, len(continuation)):
            return self._enumerated(network, flow, x1)
        steps = self.steps if self.quantity == "bn" else None
        return nll_bound(network, flow, x1, eta=self.eta, steps=steps, draws=self.draws, **common)

    def _can_enumerate(self, model: Network, flow: Flow, count: int) -> bool:
        """Whether b0 is a sum over sets of masked positions, and there are at most `draws` of them."""
        one_mask = flow.source.constant and flow.prediction.keeps_data_tokens(flow.source)
        return one_mask and not getattr(model, "time", True) and 2**count - 1 <= self.draws

    def _enumerated(self, model: Network, flow: Flow, x1: Int[Tensor, "1 m"]) -> Estimate:
        """b0 without an error: the mean over orders of the NLL, position by position.  theory.md (B)"""
        count = x1.shape[1]
        sets = torch.arange(1, 2**count, device=x1.device)
        noisy = (sets[:, None] >> torch.arange(count, device=x1.device)) & 1 == 1  # (2^m - 1, m)
        x0 = flow.source.sample(1, count).to(x1.device)
        caller = NetworkCaller(model, flow.vocab.data, precision=self.precision)
        nats = torch.zeros((), dtype=torch.float64)
        with caller.inference(x1.device) as dtype:
            for some in noisy.split(self.batch or caller.batch_size(count, x1.device)):
                rows, zero = x1.expand_as(some), torch.zeros(len(some), dtype=caller.time_dtype, device=x1.device)
                xt = torch.where(some, x0, rows)
                half = torch.full_like(zero, 0.5)[:, None]
                sample = PathSample(xt, rows, xt, zero, half, torch.ones_like(half))
                log_p1 = flow.ask(caller, sample).log_p1.cpu().double()
                size = some.sum(1, keepdim=True).cpu()
                # P(m noisy) = 1/M, one of (M choose m) sets, weight M/m on each noisy position
                orders = torch.tensor([math.comb(count, int(m)) for m in size[:, 0]], dtype=torch.float64)[:, None]
                nats -= torch.where(some.cpu(), log_p1 / (orders * size), 0.0).sum()
        facts: dict[str, Any] = {"quantity": "b0", "eta": 0.0, "is_bound": True, "length": count, "dtype": dtype}
        return Estimate(
            nats=float(nats), stderr=0.0, draw_stderr=0.0, n=1, calls=len(sets), each=(float(nats),), **facts
        )
