"""Exact optimal transport between two sets of rows of equal size: pure functions on a cost matrix."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

BLOCK = 256
"""Rows that a pass over the matrix holds at once; they fit a cache."""
SINGLE = 1024
"""Rows from which a float32 cost is solved in float32, two to four times as fast, if it has the digits for that."""
DIGITS = 1e-4
"""What rounding to float32, at 2^-22 of the largest cost, may be of what is paid. Where a few costs are far above all
others, or next to nothing is paid, float64 it is."""
Matrix = np.ndarray[Any, np.dtype[Any]]
LOOK_EVERY = 8
"""Rounds of a certificate between two looks at its gap; a look costs as much as a round."""


def assignment(cost: Float[Tensor, "n n"], engine: str | None = None) -> Int[Tensor, " n"]:
    """The permutation σ that minimises Σ_i cost[i, σ(i)].

    Exact, because with equal uniform marginals a vertex is optimal. Engines find the same optimum, where it is not
    unique perhaps by another permutation; by default the one that `best_engine` names.
    """
    if cost.ndim != 2 or cost.shape[0] != cost.shape[1]:
        raise ValueError(f"an assignment pairs as many rows as columns; got a cost of shape {tuple(cost.shape)}")
    # numpy from here on: the threads of torch wait for each other, on a busy machine for longer than it takes to solve
    solve, given = _solve(engine or best_engine()), cost.detach().cpu()
    given = given if given.dtype.itemsize >= 4 else given.float()  # numpy has no bfloat16
    largest = float(max(-given.numpy().min(initial=0), given.numpy().max(initial=0)))
    if not math.isfinite(largest):
        check_finite(cost)
    columns = _solved_in_float32(solve, given.numpy(), largest) if len(given) >= SINGLE else None
    columns = solve(_reduced(given.numpy(), largest, np.float64)) if columns is None else columns
    return torch.from_numpy(columns.astype(np.int64)).to(cost.device)


def best_engine() -> str:
    """lapx where it is installed (`pip install 'hopflow[ot]'`): after the reduction it was fastest at every size.

    Measured on 2 cores from n = 64 to 4096, on Hamming and squared embedding costs: `hopflow bench ot`.
    """
    return "lapx" if find_spec("lap") else "scipy"


@dataclass(frozen=True, eq=False)
class Certificate:
    """Potentials with u_i + v_j ≤ cost_ij for all i and j, so that no permutation pays less than Σ u + Σ v.

    `gap` is what the permutation pays above that: 0 proves it optimal. `relative_gap` divides it by what is paid, or
    by the largest entry of the cost if that is more.
    """

    u: Float[Tensor, " n"]
    v: Float[Tensor, " n"]
    gap: float
    relative_gap: float


def certificate(
    cost: Float[Tensor, "n n"], order: Int[Tensor, " n"], *, rounds: int = 1000, tol: float = 1e-12
) -> Certificate:
    """Dual potentials that fit a permutation, by shortest paths (Bellman–Ford) on the differences of its costs.

    In an optimal dual u_i - u_k ≤ cost[i, σ(k)] - cost[k, σ(k)] for all i and k. Each round lowers u until that holds;
    for a permutation that is not optimal it never does, and the gap stays open. Any u gives a valid bound, so that
    stopping early, at a relative gap of tol, is safe.
    """
    check_finite(cost)
    c = cost.detach().to(_wide(cost))
    n = len(c)
    if sorted(order.tolist()) != list(range(n)):
        raise ValueError("a certificate is for a permutation: every column once")
    at = c[:, order.to(c.device)]  # column k is the one that row k is given
    own = at.diagonal().clone()
    paid, unit = float(own.sum()), max(abs(float(own.sum())), float(c.abs().max()), math.ulp(0.0))
    u = torch.zeros_like(own)
    best = (-math.inf, u, u)
    for turn in range(rounds):
        before = u.clone()
        for block in torch.arange(n, device=c.device).split(BLOCK):  # each block sees what those before it found
            u[block] = torch.minimum(u[block], (at[block] + (u - own)).amin(1))
        still = bool((u == before).all())
        if still or (turn + 1) % LOOK_EVERY == 0 or turn + 1 == rounds:
            v = _column_bound(at, u)
            best = max(best, (float(u.sum() + v.sum()), u.clone(), v), key=lambda bound: bound[0])
        if still or paid - best[0] <= tol * unit:
            break
    bound, u, v = best
    gap = max(paid - bound, 0.0)
    return Certificate(u, torch.empty_like(v).index_copy(0, order.to(c.device), v), gap, gap / unit)


def check_finite(cost: Float[Tensor, "*shape"]) -> None:
    """Refuse a cost with entries that are no numbers, in one pass over the matrix."""
    if cost.numel() and not bool(torch.isfinite(torch.stack(cost.detach().aminmax())).all()):
        half = ", or compute it in float32: half precision ends at 65504" if cost.dtype == torch.float16 else ""
        raise ValueError(
            f"the transport cost has NaN or infinite entries; look at the embeddings or the cost function{half}"
        )


def _column_bound(at: Tensor, u: Tensor) -> Tensor:
    """The largest v with u_i + v_k ≤ at_ik."""
    v = torch.full_like(u, math.inf)
    for block in torch.arange(len(u), device=u.device).split(BLOCK):
        v = torch.minimum(v, (at[block] - u[block, None]).amin(0))
    return v


def _solved_in_float32(solve: Callable[[Matrix], Matrix], cost: Matrix, largest: float) -> Matrix | None:
    """The optimal columns, or None if float32 is too coarse to tell."""
    if cost.dtype != np.float32:
        return None
    c = _reduced(cost, largest, np.float32)
    columns = solve(c)
    paid = abs(float(cost[np.arange(len(cost)), columns].sum(dtype=np.float64)))
    exact = largest < 2**23 and _whole(cost)
    return columns if exact or 2.0**-22 * largest * len(cost) <= DIGITS * paid else None


def _whole(x: Matrix) -> bool:
    return bool((x == x.round()).all())


def _reduced(cost: Matrix, largest: float, kind: type[np.floating[Any]]) -> Matrix:
    """The same problem with non-negative costs and a zero in every row and column, in this type.

    Row and column constants change no optimal permutation. Taking off the means of the columns, then the minima of
    the rows and of the columns, halves the time of both engines on embedding costs.
    """
    most = np.finfo(kind).maxexp - 2
    # a power of 2 loses no digit; lapx begins its searches for a minimum at a million, so costs stay far below
    exponent = math.frexp(largest)[1]
    c: Matrix = np.multiply(cost, math.ldexp(1.0, -max(min(exponent, most), -most)), dtype=kind)
    if not _whole(cost[0]):  # whole numbers, as in Hamming distances, are quicker left whole
        c -= c.mean(0)
    c -= c.min(1)[:, None]
    c -= c.min(0)
    return c


def _solve(engine: str) -> Callable[[Any], Any]:
    if engine == "scipy":
        return lambda c: linear_sum_assignment(c)[1]
    if engine == "lapx":
        try:
            from lap import lapjv, lapjvs
        except ImportError as error:
            raise ImportError(
                "the engine lapx is not installed: pip install 'hopflow[ot]', or use scipy", name="lapx"
            ) from error
        return lambda c: lapjv(c, return_cost=False)[0] if c.itemsize == 8 else lapjvs(c, return_cost=False)[1]
    raise ValueError(f"engines are {', '.join(ENGINES)}; got {engine!r}")


def _wide(cost: Tensor) -> torch.dtype:
    return torch.float32 if cost.device.type == "mps" else torch.float64  # mps has no float64


ENGINES = ("scipy", "lapx")
