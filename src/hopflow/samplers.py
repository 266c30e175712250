"""Samplers: from source to text.

A sampler says which positions may move at a step and how; `generate` owns the loop, the network calls and the
accounting.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .flow import Flow
from .network import Network, clock_dtype, home, resting
from .paths import uniform
from .velocities import Eta, eta_at, step_sizes, still_noise


@dataclass(frozen=True)
class Step:
    """One step: the network's time, 1 - k before it, and the chances of a redraw and of a corrector's proposal."""

    t: float
    rest: Float[Tensor, " #L"]
    r: Float[Tensor, " #L"]
    s: Float[Tensor, " #L"]


class Sampler(ABC):
    """What may move when."""

    @abstractmethod
    def events(self, flow: Flow, length: int, eta: Eta) -> Iterator[Step]:
        """The steps of one run, in order; the last one redraws with chance exactly 1."""


@dataclass(frozen=True)
class Euler(Sampler):
    """N equal steps of t, each with the exact redraw chance (k'-k)/(1-k).  theory.md §1, (F_N)"""

    steps: int = 32

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"Euler needs at least one step; got {self.steps}")

    def events(self, flow: Flow, length: int, eta: Eta) -> Iterator[Step]:
        flow.schedule.check_length(length)
        t = torch.arange(self.steps + 1, dtype=torch.float64) / self.steps  # n/N: an accumulated t would miss 1
        rest = flow.schedule.rest(t[:, None])  # (N+1, 1) or (N+1, L)
        r, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
        for n in range(self.steps):
            yield Step(float(t[n]), rest[n], r[n], s[n])


@dataclass(frozen=True)
class Generation:
    """Sequences, and what it took to draw them."""

    tokens: Int[Tensor, "n L"]
    x0: Int[Tensor, "n L"]
    calls: Int[Tensor, " n"]
    """Network calls of each sequence."""
    redraws: Int[Tensor, "n L"]
    """How often each position was drawn anew, from the prediction or the source."""
    changes: Int[Tensor, "n L"]
    """How often that changed the token."""
    steps: int
    eta: Eta

    @property
    def jumps(self) -> Float[Tensor, " n"]:
        """The hops of each sequence, all positions together."""
        return self.changes.sum(1).float()


def generate(
    model: Network,
    flow: Flow,
    *,
    n: int,
    length: int,
    steps: int | None = None,
    sampler: Sampler | None = None,
    eta: Eta = 0.0,
    temperature: float = 1.0,
    seed: int = 0,
    device: torch.device | str | None = None,
) -> Generation:
    """Draw n sequences, with `steps` Euler steps (32 unless said) or another sampler.

    η = 0 hops as seldom as the coupling allows; η = 1 keeps correcting and is what b1 bounds. The sequences are where
    the network's weights are, unless `device` says otherwise; a seed means the same on devices of one kind.
    """
    if n < 1 or length < 1:
        raise ValueError(f"generate needs n ≥ 1 sequences of length ≥ 1; got n={n}, length={length}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be ≥ 0 and finite (0 takes the likeliest token); got {temperature}")
    if steps is not None and sampler is not None:
        raise ValueError(f"pass steps={steps}, which means Euler({steps}), or sampler={sampler}, not both")
    sampler = sampler or Euler(32 if steps is None else steps)
    device = device or home(model)
    generator = torch.Generator(device).manual_seed(seed)
    x0 = flow.source.sample(n, length, generator=generator, device=device)
    xt, redraws, changes = x0.clone(), torch.zeros_like(x0), torch.zeros_like(x0)
    count = 0
    with resting(model):
        for step in sampler.events(flow, length, eta):
            logits = model(xt, torch.full((n,), step.t, dtype=clock_dtype(model), device=device))
            flow.vocab.check_logits(logits)
            if bool(torch.isnan(logits).any()):
                raise ValueError(f"the network gave NaN at step {count + 1}: look at its weights and its inputs")
            drawn, moved = _move(logits, xt, step, flow, temperature, generator)
            redraws += moved
            changes += drawn != xt
            xt = drawn
            count += 1
    calls = torch.full((n,), count, device=xt.device)
    return Generation(xt, x0, calls, redraws, changes, count, eta)


def _move(
    logits: Float[Tensor, "n L Vd"],
    xt: Int[Tensor, "n L"],
    step: Step,
    flow: Flow,
    temperature: float,
    generator: torch.Generator,
) -> tuple[Int[Tensor, "n L"], Bool[Tensor, "n L"]]:
    """One step of (F_N): a redraw with chance r, a corrector's proposal with chance s, accepted with 1 - ρP(xt)."""
    u = uniform(xt, generator)
    r, s, rest = (value.to(u) for value in (step.r, step.s, step.rest.expand(xt.shape)))
    redrawn, proposed = u < r, (u >= r) & (u < r + s)
    drawn, moved = xt.clone(), redrawn.clone()
    if bool(redrawn.any()):
        log_p = flow.prediction.log_probs(logits[redrawn], xt[redrawn], rest[redrawn], flow.source)
        drawn[redrawn] = categorical(log_p, temperature, generator)
    if bool(proposed.any()):
        rows, left = xt[proposed], rest[proposed]
        log_p = flow.prediction.log_probs(logits[proposed], rows, left, flow.source)
        at = rows.clamp(max=flow.vocab.data - 1)[:, None]
        pt = torch.where(flow.vocab.is_data(rows), log_p.gather(1, at)[:, 0].exp(), 0.0)
        rho, _ = still_noise(1 - left, left, flow.source.probs(rows, left.dtype))
        accept = uniform(pt, generator) < 1 - rho * pt
        fresh = flow.source.sample(len(rows), generator=generator, device=xt.device)
        drawn[proposed] = torch.where(accept, fresh, rows)
        moved[proposed] = accept
    return drawn, moved


def categorical(
    log_p: Float[Tensor, "n V"], temperature: float, generator: torch.Generator | None
) -> Int[Tensor, " n"]:
    """A draw per row by a race of exponentials in float64: float32 noise would cut the tail of 50k tokens."""
    if temperature == 0:
        return log_p.argmax(1)
    wide = torch.float32 if log_p.device.type == "mps" else torch.float64
    p = (log_p.to(wide) / temperature).softmax(1)
    device = generator.device if generator is not None else log_p.device
    race = torch.empty(p.shape, dtype=wide, device=device).exponential_(generator=generator)
    return (p / race.to(p.device)).argmax(1)
