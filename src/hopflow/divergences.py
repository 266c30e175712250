"""Divergences between a network's velocity or step and the one that leads to x1: the integrands of the bounds.

At η = 0 or with a disjoint source the conditional velocity has one target token, and log P(x1), P(xt) and 1 - P(xt) are
sufficient. Otherwise the corrector has a rate for every token, and full rows over the vocabulary are needed.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .kernels import switch
from .kernels.support import has_kernels
from .predictions import Evidence, Prediction
from .scores import Scores
from .sources import Source
from .velocities import Eta, divergence, eta_at, still_noise


def rate_divergence(scores: Scores, eta: Eta) -> Float[Tensor, "B L"]:
    """Σ_{x≠xt} [c log(c/v) - c + v] with c = v_η[δ_x1], v = v_η[P], per unit of k.  theory.md (B)"""
    rest = scores.sample.rest
    # at t = 0 this is the limit; at t = 1, a single point, it is finite where the limit is
    a, b = 1 / rest.clamp(min=torch.finfo(rest.dtype).tiny), 1 / (1 - rest).clamp(min=1e-12)
    return _leaving(scores, a, eta_at(eta, scores.sample.t)[:, None] * b, spread=eta != 0)


def kernel_divergence(
    scores: Scores,
    r: Float[Tensor, "B #L"],
    s: Float[Tensor, "B #L"],
    spread: bool,
    renoise: Float[Tensor, "B #L"] | None = None,
    idle: Float[Tensor, "B #L"] | None = None,
) -> Float[Tensor, "B L"]:
    """KL(K[δ_x1](·|xt) ‖ K[P](·|xt)), the diagonal included.  theory.md (B_N); `spread`: s is not 0 throughout

    `renoise` is the probability of a draw from the source whatever xt is, (F_R); None: never. `idle` is the probability
    of no event, 1 - r - s - renoise; pass it where it may be 0, because the rounded difference is not.
    """
    sample, source = scores.sample, scores.source
    p0_xt = source.probs(sample.xt, sample.rest.dtype)
    rho, one_minus_rho = still_noise(1 - sample.rest, sample.rest, p0_xt)
    arrived = sample.xt == sample.x1
    other, pt = scores.log_other.exp(), scores.log_pt.exp()
    fresh = torch.zeros_like(s) if renoise is None else renoise
    elsewhere, away = s * (1 - p0_xt), fresh * (1 - p0_xt)
    # the probabilities to stay of K[δ_x1] and K[P], as sums of terms ≥ 0, because P(xt) may be tiny
    idle = (1 - r - s - fresh).clamp(min=0) if idle is None else idle
    at_least, rest_of_it = idle + (s + fresh) * p0_xt, r + elsewhere * rho
    c = torch.where(arrived, 1 - elsewhere * one_minus_rho - away, at_least)
    v = at_least + rest_of_it * pt
    log_v = torch.where(v > 0, v, 1.0).log() + torch.where(v > 0, 0.0, rest_of_it.log() + scores.log_pt)
    difference = rest_of_it * torch.where(arrived, -other, pt)
    return _leaving(scores, r, s, spread, renoise) + divergence(c, v, difference, log_v)


def proposal_divergence(scores: Scores) -> Float[Tensor, "B L"]:
    """Σ_{x≠xt} [c log(c/v) - c + v] with the proposal's c at κ = e^{-(1-k)} and v = v_0[P], per unit of k.

    theory.md (B_κ)
    """
    rows = partial(_proposal_rows, source=scores.source, prediction=scores.prediction)
    sample = scores.sample
    return scores.over_rows(rows, sample.xt, sample.x1, sample.rest.expand(sample.xt.shape), *_positions(scores))


def implied_terms(scores: Scores) -> Float[Tensor, "B L"]:
    """Eq. (159) [loglikelighood_eq] per unit of k: the terms of (B) at η = 0 minus those of the reversed velocities.

    The ratios of p_θ that the reversed velocities need are those that P implies. The terms of a neighbor that moves to
    xt are counted where xt is that neighbor.  theory.md (PP)
    """
    rows = partial(_implied_rows, source=scores.source, prediction=scores.prediction)
    sample = scores.sample
    return scores.over_rows(rows, sample.xt, sample.x1, sample.rest.expand(sample.xt.shape), *_positions(scores))


def _positions(scores: Scores) -> list[Int[Tensor, "B L"]]:
    """The position of each row, one more column where each position has its own p0; else none."""
    xt = scores.sample.xt
    return [] if scores.source.shared else [torch.arange(xt.shape[1], device=xt.device).expand(xt.shape)]


def _leaving(
    scores: Scores,
    a: Float[Tensor, "B #L"],
    b: Float[Tensor, "B #L"],
    spread: bool,
    renoise: Float[Tensor, "B #L"] | None = None,
) -> Float[Tensor, "B L"]:
    """The divergence between a·δ_x1 + b·p0·(1-ρδ_x1(xt)) and a·P + b·p0·(1-ρP(xt)) over all tokens except xt.

    (a, b) = (1/(1-k), η/k) are the rates of (F), (a, b) = (r, s) the probabilities of (F_N). With `renoise`, p0 is
    added to both, times it.
    """
    sample, source = scores.sample, scores.source
    if (spread or renoise is not None) and not source.disjoint:
        rows = partial(_leaving_rows, source=source, prediction=scores.prediction)
        noise = torch.zeros_like(b) if renoise is None else renoise
        columns = [c.expand(sample.xt.shape) for c in (sample.rest, a, b, noise)]
        return scores.over_rows(rows, sample.xt, sample.x1, *columns, *_positions(scores))
    arrived = sample.xt == sample.x1
    # xt = x1: c = 0, and v sums to a·(1-P(xt)) over data tokens, to b·(1-P(xt)) over a disjoint source's masks
    leaves = (a + b if source.disjoint else a) * scores.log_other.exp()
    if renoise is not None:  # c = renoise over the masks of a disjoint source, v = renoise + b·(1-P(xt))
        more = b * scores.log_other.exp()
        leaves = a * scores.log_other.exp() + divergence(renoise.expand_as(more), renoise + more, more)
    # xt ≠ x1: a·(-log P(x1) - 1) + a·(1-P(xt)); the corrector's terms are equal in c and v
    misses = a * (-torch.where(arrived, 0.0, scores.log_p1) - scores.log_pt.exp())
    return torch.where(arrived, leaves, misses)


def _leaving_rows(
    logits: Float[Tensor, "n Vd"],
    xt: Int[Tensor, " n"],
    x1: Int[Tensor, " n"],
    rest: Float[Tensor, " n"],
    a: Float[Tensor, " n"],
    b: Float[Tensor, " n"],
    renoise: Float[Tensor, " n"],
    *positions: Int[Tensor, " n"],
    source: Source,
    prediction: Prediction,
) -> Float[Tensor, " n"]:
    source = source.of_rows(*positions) if positions else source
    dtype = torch.promote_types(logits.dtype, torch.float32)
    p0, p0_xt, p0_x1 = source.probs_on(logits.device, dtype), source.probs(xt, dtype), source.probs(x1, dtype)
    rho, one_minus_rho = still_noise(1 - rest, rest, p0_xt)
    arrived = xt == x1
    c_noise = b * torch.where(arrived, one_minus_rho, 1.0) + renoise  # b·(1 - ρδ_x1(xt)), and what is added
    if (kernel := _kernel(logits, source)) is not None:
        hit, miss = (torch.where(which, b * rho, 0.0) for which in (arrived, ~arrived))
        columns = torch.stack([a, c_noise, b * one_minus_rho + renoise, b * rho, torch.zeros_like(a), hit, -miss], 1)
        shift = prediction.shift(xt, rest, source)
        other, pt, log_p1, data = kernel(logits, p0[: source.vocab.data], xt, x1, shift, columns)
    else:
        log_p, at_xt, at_x1 = _rows(logits, xt, x1, rest, source, prediction)
        p = log_p.exp()
        other = torch.where(at_xt, 0.0, p).sum(1)  # 1 - P(xt)
        pt = torch.where(at_xt, p, 0.0).sum(1)
        log_p1 = log_p.gather(1, x1[:, None])[:, 0]
    v_noise = b * (one_minus_rho + rho * other) + renoise  # b·(1 - ρP(xt)), and what is added
    d_noise = b * rho * torch.where(arrived, other, -pt)

    def terms(p0: Tensor, hit: float, p: Tensor | float, log_p: Tensor | None = None) -> Tensor:
        c = a[:, None] * hit + c_noise[:, None] * p0
        noise = v_noise[:, None] * p0
        v = a[:, None] * p + noise
        log_v = None if log_p is None else torch.logaddexp(a[:, None].log() + log_p, _log(noise))
        return divergence(c, v, a[:, None] * (p - hit) + d_noise[:, None] * p0, log_v)

    if kernel is None:
        data = torch.where(at_xt | at_x1, 0.0, terms(p0[..., : source.vocab.data], 0.0, p)).sum(1)
    # x1 separately: only its c has a term without noise, and P(x1) may underflow while its logarithm does not
    target = torch.where(arrived, 0.0, terms(p0_x1[:, None], 1.0, log_p1.exp()[:, None], log_p1[:, None])[:, 0])
    # all masks but xt share one ratio c/v, so their sum is one term
    masks = p0[..., source.vocab.data :].sum(-1) - torch.where(source.vocab.is_data(xt), 0.0, p0_xt)
    return data + target + terms(masks[:, None], 0.0, 0.0)[:, 0]


def _proposal_rows(
    logits: Float[Tensor, "n Vd"],
    xt: Int[Tensor, " n"],
    x1: Int[Tensor, " n"],
    rest: Float[Tensor, " n"],
    *positions: Int[Tensor, " n"],
    source: Source,
    prediction: Prediction,
) -> Float[Tensor, " n"]:
    source = source.of_rows(*positions) if positions else source
    dtype = torch.promote_types(logits.dtype, torch.float32)
    p0, p0_xt, p0_x1 = source.probs_on(logits.device, dtype), source.probs(xt, dtype), source.probs(x1, dtype)
    rest_kappa = -torch.expm1(-rest)  # 1 - κ
    _, one_minus_rho = still_noise(torch.exp(-rest), rest_kappa, p0_xt)
    noise = torch.where(xt == x1, one_minus_rho, 1.0)
    odds = torch.exp(-rest) / rest_kappa  # κ/(1-κ)
    if (kernel := _kernel(logits, source)) is not None:
        none = torch.zeros_like(rest)
        columns = torch.stack([1 / rest, noise, none, none, -noise, none, none], 1)
        shift = prediction.shift(xt, rest, source)
        _, _, log_p1, others = kernel(logits, p0[: source.vocab.data], xt, x1, shift, columns)
        c1, log_v1 = odds + noise * p0_x1, log_p1 - rest.log()
        target = divergence(c1, log_v1.exp(), log_v1.exp() - c1, log_v1)
        return others + torch.where(xt == x1, 0.0, target)
    log_p, at_xt, at_x1 = _rows(logits, xt, x1, rest, source, prediction)
    c = odds[:, None] * at_x1 + noise[:, None] * p0[..., : source.vocab.data]
    v = log_p.exp() / rest[:, None]
    return torch.where(at_xt, 0.0, divergence(c, v, v - c, log_p - rest.log()[:, None])).sum(1)


def _implied_rows(
    logits: Float[Tensor, "n Vd"],
    xt: Int[Tensor, " n"],
    x1: Int[Tensor, " n"],
    rest: Float[Tensor, " n"],
    *positions: Int[Tensor, " n"],
    source: Source,
    prediction: Prediction,
) -> Float[Tensor, " n"]:
    source = source.of_rows(*positions) if positions else source
    log_p, at_xt, at_x1 = _rows(logits, xt, x1, rest, source, prediction)
    k, p0 = 1 - rest, source.probs_on(logits.device, log_p.dtype)
    p0_xt, p0_x1 = source.probs(xt, log_p.dtype), source.probs(x1, log_p.dtype)
    shift = Evidence().shift(xt, rest, source)
    certain = torch.isinf(shift)  # xt stays, and no neighbor moves to it
    # P without its evidence
    log_c = torch.where(at_xt & ~certain[:, None], log_p - shift[:, None], log_p).log_softmax(1)
    c = log_c.exp()
    other, at_z = torch.where(at_xt, 0.0, c).sum(1), torch.where(at_xt, c, 0.0).sum(1)
    noise, noise_z = rest[:, None] * p0[..., : source.vocab.data], rest * p0_xt
    # the distribution of this position at k given the others, implied by P
    law, law_z = noise + k[:, None] * c, noise_z + k * at_z
    # the reversed moves to y ≠ xt, except y = x1, whose probability may underflow
    undone = torch.where(at_xt | at_x1, 0.0, c * noise / torch.where(law > 0, law, 1.0)).sum(1)
    log_c1, noise_1 = log_c.gather(1, x1[:, None])[:, 0], rest * p0_x1
    log_law_1 = torch.logaddexp(noise_1.log(), k.log() + log_c1)
    # if p0(x1) = 0, c cancels: the ratio is 1/k, also for c = 0
    hit = torch.where(p0_x1 > 0, (noise_1 + k) * (log_c1 - log_law_1).exp(), 1.0)
    log_ratio = (noise_1 + k).log() - log_law_1 + law_z.log() - noise_z.log()
    misses = (noise_z * other / law_z - undone - hit + log_ratio) / rest
    arrived = p0_xt * (other / law_z - undone / (noise_z + k))
    return torch.where(certain, 0.0, torch.where(xt == x1, arrived, misses))


def _kernel(logits: Float[Tensor, "n Vd"], source: Source) -> Callable[..., tuple[Tensor, ...]] | None:
    """The Triton kernel that needs one pass over the logits instead of about forty; None if it cannot be used.

    It reads one p0 for all rows.
    """
    on = source.shared and logits.is_cuda and switch.current.divergence and has_kernels(logits)
    if torch.is_grad_enabled() or logits.dtype == torch.float64 or not on:
        return None
    from .kernels.divergence_triton import row_divergence

    return row_divergence


def _rows(
    logits: Float[Tensor, "n Vd"],
    xt: Int[Tensor, " n"],
    x1: Int[Tensor, " n"],
    rest: Float[Tensor, " n"],
    source: Source,
    prediction: Prediction,
) -> tuple[Tensor, Tensor, Tensor]:
    """log P over data tokens, and which of its columns are xt and x1."""
    log_p = prediction.log_probs(logits, xt, rest, source)
    column = torch.arange(logits.shape[1], device=logits.device)
    return log_p, column == xt[:, None], column == x1[:, None]


def _log(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """log x; -inf with gradient 0 where x = 0."""
    return torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), -torch.inf)
