"""Control variates: columns of mean zero that explain part of the noise of draws, and what is left without that part.

How much of a column to subtract is fitted on one half of the sequences and used on the other: a number fitted on the
very draws it corrects would bias their mean. Given the fit the replicates of a sequence are independent but for what
`hardness` takes from one to the other, which is of second order, so that their spread remains the error.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .draws import Draw, Strata

ENOUGH, LEAST = 16, 64
"""Draws that a fit needs for each of its coefficients, and for the first."""
FINE = 32
"""So many strata have a trend each; more are narrow enough."""


def trends(at: Strata) -> Float[Tensor, "rows S C"]:
    """What u alone explains: its weight, and its place within each stratum."""
    own = torch.eye(at.place.shape[1], dtype=at.place.dtype)[:, :FINE]
    return torch.cat([(at.weight - at.width)[..., None], (at.weight * (at.place - 0.5))[..., None] * own], -1)


def bends(at: Strata) -> Float[Tensor, "rows S 3"]:
    """What is left of that in few strata: the next three Legendre polynomials of u itself."""
    x = 2 * at.u - 1
    powers = [(3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    return at.weight[..., None] * torch.stack(powers, -1)


def coverage(draw: Draw) -> Float[Tensor, "N L"]:
    """How much a draw counts each position as noisy: 1 on average, for every position, clock and way to draw."""
    point = draw.point
    return draw.weight[:, None] * torch.where(draw.noisy, point.speed / point.noise, 0.0)


def hardness(
    cover: Float[Tensor, "n R S L"], nats: Float[Tensor, "n R S L"], x1: Int[Tensor, "n L"]
) -> Float[Tensor, "n R S 3"]:
    """Which positions a draw counts: how many, how rare their tokens are, and what they cost in the other replicates.

    Cover and nats are weighted by stratum and draw. A position costs nats/cover wherever it is counted.
    """
    counted = cover > 0
    price = torch.where(counted, nats / torch.where(counted, cover, 1.0), 0.0)
    price, counts = price.sum(2), counted.double().sum(2)  # (n, R, L)
    price, counts = (value.sum(1, keepdim=True) - value for value in (price, counts))  # of the other replicates
    usual = price.sum(2, keepdim=True) / counts.sum(2, keepdim=True).clamp(min=1)
    price = (price + usual) / (counts + 1)
    rarity = -torch.bincount(x1.flatten()).double().log()[x1][:, None].expand_as(price)
    excess = cover - 1
    return torch.stack([excess.sum(3), *((excess * value[:, :, None]).sum(3) for value in (rarity, price))], -1)


def without(values: Float[Tensor, "n R S"], columns: Float[Tensor, "n R S C"]) -> Float[Tensor, "n R S"]:
    """The values less the columns, by coefficients from the other half; of few draws, less the first columns only."""
    if not bool(values.isfinite().all()):
        return values  # what is infinite stays infinite
    n, replicates, strata, _ = columns.shape
    # what differs between the replicates of a sequence, stratum by stratum, is the noise and nothing else
    noise, of = values - values.mean(1, keepdim=True), columns - columns.mean(1, keepdim=True)
    size, spread = (table.flatten(0, 2).norm(dim=0) for table in (columns, of))
    alive = (spread > 1e-9 * size).nonzero()[:, 0]  # the others are the same in every replicate, but for rounding
    known = n // 2 * (replicates - 1) * strata
    used = alive[: known // ENOUGH]
    if known < LEAST or not len(used):
        return values
    left, columns, of = values.clone(), columns[..., used] / spread[used], of[..., used] / spread[used]
    for half, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        of_other, noise_other = of[other].reshape(-1, len(used)), noise[other].reshape(-1, 1)
        left[half] -= columns[half] @ torch.linalg.lstsq(of_other, noise_other, driver="gelsd").solution[:, 0]
    return left
