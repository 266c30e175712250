"""The family of velocities (F), its finite-step kernels (F_N), and the divergence between two of them.

All rates are per unit of k, not of t: the flow's law depends on the schedule only through the network's clock, so the
factor k̇ belongs to whoever integrates over t. `rest` is 1 - k, given beside k because either may be too small to be
had from the other. Whole rows over the vocabulary serve the oracle and the samplers; `divergence` serves the bounds,
which need only a few numbers of a row.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Eta = float | int | Callable[[Tensor], Tensor]
"""Strength of the corrector: a number, or a function of t."""


def eta_at(eta: Eta, t: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """η(t), checked."""
    if not callable(eta):
        _check_eta(float(eta))
        return torch.full_like(t, float(eta))
    value = torch.as_tensor(eta(t), dtype=t.dtype, device=t.device).expand_as(t)
    _check_eta(float(value.min()))
    _check_eta(float(value.max()))
    return value


def _check_eta(value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(
            f"eta must be ≥ 0 and finite (0 is the few-hops sampler, 1 the reversal of its noising); got {value:g}"
        )


def still_noise(
    k: Float[Tensor, "*#rows"], rest: Float[Tensor, "*#rows"], p0_xt: Float[Tensor, "*rows"]
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """ρ = k/(k + (1-k)·p0(xt)) and 1 - ρ, each without cancellation."""
    total = k + rest * p0_xt
    total = torch.where(total > 0, total, 1.0)  # k = 0 and p0(xt) = 0: a state of probability 0
    return k / total, rest * p0_xt / total


def velocity(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, " V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
    eta: Float[Tensor, "*#rows"] | float,
) -> Float[Tensor, "*rows V"]:
    """v_η[P](x)/k̇ for x ≠ xt, 0 at xt.  theory.md (F); η = 0 is the velocity after Eq. (6) [uncond_vect_field]"""
    noise = _noise(p, xt, p0, k, rest)
    forward = p / rest.unsqueeze(-1)
    corrector = (eta / torch.where(k > 0, k, 1.0) * noise).unsqueeze(-1) * p0
    return _without(forward + corrector, xt)


def step_sizes(
    rest: Float[Tensor, "*#shape"], gain: Float[Tensor, "*#shape"], eta: Float[Tensor, "*#shape"]
) -> tuple[Float[Tensor, "*#shape"], Float[Tensor, "*#shape"]]:
    """In a step that adds `gain` = k' - k: r, the chance of a redraw, and s, that of a corrector's proposal.

    theory.md (F_N)
    """
    r = gain / rest
    after = rest - gain  # 1 - k', exactly 0 in the last step
    corrector = torch.where(after < 1, eta * r * after / torch.where(after < 1, 1 - after, 1.0), 0.0)
    return r, torch.minimum(corrector, 1 - r)


def kernel(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, " V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
    r: Float[Tensor, "*#rows"],
    s: Float[Tensor, "*#rows"],
) -> Float[Tensor, "*rows V"]:
    """K[P](x' | xt), whole rows that sum to 1.  theory.md (F_N); at η = 1 the D3PM posterior kernel"""
    noise = _noise(p, xt, p0, k, rest)
    moves = _without(r.unsqueeze(-1) * p + (s * noise).unsqueeze(-1) * p0, xt)
    return moves.scatter(-1, xt.unsqueeze(-1), 1 - moves.sum(-1, keepdim=True))


def neighbour_ratio(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, " V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
) -> Float[Tensor, "*rows V"]:
    """p_t(xt with token x at this position)/p_t(xt), as the prediction P implies it; exact for a perfect network.

    (1-k)·p0(x)·G + k·g(x) with g(y) = P(y)/p(xt | y) and G = Σ g. It needs p0(xt) > 0: a token that is data for
    certain makes P forget what the context said of it.  theory.md §5
    """
    noise = (rest * p0[xt]).unsqueeze(-1)
    seen = noise.expand_as(p).scatter(-1, xt.unsqueeze(-1), noise + k.expand(xt.shape).unsqueeze(-1))  # p(xt | x1 = y)
    g = torch.where(p > 0, p / torch.where(seen > 0, seen, 1.0), 0.0)
    return (rest * g.sum(-1)).unsqueeze(-1) * p0 + k.unsqueeze(-1) * g


def divergence(
    c: Float[Tensor, "*shape"],
    v: Float[Tensor, "*shape"],
    difference: Float[Tensor, "*shape"],
    log_v: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """c·log(c/v) - c + v ≥ 0, the integrand of (B); `difference` is v - c, formed by the caller without cancellation.

    It is c·(g - log(1 + g)) with g = (v - c)/c. For small g, as near k → 0 where c and v grow like 1/k, the two
    terms cancel and a series takes over; where c = 0 what is left is v. `log_v` serves where v itself underflows.
    """
    some = torch.where(c > 0, c, 1.0)
    g = difference / some
    small = g.abs() < 0.02
    near = torch.where(small, g, 0.0)
    series = near**2 * (1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near * (1 / 6 - near / 7)))))
    plain = small | (c <= 0)  # these must not touch the logarithm, in the backward pass either
    log_ratio = torch.log(torch.where(plain, some, v) / some) if log_v is None else log_v - some.log()
    far = difference - some * torch.where(plain, 0.0, log_ratio)
    return torch.where(c > 0, torch.where(small, some * series, far), v)


def _noise(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, " V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
) -> Float[Tensor, "*rows"]:
    """1 - ρP(xt), the chance that xt still is a source token, as a sum of what is ≥ 0: it may be far below 1e-16."""
    rho, one_minus_rho = still_noise(k, rest, p0[xt])
    return one_minus_rho + rho * _without(p, xt).sum(-1)


def _without(rates: Float[Tensor, "*rows V"], xt: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows V"]:
    return rates.scatter(-1, xt.unsqueeze(-1), 0.0)
