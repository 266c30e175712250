"""Entropic optimal transport: the plan of least cost plus eps times its divergence from independence; a verdict."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .ot import check_finite

CHECK_EVERY = 8
"""Iterations between two looks at the error: a look makes a GPU wait."""
LOG_STEPS = 4
"""Iterations in the log domain after the kernel has left the range of its float type."""
FIRST_EPS = 0.01
"""Where annealing starts; above it, it costs more than it saves."""
STAGE = 4.0
"""By how much eps falls from one stage of annealing to the next."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A transport plan P between n rows and m columns of uniform mass, by its dual potentials.

    P_ij = exp((f_i + g_j - cost_ij)/reg)/(n·m) = rows_ij/n. Its rows have mass 1/n; `marginal_error` is how far its
    columns are from 1/m, Σ_j |Σ_i P_ij - 1/m|, a number between 0 and 2. `dual_gap` is the value of the plan less that
    of its potentials, Σ_j g_j·(Σ_i P_ij - 1/m): it vanishes with the marginal error, and has no sign, because a plan
    that is a little off may be cheaper than any that is right. All of them are per batch element.
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
        """The law over columns of each row: every row sums to 1."""
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
) -> Plan:
    """min_P ⟨P, cost⟩ + eps·scale·KL(P ‖ uniform × uniform), rows and columns of P with uniform mass.

    eps is relative to `scale`, by default the largest entry of the cost; a cost without its row and column constants
    has the same plan, but must be given the scale of the full one. Iterates until the marginal error (see Plan) is at
    most tol; `converged` says whether it is. `potentials` (f, g) are a start, else eps is lowered in stages. Solves in
    the cost's own float type, float32 at least: an error below about 1e-7/eps cannot be had in float32.
    """
    _check(cost, eps, tol, max_iterations)
    wide = torch.promote_types(cost.dtype, torch.float32)
    c = cost.detach().to(wide)
    unit = _unit(cost, c, scale)
    relative = c / -unit[..., None, None]
    stages = [eps] if potentials is not None else list(_stages(eps))
    g = torch.zeros_like(c[..., 0, :]) if potentials is None else potentials[1].to(c) / unit[..., None]
    done = torch.zeros(cost.shape[:-2], dtype=torch.long, device=c.device)
    count, last = 0, len(stages) - 1
    for stage, at in enumerate(stages):
        left = max(1, max_iterations - count)
        budget, goal = (left, tol / 2) if stage == last else (min(left, 4 * CHECK_EVERY), max(tol, 0.05))
        end = _Problem(relative, at).iterate(g / at, goal, budget)
        g, done, count = end.gamma * at, done + end.used, count + end.count
    rows = end.kernel.mul_(end.v[..., None, :])
    rows /= rows.sum(-1, keepdim=True)
    off = rows.mean(-2) - 1 / rows.shape[-1]
    error = off.abs().sum(-1)
    # eps first: unit·eps may be beyond the float type where the potentials are not
    f, g = end.phi * eps * unit[..., None], end.gamma * eps * unit[..., None]
    return Plan(rows, f, g, unit * eps, done, error, (off * g).sum(-1), error <= tol)


@dataclass(frozen=True, eq=False)
class _End:
    """Where an iteration ended: potentials, and the kernel with the scaling of its columns that makes the plan."""

    phi: Tensor
    gamma: Tensor
    kernel: Tensor
    v: Tensor
    used: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class _Problem:
    """One problem in units of its regularisation: s = relative/eps = -cost/reg, potentials phi = f/reg, gamma = g/reg.

    s itself is never held: it costs a pass over the matrix, which is what everything here costs.
    """

    relative: Float[Tensor, "*batch n m"]
    eps: float

    def raised(self, potential: Tensor) -> Tensor:
        """s plus a potential, in one pass."""
        return torch.add(potential, self.relative, alpha=1 / self.eps)

    def rows(self, gamma: Tensor) -> Tensor:
        """The phi that gives every row its mass."""
        return math.log(self.relative.shape[-1]) - torch.logsumexp(self.raised(gamma[..., None, :]), -1)

    def columns(self, phi: Tensor) -> Tensor:
        """The gamma that gives every column its mass."""
        return math.log(self.relative.shape[-2]) - torch.logsumexp(self.raised(phi[..., :, None]), -2)

    def kernel(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """exp(phi + s + gamma)/m and phi, with the phi that gives every row its mass; one exponential per entry."""
        t = self.raised(gamma[..., None, :])
        top = t.amax(-1)
        k = torch.softmax(t, -1)
        return k, math.log(k.shape[-1]) + k.amax(-1).log() - top  # the largest entry of a row is far from 0

    def iterate(self, gamma: Tensor, goal: float, budget: int) -> _End:
        """Improve gamma until every batch element meets the goal.

        Potentials are absorbed into a kernel K = exp(phi + s + gamma)/m, on which an iteration is two products with a
        vector. When the scalings leave the range of floats, some iterations are done in the log domain instead.
        (Over-relaxation was tried: at most half the iterations, and only where a thousand are needed.)
        """
        n, m = self.relative.shape[-2:]
        used = torch.zeros(self.relative.shape[:-2], dtype=torch.long, device=gamma.device)
        error = torch.full_like(used, math.inf, dtype=gamma.dtype)
        safe = 0.25 * math.log(torch.finfo(gamma.dtype).max)
        count = 0
        while True:
            kernel, phi = self.kernel(gamma)
            u, v = torch.ones_like(phi), torch.ones_like(gamma)
            mass = _apply(kernel.mT, u) * (m / n)  # of the columns, were v = 1
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
                # both answers at once: a look makes a GPU wait
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
                return _End(phi + u.log(), gamma + v.log(), kernel, v, used, count)


def _apply(kernel: Tensor, vector: Tensor) -> Tensor:
    return kernel @ vector if vector.ndim == 1 else (kernel @ vector[..., None])[..., 0]


def _stages(eps: float) -> Iterator[float]:
    """From where every start converges down to eps: potentials carry over from stage to stage."""
    at = FIRST_EPS
    while at > eps:
        yield at
        at /= STAGE
    yield eps


def _unit(cost: Tensor, c: Tensor, scale: Tensor | float | None) -> Tensor:
    """What eps is relative to, per batch element; a cost that is zero everywhere has no scale, and needs none."""
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
            f"eps is relative to the largest entry of the cost, which is {float(unit.min()):g}; for a cost without its "
            f"row and column constants pass scale=, the largest entry of the full cost"
        )
    return unit


def _check(cost: Tensor, eps: float, tol: float, max_iterations: int) -> None:
    if cost.ndim < 2 or 0 in cost.shape[-2:]:
        raise ValueError(f"a transport cost is a matrix with rows and columns; got shape {tuple(cost.shape)}")
    if not (eps > 0 and math.isfinite(eps)):
        raise ValueError(f"eps must be positive and finite; got {eps}. For eps = 0 use ExactOT.")
    if not tol > 0 or max_iterations < 1:
        raise ValueError(f"tol must be positive and max_iterations at least 1; got {tol} and {max_iterations}")
