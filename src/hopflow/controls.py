"""Control variates: columns of mean zero that explain part of the noise of draws, and what is left without that part.

How much of a column to subtract is fitted on one half of the sequences and used on the other: a number fitted on the
very draws it corrects would bias their mean. Given the fit the replicates of a sequence are independent but for what
`hardness` takes from one to the other, which is of second order, so that their spread remains the error.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .draws import Draw, Strata

ENOUGH = 16
"""Draws that a fit needs for each of its coefficients, in the strata where the coefficient's column is not zero."""
FINE = 32
"""Up to this many strata have a trend each; more are narrow enough without."""


def trends(at: Strata) -> Float[Tensor, "rows S C"]:
    """What u alone explains: its place within each stratum."""
    own = torch.eye(at.place.shape[1], dtype=at.place.dtype)[:, :FINE]
    return (at.weight * (at.place - 0.5))[..., None] * own


def bends(at: Strata) -> Float[Tensor, "rows S 3"]:
    """What is left of that in few strata: the next three Legendre polynomials of u itself."""
    x = 2 * at.u - 1
    powers = [(3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    return at.weight[:, None] * torch.stack(powers, -1)


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
    """The values less the columns, by coefficients from the other half; unchanged where that does not lower the noise.

    The halves are the even and the odd sequences. The noise is what differs between the replicates of a sequence,
    stratum by stratum. A half is corrected only if the coefficients fitted on the other one lower its own noise.
    """
    if not bool(values.isfinite().all()):
        return values  # what is infinite stays infinite
    noise, of = values - values.mean(1, keepdim=True), columns - columns.mean(1, keepdim=True)
    lives = (of.abs() > 1e-9 * columns.abs().amax((0, 1, 2))).flatten(0, 1).any(0)  # (S, C), beyond rounding
    used = _supported(lives, draws=len(values) // 2 * (values.shape[1] - 1))
    if not used:
        return values
    left, columns, of = values.clone(), columns[..., used], of[..., used]
    for half, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        size = of[other].flatten(0, 2).norm(dim=0).clamp(min=torch.finfo(of.dtype).tiny)
        known, wanted = (of[other] / size).flatten(0, 2), noise[other].reshape(-1, 1)
        fit = torch.linalg.lstsq(known, wanted, driver="gelsd").solution[:, 0] / size
        if float((noise[half] - of[half] @ fit).square().sum()) < float(noise[half].square().sum()):
            left[half] -= columns[half] @ fit
    return left


def _supported(lives: Bool[Tensor, "S C"], draws: int) -> list[int]:
    """The columns, in order, for which there are enough draws, `draws` of them a stratum, where they are not zero.

    A column shares the draws of its strata with the columns before it that are not zero there only.
    """
    used: list[int] = []
    for column, strata in enumerate(lives.T):
        inside = sum(bool((strata | ~lives[:, before]).all()) for before in used)
        if bool(strata.any()) and draws * int(strata.sum()) >= ENOUGH * (1 + inside):
            used.append(column)
    return used
