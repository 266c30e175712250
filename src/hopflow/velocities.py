"""Velocities (F), the transition kernels of finite steps (F_N), and the divergence between two rates.

All rates are per unit of k, not of t; an integral over t multiplies them by k̇. `rest` is 1 - k, a separate argument
because either of k and 1 - k may be lost in rounding the other. Functions that return rows over the vocabulary are for
the oracle; `divergence` is for the bounds, which need a few numbers per row only.
"""

import math
from collections.abc import Callable
from numbers import Real

import torch
from jaxtyping import Float, Int
from torch import Tensor

Eta = float | int | Callable[[Tensor], Tensor]
"""Strength of the corrector: a number ≥ 0, or a function of t."""


def eta_at(eta: Eta, t: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """η(t) at these times; raises ValueError unless it is ≥ 0 and finite."""
    if not callable(eta):
        if not (isinstance(eta, Real) or (isinstance(eta, Tensor) and eta.ndim == 0)):
            raise ValueError(f"eta must be a number or a function of t, got {eta!r}.")
        _check_eta(float(eta))
        return torch.full_like(t, float(eta))
    value = torch.as_tensor(eta(t), dtype=t.dtype, device=t.device).expand_as(t)
    _check_eta(float(value.min()))
    _check_eta(float(value.max()))
    return value


def _check_eta(value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(
            f"eta must be ≥ 0 and finite (0 = fewest hops, 1 = the sampler that b1 bounds), got {value:g}."
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
    p0: Float[Tensor, "*#L V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
    eta: Float[Tensor, "*#rows"] | float,
) -> Float[Tensor, "*rows V"]:
    """v_η[P](x)/k̇ for x ≠ xt, 0 at xt.  theory.md (F); η = 0 is the velocity after Eq. (6) [uncond_vect_field]"""
    noise = _noise(p, xt, p0, k, rest)
    forward = p / rest.unsqueeze(-1)
    corrector = (eta / torch.where(k > 0, k, 1.0) * noise).unsqueeze(-1) * p0
    return _zero_at(forward + corrector, xt)


def step_sizes(
    rest: Float[Tensor, "*#shape"], gain: Float[Tensor, "*#shape"], eta: Float[Tensor, "*#shape"]
) -> tuple[Float[Tensor, "*#shape"], Float[Tensor, "*#shape"]]:
    """The probabilities r of a redraw and s of a proposal of the corrector, in a step that adds `gain` = k' - k.

    theory.md (F_N)
    """
    r = gain / rest
    after = rest - gain  # 1 - k', exactly 0 in the last step
    corrector = torch.where(after < 1, eta * r * after / torch.where(after < 1, 1 - after, 1.0), 0.0)
    return r, torch.minimum(corrector, 1 - r)


def refresh_chances(refresh: float | int, steps: int) -> Float[Tensor, " N"]:
    """1 - κ, the probability of a refresh of a position in each of N steps: R/N, and 0 in the last step.

    In the last step a refresh draws from P, as the redraw of every position does, so that κ makes no difference there:
    counting it, R refreshes per position are expected in a run, for every N. Raises ValueError unless 0 ≤ R ≤ N.
    """
    real = isinstance(refresh, Real) and not isinstance(refresh, bool)
    if not (real and 0 <= refresh <= steps):
        raise ValueError(
            f"refresh, the expected number of refreshes per position, must be a number from 0 (none) to {steps}, the "
            f"number of steps, got {refresh!r}."
        )
    chances = torch.full((steps,), float(refresh) / steps, dtype=torch.float64)
    chances[-1] = 0
    return chances


def check_refresh(refresh: float | int, steps: int | None) -> None:
    """Raise ValueError unless `refresh` is a number of refreshes for a sampler in this number of steps."""
    if steps is not None:
        refresh_chances(refresh, steps)
    elif refresh != 0:
        raise ValueError(f"refresh={refresh} belongs to a sampler in steps: pass steps=N, too, or leave refresh out.")


def with_refresh(
    r: Float[Tensor, "*#shape"],
    s: Float[Tensor, "*#shape"],
    after: Float[Tensor, "*#shape"],
    chance: Float[Tensor, "*#shape"],
) -> tuple[Float[Tensor, "*#shape"], Float[Tensor, "*#shape"], Float[Tensor, "*#shape"]]:
    """The probabilities of a redraw, a proposal and a return to noise in a step that refreshes with `chance` = 1 - κ.

    K = κ·K_η + (1-κ)·(k'P + (1-k')p0): a refresh is a redraw with probability k', else a draw from the source whatever
    the token was; `after` is 1 - k'.  theory.md (F_R)
    """
    keep = 1 - chance  # κ
    return keep * r + chance * (1 - after), keep * s, chance * after


def kernel(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, "*#L V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
    r: Float[Tensor, "*#rows"],
    s: Float[Tensor, "*#rows"],
    renoise: Float[Tensor, "*#rows"] | float = 0.0,
) -> Float[Tensor, "*rows V"]:
    """K[P](x' | xt) for all x'; rows sum to 1.  theory.md (F_N); at η = 1 the D3PM posterior kernel

    `renoise` is the probability of a draw from the source whatever xt is, (F_R).
    """
    noise = _noise(p, xt, p0, k, rest)
    moves = _zero_at(r.unsqueeze(-1) * p + (s * noise + renoise).unsqueeze(-1) * p0, xt)
    return moves.scatter(-1, xt.unsqueeze(-1), 1 - moves.sum(-1, keepdim=True))


def neighbour_ratio(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, "*#L V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
) -> Float[Tensor, "*rows V"]:
    """p_t(xt with token x at this position)/p_t(xt), as implied by P; exact for a perfect network.

    (1-k)·p0(x)·G + k·g(x) with g(y) = P(y)/p(xt | y) and G = Σ g. It needs p0(xt) > 0: otherwise P is δ_xt and does
    not depend on the context.  theory.md §5
    """
    noise = (rest * _at(p0, xt)).unsqueeze(-1)
    seen = noise.expand_as(p).scatter(-1, xt.unsqueeze(-1), noise + k.expand(xt.shape).unsqueeze(-1))  # p(xt | x1 = y)
    g = torch.where(p > 0, p / torch.where(seen > 0, seen, 1.0), 0.0)
    return (rest * g.sum(-1)).unsqueeze(-1) * p0 + k.unsqueeze(-1) * g


def divergence(
    c: Float[Tensor, "*shape"],
    v: Float[Tensor, "*shape"],
    difference: Float[Tensor, "*shape"],
    log_v: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """c·log(c/v) - c + v ≥ 0, the integrand of (B); `difference` is v - c, computed without cancellation.

    It equals c·(g - log(1 + g)) with g = (v - c)/c. For small g, as for k → 0 where c and v grow like 1/k, the two
    terms cancel and a series is used; for c = 0 the value is v. Pass `log_v` where v may underflow.

    >>> one, two = torch.tensor(1.0), torch.tensor(2.0)
    >>> divergence(one, two, two - one)
    tensor(0.3069)
    """
    some = torch.where(c > 0, c, 1.0)
    g = difference / some
    small = g.abs() < 0.02
    near = torch.where(small, g, 0.0)
    series = near**2 * (1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near * (1 / 6 - near / 7)))))
    plain = small | (c <= 0)  # keep these out of the logarithm, in the backward pass, too
    log_ratio = torch.log(torch.where(plain, some, v) / some) if log_v is None else log_v - some.log()
    far = difference - some * torch.where(plain, 0.0, log_ratio)
    return torch.where(c > 0, torch.where(small, some * series, far), v)


def _noise(
    p: Float[Tensor, "*rows V"],
    xt: Int[Tensor, "*rows"],
    p0: Float[Tensor, "*#L V"],
    k: Float[Tensor, "*#rows"],
    rest: Float[Tensor, "*#rows"],
) -> Float[Tensor, "*rows"]:
    """1 - ρP(xt), the probability that xt is a source token, as a sum of terms ≥ 0: it may be far below 1e-16."""
    rho, one_minus_rho = still_noise(k, rest, _at(p0, xt))
    return one_minus_rho + rho * _zero_at(p, xt).sum(-1)


def _at(p0: Float[Tensor, "*#L V"], xt: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows"]:
    """p0(xt); where each position has its own p0, the last dimension of xt is the position."""
    return p0[xt] if p0.ndim == 1 else p0[torch.arange(xt.shape[-1], device=xt.device), xt]


def _zero_at(rates: Float[Tensor, "*rows V"], xt: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows V"]:
    """The rates with 0 in column xt."""
    return rates.scatter(-1, xt.unsqueeze(-1), 0.0)
