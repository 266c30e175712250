"""Control variates: columns with mean zero that are correlated with the draws, and their subtraction.

The coefficients are fitted on one half of the sequences and used on the other half, because coefficients fitted on the
draws they correct would bias the mean. Given the fit, the replicates of a sequence are independent except for what
`position_columns` takes from other replicates, an effect of second order, so that their spread remains the error. If
the network ignores its context, this effect is all the noise that is left, and the claimed error of the draws is too
small: by 1.3 to 2.4 times for masks, where the noise was below 0.05 nats per sequence.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .monte_carlo import PathDraw, Strata

DRAWS_PER_COEFFICIENT = 16
"""Draws that a fit needs for each coefficient, in the strata where the coefficient's column is not zero."""
MAX_TREND_STRATA = 32
"""Number of strata with a trend; further ones are narrow enough without."""


def stratum_trends(at: Strata) -> Float[Tensor, "rows S C"]:
    """One column per stratum: the position of u within it, centered."""
    own = torch.eye(at.place.shape[1], dtype=at.place.dtype)[:, :MAX_TREND_STRATA]
    return (at.weight * (at.place - 0.5))[..., None] * own


def legendre_columns(at: Strata) -> Float[Tensor, "rows S 3"]:
    """The Legendre polynomials of u of degree 2 to 4; they help where there are few strata."""
    x = 2 * at.u - 1
    powers = [(3 * x**2 - 1) / 2, (5 * x**3 - 3 * x) / 2, (35 * x**4 - 30 * x**2 + 3) / 8]
    return at.weight[:, None] * torch.stack(powers, -1)


def noisy_coverage(draw: PathDraw) -> Float[Tensor, "N L"]:
    """The weight with which a draw counts each position as noisy; its mean is 1 for every position and method."""
    point = draw.point
    return draw.weight[:, None] * torch.where(draw.noisy, point.speed / point.noise, 0.0)


def position_columns(
    coverage: Float[Tensor, "n R S L"], nats: Float[Tensor, "n R S L"], x1: Int[Tensor, "n L"]
) -> Float[Tensor, "n R S 3"]:
    """Three columns for which positions are noisy: their number, the rarity of their tokens, and their usual nats.

    The usual nats of a position come from the other replicates of the sequence. `coverage` and `nats` are weighted by
    stratum and draw.
    """
    counted = coverage > 0
    usual = torch.where(counted, nats / torch.where(counted, coverage, 1.0), 0.0)
    usual, counts = usual.sum(2), counted.double().sum(2)  # (n, R, L)
    usual, counts = (value.sum(1, keepdim=True) - value for value in (usual, counts))  # of the other replicates
    mean = usual.sum(2, keepdim=True) / counts.sum(2, keepdim=True).clamp(min=1)
    usual = (usual + mean) / (counts + 1)
    rarity = -torch.bincount(x1.flatten()).double().log()[x1][:, None].expand_as(usual)
    excess = coverage - 1
    return torch.stack([excess.sum(3), *((excess * value[:, :, None]).sum(3) for value in (rarity, usual))], -1)


def subtract_controls(values: Float[Tensor, "n R S"], columns: Float[Tensor, "n R S C"]) -> Float[Tensor, "n R S"]:
    """The values minus their regression on the columns; unchanged where that does not lower the variance.

    The two halves are the even and the odd sequences; each is corrected with the coefficients of the other. The noise
    is the difference between the replicates of a sequence, stratum by stratum. A half is corrected only if the other
    half's coefficients lower its noise.
    """
    if not bool(values.isfinite().all()):
        return values  # infinite values stay infinite
    noise, centred = values - values.mean(1, keepdim=True), columns - columns.mean(1, keepdim=True)
    nonzero = (centred.abs() > 1e-9 * columns.abs().amax((0, 1, 2))).flatten(0, 1).any(0)  # (S, C), beyond rounding
    used = _columns_with_enough_draws(nonzero, draws=len(values) // 2 * (values.shape[1] - 1))
    if not used:
        return values
    left, columns, centred = values.clone(), columns[..., used], centred[..., used]
    for half, other in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        size = centred[other].flatten(0, 2).norm(dim=0).clamp(min=torch.finfo(centred.dtype).tiny)
        inputs, targets = (centred[other] / size).flatten(0, 2), noise[other].reshape(-1, 1)
        fit = torch.linalg.lstsq(inputs, targets, driver="gelsd").solution[:, 0] / size
        if float((noise[half] - centred[half] @ fit).square().sum()) < float(noise[half].square().sum()):
            left[half] -= columns[half] @ fit
    return left


def _columns_with_enough_draws(nonzero: Bool[Tensor, "S C"], draws: int) -> list[int]:
    """The columns, in order, that have enough draws in the strata where they are not zero; `draws` is per stratum.

    A column shares the draws of its strata with the earlier columns that are nonzero only there.
    """
    used: list[int] = []
    for column, strata in enumerate(nonzero.T):
        inside = sum(bool((strata | ~nonzero[:, before]).all()) for before in used)
        if bool(strata.any()) and draws * int(strata.sum()) >= DRAWS_PER_COEFFICIENT * (1 + inside):
            used.append(column)
    return used
