"""A plain Euler loop as common libraries write it: a velocity over the full vocabulary, at every position and step.

It is the baseline of `hopflow bench sample` and nothing else: it supports the plain prediction only, and with a
schedule that is not linear its jump probabilities leave noise behind.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..flow import Flow
from ..network.network import Network, time_dtype


def plain_euler(
    model: Network, flow: Flow, xt: Int[Tensor, "B L"], steps: int, which: Sequence[int], generator: torch.Generator
) -> Int[Tensor, "B L"]:
    """The steps `which` of `steps` equal ones: velocity k̇/(1-k)·(P - δ_xt), jump probability 1 - e^(-h·outflow)."""
    vocab = flow.vocab
    for step in which:
        t = torch.full((len(xt),), step / steps, dtype=torch.float64, device=xt.device)
        k_dot, rest = flow.schedule.dk(t[:, None]), flow.schedule.rest(t[:, None])
        p = pad(model(xt, t.to(time_dtype(model))).float().softmax(-1), (0, vocab.masks))
        if step == steps - 1:  # the last step draws data tokens, whatever the velocity is
            return torch.multinomial(p.flatten(0, 1), 1, generator=generator).view_as(xt)
        here = one_hot(xt, vocab.size).to(p)
        velocity = (k_dot / rest)[..., None].to(p) * (p - here)
        rates = velocity * (1 - here)
        jumps = torch.rand(xt.shape, generator=generator, device=xt.device) < 1 - torch.exp(-rates.sum(-1) / steps)
        rows = rates[jumps]
        if len(rows):
            xt = xt.masked_scatter(jumps, torch.multinomial(rows, 1, generator=generator)[:, 0])
    return xt
