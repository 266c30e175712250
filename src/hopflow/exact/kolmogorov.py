"""The forward Kolmogorov equation of a sampler on all states: distributions along τ, and the expected jumps.

Small spaces are integrated by Gauss collocation on panels, with all rates evaluated at once; large ones by an adaptive
Runge–Kutta method that never builds a matrix over the states.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from .space import Space

Rates = Callable[[Float[Tensor, " K"]], Float[Tensor, "K S L V"]]
"""τ -> the rate at which each position of each state moves to each token, per unit of τ; 0 for the current token."""

SMALL = 40
"""Number of states up to which a matrix over the states is faster."""
PANEL, STAGES = 0.5, 8


def flux(space: Space, p: Float[Tensor, " S"], rates: Float[Tensor, "S L V"]) -> tuple[Tensor, Tensor]:
    """The probability flux into each state and out of it."""
    moving = p[:, None, None] * rates
    into, v = torch.zeros_like(p), space.vocab.size
    for i in range(space.length):
        before, after = v**i, v ** (space.length - 1 - i)
        into += moving[:, i].view(before, v, after, v).sum(1).transpose(1, 2).reshape(-1)
    return into, moving.sum((1, 2))


def terminal(
    space: Space, rates: Rates, start: Float[Tensor, " S"], a: float, b: float
) -> tuple[Float[Tensor, " S"], float]:
    """The distribution at τ = b for the start at τ = a, and the expected number of jumps."""
    if len(space.states) > SMALL:
        found = _adaptive(space, rates, start, a, b, None, 1e-13)
        return found[-1, :-1], float(found[-1, -1])
    y = torch.cat([start, start.new_zeros(1)])
    for matrix in _advances(space, rates, a, b):
        y = y + matrix @ y
    return y[:-1], float(y[-1])


def terminal_pairs(space: Space, rates: Rates, start: Float[Tensor, " S"], a: float, b: float) -> Float[Tensor, "S S"]:
    """The joint distribution of the state at τ = a, which has the distribution `start`, and the state at τ = b."""
    y = torch.diag(start)
    if len(space.states) > SMALL:
        rows = start.nonzero()[:, 0]
        y[rows] = _adaptive_rows(space, rates, y[rows], a, b)
        return y
    for matrix in _advances(space, rates, a, b):
        y = y + y @ matrix[:-1, :-1].T
    return y


def _advances(space: Space, rates: Rates, a: float, b: float) -> Iterator[Float[Tensor, "S1 S1"]]:
    """For each panel the matrix A such that y becomes y + A y; y is the distribution, followed by the jumps."""
    panels = int(np.ceil((b - a) / PANEL))
    edges = torch.linspace(a, b, panels + 1, dtype=torch.float64)
    c, weights, inner = _gauss_stages()
    step = (b - a) / panels
    size = len(space.states) + 1
    for part in (edges[:-1, None] + step * c).split(max(1, (1 << 23) // (STAGES * size) ** 2)):
        generators = _generators(space, rates(part.flatten())).view(len(part), STAGES, size, size)
        # Y_j = y + h Σ_l inner[j, l] A_l Y_l, solved for every unit vector y at once
        blocks = -step * inner[:, :, None, None] * generators[:, None]  # (n, j, l, S, S)
        system = blocks.transpose(2, 3).reshape(len(part), STAGES * size, STAGES * size)
        system = system + torch.eye(STAGES * size, dtype=torch.float64)
        unit = torch.eye(size, dtype=torch.float64).repeat(STAGES, 1).expand(len(part), -1, -1)
        stages = torch.linalg.solve(system, unit).view(len(part), STAGES, size, size)
        yield from step * torch.einsum("l,nlij,nljk->nik", weights, generators, stages)


def along(
    space: Space, rates: Rates, start: Float[Tensor, " S"], taus: Float[Tensor, " K"], a: float, b: float
) -> Float[Tensor, "K S"]:
    """The distribution at each of these τ, accurate for states of small probability, too."""
    return _adaptive(space, rates, start, a, b, taus, 1e-30)[:-1, :-1]


def _adaptive(
    space: Space, rates: Rates, start: Tensor, a: float, b: float, taus: Tensor | None, small: float
) -> Float[Tensor, "K S1"]:
    def change(tau: float, y: np.ndarray) -> np.ndarray:
        p = torch.from_numpy(y[:-1])
        into, out = flux(space, p, rates(torch.tensor([tau], dtype=torch.float64))[0])
        return torch.cat([into - out, out.sum()[None]]).numpy()

    y = torch.cat([start, start.new_zeros(1)]).numpy()
    times = np.array([b]) if taus is None else np.append(taus.numpy(), b)
    found = solve_ivp(change, (a, b), y, method="DOP853", rtol=1e-10, atol=small, t_eval=times)
    if not found.success:
        raise RuntimeError(f"the Kolmogorov equation could not be integrated: {found.message}")
    return torch.from_numpy(found.y.T)


def _adaptive_rows(space: Space, rates: Rates, start: Float[Tensor, "R S"], a: float, b: float) -> Float[Tensor, "R S"]:
    """The distribution at τ = b for each of R distributions at τ = a."""

    def change(tau: float, y: np.ndarray) -> np.ndarray:
        generator = _generators(space, rates(torch.tensor([tau], dtype=torch.float64)))[0, :-1, :-1]
        return (torch.from_numpy(y).view(start.shape) @ generator.T).flatten().numpy()

    found = solve_ivp(change, (a, b), start.flatten().numpy(), method="DOP853", rtol=1e-10, atol=1e-13, t_eval=[b])
    if not found.success:
        raise RuntimeError(f"the Kolmogorov equation could not be integrated: {found.message}")
    return torch.from_numpy(found.y[:, -1]).view(start.shape)


def _generators(space: Space, rates: Float[Tensor, "K S L V"]) -> Float[Tensor, "K S1 S1"]:
    """The matrices A of dy/dτ = A y, where y is the distribution followed by the number of jumps."""
    k, size = len(rates), len(space.states)
    out = rates.sum((2, 3))
    here = torch.arange(size)[:, None, None]
    flat = (space.neighbours * size + here).flatten()
    matrix = torch.zeros(k, size * size, dtype=torch.float64).index_add(1, flat, rates.flatten(1))
    matrix = matrix.view(k, size, size) - torch.diag_embed(out)
    matrix = torch.cat([matrix, out[:, None]], 1)
    return torch.cat([matrix, matrix.new_zeros(k, size + 1, 1)], 2)


@cache
def _gauss_stages() -> tuple[Tensor, Tensor, Tensor]:
    """Nodes c and weights on [0, 1], and inner[j, l] = ∫_0^{c_j} of the l-th Lagrange polynomial."""
    x, w = np.polynomial.legendre.leggauss(STAGES)
    c, w = (x + 1) / 2, w / 2
    powers = np.arange(STAGES)
    vandermonde = c[:, None] ** powers
    integrals = c[:, None] ** (powers + 1) / (powers + 1)
    inner = np.linalg.solve(vandermonde.T, integrals.T).T
    return torch.from_numpy(c), torch.from_numpy(w), torch.from_numpy(inner)
