"""The plain N-step loop: every network call, every position, every step. The reference of the event-driven sampler."""

from dataclasses import dataclass

import torch
from torch import Tensor
from toys import generator

from hopflow.flow import Flow
from hopflow.sampling.filters import Filter
from hopflow.sampling.samplers import EvenGrid, Grid
from hopflow.velocities import eta_at, step_sizes, still_noise


@dataclass
class Drawn:
    tokens: Tensor
    changes: Tensor


def plain_loop(
    network, flow: Flow, *, n: int, length: int, steps: int, eta=0.0, grid: Grid | None = None, seed: int = 0, **how
) -> Drawn:
    """n sequences by steps of (F_N), with a race of float64 exponentials in place of an inverted sum."""
    narrowed, random = Filter(**how), generator(seed)
    t = (grid or EvenGrid()).times(steps)
    rest = flow.schedule.rest(t[:, None])
    r, s = step_sizes(rest[:-1], rest[:-1] - rest[1:], eta_at(eta, t[:-1])[:, None])
    xt = flow.source.sample(n, length, generator=random)
    changes = torch.zeros_like(xt)
    for step in range(steps):
        left = rest[step].expand(xt.shape)
        logits = narrowed(network(xt, t[step].expand(n)).flatten(0, 1)).unflatten(0, xt.shape)
        log_p = flow.prediction.log_probs(logits, xt, left, flow.source)
        p = torch.cat([log_p.exp(), torch.zeros(*xt.shape, flow.vocab.masks)], -1).double()
        rho, _ = still_noise(1 - left, left, flow.source.probs(xt, torch.float64))
        accept = 1 - rho * p.gather(-1, xt[..., None])[..., 0]
        u = torch.rand(xt.shape, generator=random, dtype=torch.float64)
        redrawn, proposed = u < r[step], (u >= r[step]) & (u < r[step] + s[step])
        proposed &= torch.rand(xt.shape, generator=random, dtype=torch.float64) < accept
        race = torch.empty_like(p).exponential_(generator=random)
        fresh = flow.source.sample(n, length, generator=random)
        drawn = torch.where(redrawn, (p / race).argmax(-1), torch.where(proposed, fresh, xt))
        changes += drawn != xt
        xt = drawn
    return Drawn(xt, changes)
