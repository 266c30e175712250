"""Categorical draws of float64 quality, from one uniform number each.

Float32 noise over 50,000 tokens cuts off their tail. So the token is found where the cumulative probability passes a
53-bit uniform number, in two stages: among blocks of tokens, then within one block. Only the sums of blocks and one
block per row are ever held in float64.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK = 256
"""Tokens summed in float32; the square root of a large vocabulary, so that both stages are short."""


def categorical(log_p: Float[Tensor, "n V"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The token of each row at u, uniform in [0, 1); rows need not be normalised, -inf is never drawn."""
    p = (log_p - log_p.amax(1, keepdim=True)).exp()
    whole = p.shape[1] // BLOCK * BLOCK
    parts = [p[:, :whole].unflatten(1, (-1, BLOCK)).sum(2)] if whole else []
    parts += [p[:, whole:].sum(1, keepdim=True)] if whole < p.shape[1] else []
    block, left = passed(_wide(torch.cat(parts, 1)), _wide(u))
    column = BLOCK * block[:, None].to(p.device) + torch.arange(min(BLOCK, p.shape[1]), device=p.device)
    inside = p.gather(1, column.clamp(max=p.shape[1] - 1)).masked_fill(column >= p.shape[1], 0)
    place, _ = passed(_wide(inside), left)
    # a row of NaN must not end in a token that does not exist
    return (BLOCK * block.to(p.device) + place.to(p.device)).clamp(max=p.shape[1] - 1)


def gumbel32(log_p: Float[Tensor, "n V"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """What most code does: the largest of log p plus float32 Gumbel noise. It truncates the tail; for comparison only.

    The noise of each token is hashed from u, so that this, too, depends on nothing but the row.
    """
    key = (_wide(u) * 2.0**53).long().to(log_p.device)[:, None]
    key = key + torch.arange(log_p.shape[1], device=log_p.device) * -7046029254386353131  # splitmix64, from here
    key = (key ^ (key >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    key = (key ^ (key >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    noise = (key >> 40 & 0xFFFFFF).float() / 2**24
    return (log_p - torch.log(-torch.log(noise))).argmax(1)


def passed(mass: Float[Tensor, "n m"], u: Float[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """Where the running sum of masses passes the share u of their total, and how far into that entry, as a share."""
    sums = mass.cumsum(1)
    target = torch.minimum(u * sums[:, -1], sums[:, -1].nextafter(sums.new_zeros(())))[:, None]  # rounded up to 1
    at = torch.searchsorted(sums, target, right=True).clamp(max=mass.shape[1] - 1)  # entries of mass 0 are not passed
    here = mass.gather(1, at)
    share = 1 - (sums.gather(1, at) - target) / here
    return at[:, 0], share[:, 0].clamp(0, 1)


def _wide(x: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none: a few hundred numbers per row."""
    return x.cpu().double() if x.device.type == "mps" else x.double()
