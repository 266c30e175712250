"""Oracle: a flow on a state space small enough to enumerate, with every quantity computed to about ten digits.

Times are integrated in τ = logit k, where the rates of (F) are bounded and the integrands of the bounds decay like
e^{-|τ|} and are analytic in a strip, so that composite Gauss quadrature converges fast. The formulas are the textbook
ones, in float64, over all tokens; the numerically careful ones of the package are tested against them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from ..flow import Flow
from ..network.network import Network, NetworkCaller
from ..velocities import Eta, check_refresh, eta_at, kernel, refresh_chances, step_sizes, velocity, with_refresh
from . import kolmogorov
from .space import Joint, Space

EDGE = 34.0
"""The largest |τ| of an integral: 1-k = 2e-15, where t still differs from 1."""
CHUNK = 1 << 22
"""Largest number of elements of a tensor."""


@dataclass(frozen=True)
class Moment:
    """K points of time: t, k, 1 - k, the speed of each position (per unit of k if shared), and dk/dτ."""

    t: Float[Tensor, " K"]
    k: Float[Tensor, "K #L"]
    rest: Float[Tensor, "K #L"]
    speed: Float[Tensor, "K #L"]
    per_tau: Float[Tensor, " K"]


@dataclass(frozen=True, eq=False)
class Oracle:
    """Exact quantities of a flow with data distribution q over `space.data`.

    `model` is the network; None means the perfect one. `joint` is the distribution of the pairs (x0, x1) of the path;
    None means independent pairs. Samplers always start from the source.
    """

    flow: Flow
    q: Float[Tensor, " D"]
    length: int
    model: Network | None = None
    joint: Joint | None = None

    def __post_init__(self) -> None:
        if self.q.shape != (self.flow.vocab.data**self.length,):
            raise ValueError(
                f"q must contain one probability per data sequence ({self.flow.vocab.data}^{self.length}), "
                f"got shape {tuple(self.q.shape)}."
            )
        if not bool((self.q >= 0).all()) or abs(float(self.q.sum()) - 1) > 1e-6:
            raise ValueError(f"q must be ≥ 0 and sum to 1; its sum is {float(self.q.sum()):.9g}.")
        # a float32 distribution sums to 1 only approximately
        object.__setattr__(self, "q", self.q.double() / self.q.double().sum())
        self.flow.check_length(self.length)
        if self.joint is not None:
            self.joint.check(self.space)

    # the flow

    @cached_property
    def space(self) -> Space:
        """All states and all data sequences."""
        return Space(self.flow.vocab, self.length)

    @cached_property
    def p0(self) -> Float[Tensor, "*#L V"]:
        """The token distribution of the source, or that of each position."""
        return self.flow.source.probs_on(torch.device("cpu"), torch.float64)

    @cached_property
    def p0_by_position(self) -> Float[Tensor, "L V"]:
        """The token distribution of the source at each position."""
        return self.p0.expand(self.length, -1)

    @cached_property
    def source_law(self) -> Float[Tensor, " S"]:
        """The distribution of x0 over all states."""
        return self.space.law(self.p0)

    @cached_property
    def entropy(self) -> float:
        """H(q) in nats."""
        return float(torch.special.entr(self.q).sum())

    def moment(self, tau: Float[Tensor, " K"]) -> Moment:
        """The points of time at τ = logit k; with position-specific schedules τ = logit t."""
        k, rest = torch.sigmoid(tau), torch.sigmoid(-tau)
        schedule = self.flow.schedule
        if not schedule.shared:
            t, left = k[:, None], rest[:, None]
            late = torch.where(tau[:, None] > 0, schedule.rest_at_end(left), schedule.rest(t))
            return Moment(k, schedule.k(t), late, schedule.dk(t), k * rest)
        t = torch.where(k < 0.5, schedule.inverse(k), schedule.time(rest))
        return Moment(t, k[:, None], rest[:, None], torch.ones_like(rest)[:, None], k * rest)

    def at(self, t: float) -> Moment:
        """The point of time t."""
        time = torch.tensor([t], dtype=torch.float64)
        schedule, column = self.flow.schedule, time[:, None]
        return Moment(time, schedule.k(column), schedule.rest(column), schedule.dk(column), torch.ones_like(time))

    def marginal(self, moment: Moment) -> Float[Tensor, "K S"]:
        """p_t, the distribution of the path at each point of time. Eq. (2) [main_flow_def]"""
        return self.predictive(moment)[1]

    def predictive(self, moment: Moment) -> tuple[Float[Tensor, "K S L Vd"], Float[Tensor, "K S"]]:
        """The true p_{1|t} for this coupling, uniform where p_t = 0, and p_t itself."""
        joint = self.joint_with_x1(moment)  # (K, S, L, Vd): p(xt, x1^i)
        marginal = joint[:, :, 0].sum(-1)
        total = joint.sum(-1, keepdim=True)
        law = torch.where(total > 0, joint / torch.where(total > 0, total, 1.0), 1 / self.flow.vocab.data)
        return law, marginal

    def joint_with_x1(self, moment: Moment) -> Float[Tensor, "K S L Vd"]:
        """p(xt, x1^i) for every state, position and data token."""
        if self.joint is None:
            return self._independent_joint(moment)
        space, joint = self.space, self.joint
        k = len(moment.t)
        patterns = torch.cartesian_prod(*([torch.tensor([False, True])] * self.length)).view(-1, self.length)
        rest = moment.rest.expand(k, self.length)
        # (K, 2^L): probability of each noise pattern
        chance = torch.where(patterns, rest[:, None], 1 - rest[:, None]).prod(-1)
        xt = torch.where(patterns[None], joint.x0[:, None], joint.x1[:, None])  # (P, 2^L, L)
        mass = (joint.weight[:, None] * chance[:, None, :]).flatten(1)  # (K, P·2^L)
        ids = space.ids(xt).flatten()
        out = torch.zeros(k, len(space.states), self.length, self.flow.vocab.data, dtype=torch.float64)
        for i in range(self.length):
            token = joint.x1[:, i].repeat_interleave(len(patterns))
            flat = ids * self.flow.vocab.data + token
            part = torch.zeros(k, out.shape[1] * out.shape[3], dtype=torch.float64).index_add(1, flat, mass)
            out[:, :, i] = part.view(k, out.shape[1], out.shape[3])
        return out

    def _independent_joint(self, moment: Moment) -> Float[Tensor, "K S L Vd"]:
        spread = self.spread(moment.rest)
        law = self.q.expand(len(moment.t), -1).reshape(len(moment.t), *self.space.data_shape)
        out = []
        for i in range(self.length):
            others = law
            for j in range(self.length):
                if j != i:
                    others = along(others, spread[j], j)  # (K, …, V at j, …), with x1^i at axis i
            own = others.movedim(i + 1, -1).unsqueeze(i + 1)  # a new axis for xt^i, and x1^i last
            shape = [len(moment.t)] + [1] * self.length + [self.flow.vocab.data]
            shape[i + 1] = self.flow.vocab.size
            out.append((own * spread[i].view(shape)).flatten(1, self.length))
        return torch.stack(out, 2)

    def spread(self, noise: Float[Tensor, "K #L"]) -> list[Float[Tensor, "K V Vd"]]:
        """p(xt^i | x1^i) of each position: p0 with probability `noise`, else x1^i."""
        eye = torch.eye(self.flow.vocab.size, self.flow.vocab.data, dtype=torch.float64)
        noise = noise.expand(-1, self.length)[:, :, None, None]
        return list((noise * self.p0_by_position[:, :, None] + (1 - noise) * eye).unbind(1))

    # the network

    def probs(self, moment: Moment) -> Float[Tensor, "K S L V"]:
        """P of every state, with probability 0 for masks; without a network, the true p_{1|t}."""
        if self.model is None:
            data = self.predictive(moment)[0]
        else:
            k, states = len(moment.t), self.space.states
            xt = states.repeat(k, 1)
            t = moment.t.repeat_interleave(len(states))
            logits = NetworkCaller(self.model, plain_time=torch.float64).logits(xt, t).double()
            rest = moment.rest.repeat_interleave(len(states), 0).expand(xt.shape)
            data = self.flow.prediction.log_probs(logits, xt, rest, self.flow.source).exp()
            data = data.view(k, len(states), self.length, -1)
        return torch.cat([data, data.new_zeros(*data.shape[:-1], self.flow.vocab.masks)], -1)

    def velocities(self, moment: Moment, eta: Eta, probs: Tensor | None = None) -> Float[Tensor, "K S L V"]:
        """v_η[P] of every state, per unit of k (of t, position-specific); 0 at xt.  theory.md (F)"""
        p = self.probs(moment) if probs is None else probs
        like = p.shape[:-1]
        k, rest = (value[:, None].expand(like) for value in (moment.k, moment.rest))
        rates = velocity(p, self.space.states.expand(like), self.p0, k, rest, eta_at(eta, moment.t)[:, None, None])
        return moment.speed[:, None, :, None] * rates

    # its samplers

    def law(
        self, eta: Eta = 0.0, steps: int | None = None, end: float = 0.0, refresh: float | int = 0.0
    ) -> Float[Tensor, " D"]:
        """p_θ over data sequences: the result of the continuous sampler, or of the N-step sampler with steps=N.

        The N-step sampler may refresh positions, as `Euler(steps, refresh=R)` does.
        With end > 0 the continuous sampler stops at 1-k = end and redraws every position once.
        """
        check_refresh(refresh, steps)
        if steps is not None:
            law = self._after_steps(eta, steps, refresh)[0]
        elif eta == end == 0 and self._has_orders():
            law = self._over_orders()
        else:
            law = self._after_flow(eta, end)[0]
        return self._on_data(law)

    def nll(
        self, eta: Eta = 0.0, steps: int | None = None, end: float = 0.0, refresh: float | int = 0.0
    ) -> Float[Tensor, " D"]:
        """-log p_θ(x1) of each data sequence."""
        return -self.law(eta, steps, end, refresh).log()

    def cross_entropy(
        self, eta: Eta = 0.0, steps: int | None = None, end: float = 0.0, refresh: float | int = 0.0
    ) -> float:
        """H(q, p_θ)."""
        return self.mean(self.nll(eta, steps, end, refresh))

    def jumps(self, eta: Eta = 0.0, steps: int | None = None, refresh: float | int = 0.0) -> float:
        """The expected number of token changes of a sample."""
        check_refresh(refresh, steps)
        return self._after_flow(eta, 0.0)[1] if steps is None else self._after_steps(eta, steps, refresh)[1]

    def mean(self, values: Float[Tensor, " D"]) -> float:
        """The mean over q; sequences of probability 0 are ignored."""
        return float(torch.where(self.q > 0, self.q * values, 0.0).sum())

    def path_law(self, eta: Eta, taus: Float[Tensor, " K"]) -> Float[Tensor, "K S"]:
        """The distribution of the state of the continuous sampler at these τ."""
        return kolmogorov.along(self.space, self.rates(eta), self.source_law, taus, -EDGE, EDGE)

    def _after_flow(self, eta: Eta, end: float) -> tuple[Float[Tensor, " S"], float]:
        """The final distribution of the continuous sampler, and its expected number of jumps."""
        stop = EDGE if end == 0 else math.log((1 - end) / end)
        law, jumps = kolmogorov.terminal(self.space, self.rates(eta), self.source_law, -EDGE, stop)
        if end > 0:
            last = self.moment(torch.tensor([stop], dtype=torch.float64))
            law, moved = self._step(law, last, last.rest, torch.zeros_like(last.rest))
            jumps += moved
        return law, jumps

    def rates(self, eta: Eta) -> kolmogorov.Rates:
        """v_η[P] as a function of τ, per unit of τ, in which it is bounded."""

        def rates(taus: Float[Tensor, " K"]) -> Float[Tensor, "K S L V"]:
            moment = self.moment(taus)
            return moment.per_tau[:, None, None, None] * self.velocities(moment, eta)

        return rates

    def _after_steps(self, eta: Eta, steps: int, refresh: float | int) -> tuple[Float[Tensor, " S"], float]:
        law, jumps, chances = self.source_law, 0.0, refresh_chances(refresh, steps)
        for (now, gain, eta_now), chance in zip(self.steps(eta, steps), chances, strict=True):
            law, moved = self._step(law, now, gain, eta_now, chance[None, None])
            jumps += moved
        return law, jumps

    def steps(self, eta: Eta, steps: int) -> Iterator[tuple[Moment, Tensor, Tensor]]:
        """The time, the gain of k and η of each of N equal steps of t."""
        t = torch.arange(steps + 1, dtype=torch.float64) / steps
        rest = self.flow.schedule.rest(t[:, None])
        for n in range(steps):
            now = self.at(float(t[n]))
            yield now, now.rest - rest[n + 1 : n + 2], eta_at(eta, now.t)[:, None]

    def _step(
        self, law: Float[Tensor, " S"], moment: Moment, gain: Tensor, eta: Tensor, refresh: Tensor | None = None
    ) -> tuple[Float[Tensor, " S"], float]:
        """One step of (F_N): all positions move at once, so the result is a sum over states of products of L rows."""
        kernels = self.kernels(self.probs(moment), moment, gain, eta, refresh)[0]
        at = self.space.states[:, :, None]
        moved = (law * (1 - kernels.gather(-1, at)[..., 0]).sum(1)).sum()
        half = self.length // 2
        new = torch.zeros(self.flow.vocab.size**half, self.flow.vocab.size ** (self.length - half), dtype=torch.float64)
        for rows, mass in zip(kernels.split(_chunk(new)), law.split(_chunk(new)), strict=True):
            new += (mass[:, None] * outer(rows[:, :half])).T @ outer(rows[:, half:])
        return new.flatten(), float(moved)

    def kernels(
        self, p: Float[Tensor, "K S L V"], moment: Moment, gain: Tensor, eta: Tensor, refresh: Tensor | None = None
    ) -> Float[Tensor, "K S L V"]:
        """`K[P](·|x)` of every state, for a step that adds `gain` to k and refreshes with probability `refresh`.

        theory.md (F_N), (F_R)
        """
        like = p.shape[:-1]
        r, s = step_sizes(moment.rest, gain, eta)
        r, s, noise = with_refresh(r, s, moment.rest - gain, torch.zeros_like(r) if refresh is None else refresh)
        columns = (moment.k, moment.rest, r, s, noise)
        k, rest, r, s, noise = (value[:, None].expand(like) for value in columns)
        return kernel(p, self.space.states.expand(like), self.p0, k, rest, r, s, noise)

    def _has_orders(self) -> bool:
        """Whether p_θ is a mean over orders: a network without t, and positions unmasked one by one in random order."""
        return (
            self.flow.schedule.shared
            and self.model is not None
            and not getattr(self.model, "time", True)
            and self.flow.prediction.keeps_data_tokens(self.flow.source)
        )

    def _over_orders(self) -> Float[Tensor, " S"]:
        """p_θ as a mean over all orders in which positions are unmasked, by dynamic programming."""
        probs = self.probs(self.at(0.5))[0]
        noisy = ~self.flow.vocab.is_data(self.space.states)
        left = noisy.sum(1)
        law = self.source_law
        for m in range(self.length, 0, -1):
            rates = torch.where(noisy[:, :, None] & (left == m)[:, None, None], probs / m, 0.0)
            law = torch.where(left == m, 0.0, law) + kolmogorov.flux(self.space, law, rates)[0]
        return law

    def _on_data(self, law: Float[Tensor, " S"]) -> Float[Tensor, " D"]:
        return law[self.space.ids(self.space.data)]


def along(law: Tensor, matrix: Float[Tensor, "K out in"], axis: int) -> Tensor:
    """Apply a matrix along one position's axis, for each of the K points of time."""
    moved = law.movedim(axis + 1, 1)  # (K, in, …)
    return torch.einsum("koi,ki...->ko...", matrix, moved).movedim(1, axis + 1)


def outer(rows: Float[Tensor, "n l V"]) -> Float[Tensor, "n W"]:
    """The product distribution of the l positions of each row, flattened."""
    out = rows.new_ones(len(rows), 1)
    for column in rows.unbind(1):
        out = (out[:, :, None] * column[:, None, :]).flatten(1)
    return out


def _chunk(new: Tensor) -> int:
    return max(1, CHUNK // max(new.shape))
