"""Two velocities on one state space, and the integrals of the paper's theorems about them.

Theorem 4.1 [theorem2], Theorem 4.2 [corollary4], Prop. 4.3 [proposition2], Prop. 4.4 [proposition3], Prop. A.1
[proposition1].
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from .space import Space

Velocity = Callable[[float], Float[Tensor, "S L V"]]
"""t -> the rate at which position i of each state moves to each token; the rate of the current token is ignored."""


@dataclass(frozen=True)
class PathKL:
    """The terms of Theorem 4.1 [theorem2] between a flow q with velocity w and a flow p with velocity v.

    terminal = start + forward - backward, and start + forward is the bound of Theorem 4.2 [corollary4].
    """

    start: float
    terminal: float
    forward: float
    backward: float
    entropy_start: float
    entropy_end: float
    entropy_gain: float
    """The integral of Prop. 4.3 [proposition2]."""
    alternative: float
    """The right-hand side of Prop. 4.4 [proposition3], a bound on H(q_1, p_1)."""
    cross_entropy: float

    @property
    def bound(self) -> float:
        return self.start + self.forward


def kl_bound(
    space: Space,
    w: Velocity,
    v: Velocity,
    q0: Float[Tensor, " S"],
    p0: Float[Tensor, " S"],
    until: float = 1.0,
) -> PathKL:
    """Integrate both flows from t = 0 to `until`, and every term of the theorems.

    Eq. (13), Eq. (14) [NNL_bound], Eq. (66) [full_kl]
    """
    if not bool((q0 > 0).all() and (p0 > 0).all()):
        raise ValueError(
            "q0 and p0 must be positive everywhere, because the backward term is singular where a state has "
            "probability 0. For flows that start from masks use exact.bound and exact.precise_nll."
        )
    size = len(space.states)
    target = space.neighbours
    moves = torch.arange(space.vocab.size) != space.states[..., None]

    def change(t: float, y: np.ndarray) -> np.ndarray:
        q, p = torch.from_numpy(y[:size]), torch.from_numpy(y[size : 2 * size])
        wt, vt = (torch.where(moves, rate(t), 0.0) for rate in (w, v))
        w_flux, v_flux = q[:, None, None] * wt, p[:, None, None] * vt
        # reversed rates from the target back, with the weight q of the state they leave: q(x)·r_p·v
        w_back, v_back = w_flux, torch.where(moves, (q / p)[target] * v_flux, 0.0)
        forward = _kl(w_flux, q[:, None, None] * vt)
        backward = _kl(w_back, v_back)
        ratio = (q[:, None, None] / q[target]).log()  # of the state left to the state reached
        gain = torch.where(w_flux > 0, w_flux * (ratio - 1), 0.0).sum() + w_flux.sum()
        reached = torch.where(moves, wt * q[:, None, None] / q[target], 0.0)  # w̃ from the target to here
        logs = torch.where(w_flux > 0, w_flux * (reached / vt).log(), 0.0).sum()
        alternative = (q[:, None, None] * vt).sum() + logs - w_flux.sum()
        terms = torch.stack([forward, backward, gain, alternative])
        return torch.cat([_net(w_flux, target), _net(v_flux, target), terms]).numpy()

    start = torch.cat([q0.double(), p0.double(), torch.zeros(4, dtype=torch.float64)]).numpy()
    solved = solve_ivp(change, (0.0, until), start, method="DOP853", rtol=1e-11, atol=1e-13)
    if not solved.success:
        raise RuntimeError(f"the two flows could not be integrated: {solved.message}")
    found = torch.from_numpy(solved.y[:, -1])
    q1, p1 = found[:size], found[size : 2 * size]
    forward, backward, gain, alternative = (float(x) for x in found[2 * size :])
    begin = float(_kl(q0.double(), p0.double()))
    return PathKL(
        start=begin,
        terminal=float(_kl(q1, p1)),
        forward=forward,
        backward=backward,
        entropy_start=_entropy(q0.double()),
        entropy_end=_entropy(q1),
        entropy_gain=gain,
        alternative=_entropy(q0.double()) + begin + alternative,
        cross_entropy=float(-torch.where(q1 > 0, q1 * p1.log(), 0.0).sum()),
    )


def _net(flux: Float[Tensor, "S L V"], target: Tensor) -> Float[Tensor, " S"]:
    into = torch.zeros(len(flux), dtype=torch.float64).index_add(0, target.flatten(), flux.flatten())
    return into - flux.sum((1, 2))


def _kl(c: Tensor, v: Tensor) -> Tensor:
    return (torch.where(c > 0, c * (c / v).log(), 0.0) - c + v).sum()


def _entropy(law: Tensor) -> float:
    return float(torch.special.entr(law).sum())
