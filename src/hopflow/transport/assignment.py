"""Exact optimal transport between two sets of rows of equal size, on a cost matrix."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..network.precision import widest_float

BLOCK = 256
"""Rows that are processed at once; they fit into a CPU cache."""
FLOAT32_ROWS = 1024
"""Rows from which a float32 cost is solved in float32, 2 to 4 times as fast, if its precision is sufficient."""
FLOAT32_ERROR = 1e-4
"""Largest rounding error of float32, at 2^-22 of the largest cost, relative to the total cost of the pairs. If a few
costs are far above the others, or the total is close to 0, float64 is used."""
Matrix = np.ndarray[Any, np.dtype[Any]]
CHECK_EVERY = 8
"""Rounds of a certificate between two computations of its gap, which costs as much as a round."""


def assignment(cost: Float[Tensor, "n n"], engine: str | None = None) -> Int[Tensor, " n"]:
    """The permutation σ that minimizes Σ_i cost[i, σ(i)].

    It is exact OT, because with equal uniform marginals a permutation is optimal. `engine` is scipy or lapx, by default
    that of `best_engine`. All engines find the same minimum; where several permutations attain it, they may differ.

    >>> assignment(torch.tensor([[4.0, 1.0], [2.0, 0.0]]))
    tensor([1, 0])
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"cost must be a square matrix, got shape {tuple(cost.shape)}.")
    # numpy from here on: on a busy machine the threads of torch wait for each other longer than it takes to solve
    solve, given = _solve(engine or best_engine()), cost.detach().cpu()
    given = given if given.dtype.itemsize >= 4 else given.float()  # numpy has no bfloat16
    largest = float(max(-given.numpy().min(initial=0), given.numpy().max(initial=0)))
    if not math.isfinite(largest):
        check_finite(cost)
    columns = _solved_in_float32(solve, given.numpy(), largest) if len(given) >= FLOAT32_ROWS else None
    columns = solve(_reduced(given.numpy(), largest, np.float64)) if columns is None else columns
    return torch.from_numpy(columns.astype(np.int64)).to(cost.device)


def best_engine() -> str:
    """lapx if it is installed (`pip install 'hopflow[ot]'`), else scipy; lapx was fastest at every size.

    Measured on 2 cores from n = 64 to 4096, on Hamming and squared embedding costs: `hopflow bench ot`.
    """
    return "lapx" if find_spec("lap") else "scipy"


@dataclass(frozen=True, eq=False)
class Certificate:
    """Dual potentials with u_i + v_j ≤ cost_ij for all i and j, so that no permutation costs less than Σ u + Σ v.

    `gap` is the cost of the permutation minus that bound; 0 proves that it is optimal. `relative_gap` is the gap
    divided by the cost of the permutation or the largest entry of the matrix, whichever is larger.
    """

    u: Float[Tensor, " n"]
    v: Float[Tensor, " n"]
    gap: float
    relative_gap: float


def certificate(
    cost: Float[Tensor, "n n"], order: Int[Tensor, " n"], *, rounds: int = 1000, tol: float = 1e-12
) -> Certificate:
    """Dual potentials for a permutation, by shortest paths (Bellman–Ford) on the differences of its costs.

    An optimal dual satisfies u_i - u_k ≤ cost[i, σ(k)] - cost[k, σ(k)] for all i and k. Each round lowers u until that
    holds; if the permutation is not optimal it never holds, and the gap stays positive. Every u is a valid bound, so
    that the iteration may stop at a relative gap of tol.
    """
    check_finite(cost)
    c = cost.detach().to(widest_float(cost.device))
    n = len(c)
    if sorted(order.tolist()) != list(range(n)):
        raise ValueError("order must be a permutation: every column exactly once.")
    at = c[:, order.to(c.device)]  # column k is the one assigned to row k
    own = at.diagonal().clone()
    paid, unit = float(own.sum()), max(abs(float(own.sum())), float(c.abs().max()), math.ulp(0.0))
    u = torch.zeros_like(own)
    best = (-math.inf, u, u)
    for count in range(rounds):
        before = u.clone()
        for block in torch.arange(n, device=c.device).split(BLOCK):  # each block uses the result of the previous ones
            u[block] = torch.minimum(u[block], (at[block] + (u - own)).amin(1))
        converged = bool((u == before).all())
        if converged or (count + 1) % CHECK_EVERY == 0 or count + 1 == rounds:
            v = _column_bound(at, u)
            best = max(best, (float(u.sum() + v.sum()), u.clone(), v), key=lambda bound: bound[0])
        if converged or paid - best[0] <= tol * unit:
            break
    bound, u, v = best
    gap = max(paid - bound, 0.0)
    return Certificate(u, torch.empty_like(v).index_copy(0, order.to(c.device), v), gap, gap / unit)


def check_finite(cost: Float[Tensor, "*shape"]) -> None:
    """Raise ValueError if the cost contains NaN or infinite entries; one pass over the matrix."""
    if cost.numel() and not bool(torch.isfinite(torch.stack(cost.detach().aminmax())).all()):
        half = ", or compute it in float32 (the largest float16 number is 65504)" if cost.dtype == torch.float16 else ""
        raise ValueError(
            f"the transport cost contains NaN or infinite entries: check the embeddings or the cost function{half}."
        )


def _column_bound(at: Tensor, u: Tensor) -> Tensor:
    """The largest v with u_i + v_k ≤ at_ik."""
    v = torch.full_like(u, math.inf)
    for block in torch.arange(len(u), device=u.device).split(BLOCK):
        v = torch.minimum(v, (at[block] - u[block, None]).amin(0))
    return v


def _solved_in_float32(solve: Callable[[Matrix], Matrix], cost: Matrix, largest: float) -> Matrix | None:
    """The optimal columns, or None if float32 is not precise enough."""
    if cost.dtype != np.float32:
        return None
    c = _reduced(cost, largest, np.float32)
    columns = solve(c)
    paid = abs(float(cost[np.arange(len(cost)), columns].sum(dtype=np.float64)))
    exact = largest < 2**23 and _are_integers(cost)
    return columns if exact or 2.0**-22 * largest * len(cost) <= FLOAT32_ERROR * paid else None


def _are_integers(x: Matrix) -> bool:
    return bool((x == x.round()).all())


def _reduced(cost: Matrix, largest: float, kind: type[np.floating[Any]]) -> Matrix:
    """The same problem with non-negative costs and a zero in every row and column, in this float type.

    Row and column constants do not change an optimal permutation. Subtracting the means of the columns, then the minima
    of the rows and of the columns, halves the time of both engines on embedding costs.
    """
    most = np.finfo(kind).maxexp - 2
    # a power of 2 loses no digit; lapx starts its searches for a minimum at 1e6, so costs stay far below
    exponent = math.frexp(largest)[1]
    c: Matrix = np.multiply(cost, math.ldexp(1.0, -max(min(exponent, most), -most)), dtype=kind)
    if not _are_integers(cost[0]):  # integers, as in Hamming distances, are solved faster as they are
        c -= c.mean(0)
    c -= c.min(1)[:, None]
    c -= c.min(0)
    return c


def _solve(engine: str) -> Callable[[Any], Any]:
    if engine == "scipy":
        from scipy.optimize import linear_sum_assignment  # slow to import, and not needed for sampling

        return lambda c: linear_sum_assignment(c)[1]
    if engine == "lapx":
        try:
            from lap import lapjv, lapjvs
        except ImportError as error:
            raise ImportError(
                "the engine lapx is not installed: run pip install 'hopflow[ot]', or use engine=\"scipy\".", name="lapx"
            ) from error
        return lambda c: lapjv(c, return_cost=False)[0] if c.itemsize == 8 else lapjvs(c, return_cost=False)[1]
    raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}.")


ENGINES = ("scipy", "lapx")
