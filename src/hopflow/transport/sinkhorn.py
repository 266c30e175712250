"""Entropic optimal transport by Sinkhorn iterations on a cost matrix."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .assignment import check_finite

CHECK_EVERY = 8
"""Iterations between two checks of the error; a check makes the host wait for a GPU."""
LOG_STEPS = 4
"""Iterations in the log domain after the scalings have left the range of the float type."""
FIRST_EPS = 0.01
"""The eps at which annealing starts; above it, annealing costs more than it saves."""
STAGE = 4.0
"""The factor between the eps of two stages of annealing."""


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """A transport plan P between n rows and m columns of uniform mass, with its dual potentials f and g.

    P_ij = exp((f_i + g_j - cost_ij)/reg)/(n·m) = rows_ij/n. The rows have mass 1/n. `marginal_error` is the error of
    the columns, Σ_j |Σ_i P_ij - 1/m|, between 0 and 2. `dual_gap` is the value of the plan minus that of its
    potentials, Σ_j g_j·(Σ_i P_ij - 1/m). It vanishes with the marginal error and may be negative, because a plan with
    wrong marginals can cost less than the optimal one. All fields are per batch element.
    """

    rows: Float[Tensor, "*batch n m"]
    f: Float[Tensor, "*batch n"]
    g: Float[Tensor, "*batch m"]
    reg: Float[Tensor, "*batch"]
    iterations: Int[Tensor, "*batch"]
    marginal_error: Float[Tensor, "*batch"]
    dual_gap: Float[Tensor, "*batch"]
    converged: Bool[Tensor, "*batch"]

    def plan(self) -> Float[Tensor, "*batch n m"]:
        """The probabilities of the columns for each row; every row sums to 1."""
        return self.rows

    @property
    def information(self) -> Float[Tensor, "*batch"]:
        """Mean KL(T_j ‖ uniform) over the rows T_j, in nats.  theory.md §4"""
        kl = torch.special.xlogy(self.rows, self.rows).sum(-1) + math.log(self.rows.shape[-1])
        return kl.mean(-1).clamp(min=0)


def sinkhorn(
    cost: Float[Tensor, "*batch n m"],
    eps: float,
    *,
    scale: Float[Tensor, "*batch"] | float | None = None,
    tol: float = 1e-6,
    max_iterations: int = 10_000,
    potentials: tuple[Float[Tensor, "*batch n"], Float[Tensor, "*batch m"]] | None = None,
) -> TransportPlan:
    """Entropic OT: min_P ⟨P, cost⟩ + eps·scale·KL(P ‖ uniform × uniform), where P has uniform marginals.

    eps is relative to `scale`, by default the largest entry of the cost. A cost without its row and column constants
    has the same plan, but needs the scale of the complete cost. Iterates until the marginal error is at most tol, or
    max_iterations; `converged` says which. `potentials` (f, g) are a starting point; by default eps is lowered in
    stages. Computes in the float type of the cost, at least float32, in which errors below about 1e-7/eps are out of
    reach.

    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> sinkhorn(cost, eps=0.5).rows
    tensor([[0.8808, 0.1192],
            [0.1192, 0.8808]], dtype=torch.float64)
    """
    _check(cost, eps, tol, max_iterations)
    c = cost.detach().to(torch.promote_types(cost.dtype, torch.float32))
    unit = _unit(cost, c, scale)
    relative = c / -unit[..., None, None]
    stages = [eps] if potentials is not None else list(_stages(eps))
    g = torch.zeros_like(c[..., 0, :]) if potentials is None else potentials[1].to(c) / unit[..., None]
    done = torch.zeros(cost.shape[:-2], dtype=torch.long, device=c.device)
    count, last = 0, len(stages) - 1
    for stage, at in enumerate(stages):
        left = max(1, max_iterations - count)
        budget, goal = (left, tol / 2) if stage == last else (min(left, 4 * CHECK_EVERY), max(tol, 0.05))
        end = _ScaledProblem(relative, at).iterate(g / at, goal, budget)
        g, done, count = end.gamma * at, done + end.used, count + end.count
    rows = end.kernel.mul_(end.v[..., None, :])
    rows /= rows.sum(-1, keepdim=True)
    off = rows.mean(-2) - 1 / rows.shape[-1]
    error = off.abs().sum(-1)
    # eps first: unit·eps may overflow where the potentials do not
    f, g = end.phi * eps * unit[..., None], end.gamma * eps * unit[..., None]
    return TransportPlan(rows, f, g, unit * eps, done, error, (off * g).sum(-1), error <= tol)


@dataclass(frozen=True, eq=False)
class _Iterate:
    """The result of the iterations: potentials, and the kernel and the column scaling that make the plan."""

    phi: Tensor
    gamma: Tensor
    kernel: Tensor
    v: Tensor
    used: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class _ScaledProblem:
    """A problem in units of its regularization: s = relative/eps = -cost/reg, potentials phi = f/reg, gamma = g/reg.

    s is not stored, because that would need another pass over the matrix.
    """

    relative: Float[Tensor, "*batch n m"]
    eps: float

    def raised(self, potential: Tensor) -> Tensor:
        """s plus a potential, in one pass over the matrix."""
        return torch.add(potential, self.relative, alpha=1 / self.eps)

    def rows(self, gamma: Tensor) -> Tensor:
        """The phi with which every row has its mass."""
        return math.log(self.relative.shape[-1]) - torch.logsumexp(self.raised(gamma[..., None, :]), -1)

    def columns(self, phi: Tensor) -> Tensor:
        """The gamma with which every column has its mass."""
        return math.log(self.relative.shape[-2]) - torch.logsumexp(self.raised(phi[..., :, None]), -2)

    def kernel(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """exp(phi + s + gamma)/m and phi, with phi chosen so that every row has its mass; one exponential per entry."""
        t = self.raised(gamma[..., None, :])
        top = t.amax(-1)
        k = torch.softmax(t, -1)
        return k, math.log(k.shape[-1]) + k.amax(-1).log() - top  # the largest entry of a row does not underflow

    def iterate(self, gamma: Tensor, goal: float, budget: int) -> _Iterate:
        """Improve gamma until the error of every batch element is at most `goal`, or for `budget` iterations.

        Potentials are absorbed into a kernel K = exp(phi + s + gamma)/m, so that an iteration is two matrix-vector
        products. When the scalings leave the range of floats, some iterations run in the log domain instead.
        (Over-relaxation was tried: it saves at most half of the iterations, and only where a thousand are needed.)
        """
        n, m = self.relative.shape[-2:]
        used = torch.zeros(self.relative.shape[:-2], dtype=torch.long, device=gamma.device)
        error = torch.full_like(used, math.inf, dtype=gamma.dtype)
        safe = 0.25 * math.log(torch.finfo(gamma.dtype).max)
        count = 0
        while True:
            kernel, phi = self.kernel(gamma)
            u, v = torch.ones_like(phi), torch.ones_like(gamma)
            mass = _apply(kernel.mT, u) * (m / n)  # of the columns for v = 1
            error = torch.where(error <= goal, error, (v * mass - 1).abs().mean(-1))
            running = error > goal
            some = bool(running.any())
            while some and count < budget:
                kept, steps = (u, v), min(CHECK_EVERY, budget - count)
                for step in range(steps):
                    v = n / m / _apply(kernel.mT, u) if step else 1 / mass
                    u = 1 / _apply(kernel, v)
                u, v = (torch.where(running[..., None], new, old) for new, old in zip((u, v), kept, strict=True))
                mass = _apply(kernel.mT, u) * (m / n)
                after = torch.where(error <= goal, error, (v * mass - 1).abs().mean(-1))
                largest = torch.stack([u.log().abs().amax(), v.log().abs().amax()]).max()
                # both at once, because each read makes the host wait for a GPU
                in_range, some_after = torch.stack([largest < safe, (after > goal).any()]).tolist()  # not if NaN
                used = used + running * (steps if in_range else min(LOG_STEPS, steps))
                if not in_range:
                    steps = min(LOG_STEPS, steps)
                    gamma = gamma + kept[1].log()
                    for _ in range(steps):
                        gamma = torch.where(running[..., None], self.columns(self.rows(gamma)), gamma)
                    count += steps
                    break
                count, error, some, running = count + steps, after, some_after, after > goal
            else:
                return _Iterate(phi + u.log(), gamma + v.log(), kernel, v, used, count)


def _apply(kernel: Tensor, vector: Tensor) -> Tensor:
    return kernel @ vector if vector.ndim == 1 else (kernel @ vector[..., None])[..., 0]


def _stages(eps: float) -> Iterator[float]:
    """The values of eps from FIRST_EPS down to eps; potentials are passed from stage to stage."""
    at = FIRST_EPS
    while at > eps:
        yield at
        at /= STAGE
    yield eps


def _unit(cost: Tensor, c: Tensor, scale: Tensor | float | None) -> Tensor:
    """What eps is relative to, per batch element; 1 for a cost that is zero everywhere."""
    lowest, largest = c.amin((-2, -1)), c.amax((-2, -1))
    if scale is None:
        unit = largest
    elif isinstance(scale, Tensor):
        unit = scale.to(largest).expand(largest.shape)
    else:
        unit = torch.full_like(largest, scale)
    unit = torch.where((lowest == largest) & (unit <= 0), 1.0, unit)
    if not bool((torch.isfinite(lowest) & torch.isfinite(largest) & torch.isfinite(unit) & (unit > 0)).all()):
        check_finite(cost)
        raise ValueError(
            f"eps is relative to the largest entry of the cost, which must be positive, got {float(unit.min()):g}. For "
            f"a cost without its row and column constants pass scale=, the largest entry of the complete cost."
        )
    return unit


def _check(cost: Tensor, eps: float, tol: float, max_iterations: int) -> None:
    if cost.ndim < 2 or 0 in cost.shape[-2:]:
        raise ValueError(f"cost must be a matrix with at least one row and column, got shape {tuple(cost.shape)}.")
    if not (eps > 0 and math.isfinite(eps)):
        raise ValueError(f"eps must be positive and finite, got {eps}. For eps = 0 use ExactOT() (coupling=exact).")
    if not tol > 0 or max_iterations < 1:
        raise ValueError(f"tol must be positive and max_iterations ≥ 1, got {tol} and {max_iterations}.")
