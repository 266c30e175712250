"""The time reversal of an N-step sampler on an enumerable space: its kernels, weights, and the exact bound."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..network.network import NetworkCaller
from ..predictions import Evidence
from ..velocities import Eta, eta_at, step_sizes
from .oracle import Moment, Oracle
from .space import Joint

MAX_PATHS = 1 << 22
"""Largest number of paths that are enumerated."""


def predictive_x0(oracle: Oracle, moment: Moment) -> Float[Tensor, "K S L V"]:
    """The true p_{0|t} for the oracle's pairs, uniform where p_t = 0."""
    space, size = oracle.space, oracle.flow.vocab.size
    joint = oracle.joint or Joint.of(space, oracle.source_law[:, None] * oracle.q)
    patterns = torch.cartesian_prod(*([torch.tensor([False, True])] * oracle.length)).view(-1, oracle.length)
    rest = moment.rest.expand(len(moment.t), oracle.length)
    chance = torch.where(patterns, rest[:, None], 1 - rest[:, None]).prod(-1)  # (K, 2^L): these positions are noisy
    ids = space.ids(torch.where(patterns[None], joint.x0[:, None], joint.x1[:, None])).flatten()  # (P·2^L,)
    mass = (joint.weight[:, None] * chance[:, None, :]).flatten(1)  # (K, P·2^L)
    out = torch.zeros(len(moment.t), len(space.states), oracle.length, size, dtype=torch.float64)
    for i in range(oracle.length):
        flat = ids * size + joint.x0[:, i].repeat_interleave(len(patterns))
        part = torch.zeros(len(mass), len(space.states) * size, dtype=torch.float64).index_add(1, flat, mass)
        out[:, :, i] = part.view(len(mass), -1, size)
    total = out.sum(-1, keepdim=True)
    return torch.where(total > 0, out / torch.where(total > 0, total, 1.0), 1 / size)


@dataclass(frozen=True, eq=False)
class Reversal:
    """Paths drawn backwards from x1, and their weights w = p0(x_0)·Π K_θ/b.  theory.md (B_R)

    Tokens are redrawn from p_{0|t} if `x0` computes it, as for coupled pairs; otherwise from the source, with the
    network's context in (c/p0)^gamma, theory.md (R).
    """

    oracle: Oracle
    steps: int
    eta: Eta = 0.0
    gamma: float = 1.0
    x0: Callable[[Moment], Float[Tensor, "1 S L V"]] | None = None

    @cached_property
    def times(self) -> Float[Tensor, " N1"]:
        return torch.arange(self.steps + 1, dtype=torch.float64) / self.steps

    def forward(self, n: int) -> Float[Tensor, "S L V"]:
        """K_θ(·|x_n) of each position, for every state x_n."""
        now = self.oracle.at(float(self.times[n]))
        return self.oracle.kernels(self.oracle.probs(now), now, self._gain(n), eta_at(self.eta, now.t)[:, None])[0]

    def backward(self, n: int) -> Float[Tensor, "S L V"]:
        """b(·|x_{n+1}) of each position, for every state x_{n+1}."""
        after, states = self.oracle.at(float(self.times[n + 1])), self.oracle.space.states
        # (k'-k)/k'; from 1-k', so that it is exactly 1 where k = 0
        share = (self._gain(n) / (1 - after.rest)).expand(1, self.oracle.length)
        stay = torch.eye(self.oracle.flow.vocab.size, dtype=torch.float64)[states]
        if self.x0 is not None:
            return share[..., None] * self.x0(after)[0] + (1 - share[..., None]) * stay
        beta = self._chance(n, after, share)
        return beta[..., None] * self.oracle.p0 + (1 - beta[..., None]) * stay

    def _chance(self, n: int, after: Moment, share: Tensor) -> Float[Tensor, "S L"]:
        """The probability that a token of x_{n+1} is redrawn.  theory.md (R)"""
        vocab, x = self.oracle.flow.vocab, self.oracle.space.states
        if n + 1 == self.steps:
            return share.expand(x.shape)
        p0, is_data = self.oracle.p0_by_position[torch.arange(self.oracle.length), x], vocab.is_data(x)
        c = self.context(after).gather(-1, x.clamp(max=vocab.data - 1)[..., None])[..., 0]
        ratio = (c / torch.where(p0 > 0, p0, 1.0)) ** self.gamma
        beta = torch.where(p0 > 0, self._gain(n) * ratio / (after.rest + (1 - after.rest) * ratio), share)
        beta = torch.where(is_data, beta, 0.0)
        now = self.oracle.at(float(self.times[n]))
        r, s = step_sizes(now.rest, self._gain(n), eta_at(self.eta, now.t)[:, None].expand_as(now.rest))
        eta = s * (1 - after.rest) / (r * after.rest)  # s is capped at 1 - r
        return (beta + eta * (share - beta)).clamp(max=1)

    def context(self, moment: Moment) -> Float[Tensor, "S L Vd"]:
        """P(x1^i = x | the other positions) by the network: its prediction without the evidence of xt."""
        oracle, states = self.oracle, self.oracle.space.states
        assert oracle.model is not None, "without a network, pass x0=partial(predictive_x0, oracle)"
        caller = NetworkCaller(oracle.model, plain_time=torch.float64)
        logits = caller.logits(states, moment.t.expand(len(states))).double()
        rest, source = moment.rest.expand(states.shape), oracle.flow.source
        more = Evidence().shift(states, rest, source) - oracle.flow.prediction.shift(states, rest, source)
        more = torch.where(torch.isfinite(more), more, 0.0)  # where a token is certain, the context does not matter
        at = torch.arange(logits.shape[-1]) == states[..., None]
        return torch.where(at, logits - more[..., None], logits).softmax(-1)

    def step(self, n: int) -> tuple[Float[Tensor, "S S"], Float[Tensor, "S S"]]:
        """K_θ(x_{n+1}|x_n) and b(x_n|x_{n+1}), both with a row per x_{n+1} and a column per x_n."""
        states = self.oracle.space.states
        forth, back = self.forward(n), self.backward(n)
        here = torch.arange(len(states))
        forth = torch.stack([forth[here, i][:, states[:, i]] for i in range(self.oracle.length)]).prod(0)
        back = torch.stack([back[here, i][:, states[:, i]] for i in range(self.oracle.length)]).prod(0)
        return forth.T, back

    def mean_weight(self) -> Float[Tensor, " D"]:
        """E[w] of each x1 by dynamic programming: p_θ^(N)(x1), or less where b cannot propose some paths."""
        value = self._start
        for n in range(self.steps - 1, -1, -1):
            forth, back = self.step(n)
            value = value @ torch.where(back > 0, forth, 0.0)
        return value @ self.oracle.source_law

    def bound(self) -> Float[Tensor, " D"]:
        """E[-log w] of each x1, the bound with one path; inf where a weight may be 0."""
        law, total = self._start, torch.zeros(len(self._start), dtype=torch.float64)
        for n in range(self.steps - 1, -1, -1):
            forth, back = self.step(n)
            price = torch.where(back > 0, back * (back.log() - forth.log()), 0.0).sum(1)
            total, law = total + _mean(law, price), law @ back
        return total + _mean(law, -self.oracle.source_law.log())

    def law(self, x1: Int[Tensor, " L"]) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
        """log w of every path backwards from x1, and the probability of the path."""
        count = len(self.oracle.space.states)
        if count**self.steps > MAX_PATHS:
            raise ValueError(f"{count}^{self.steps} paths are too many to enumerate (at most {MAX_PATHS:,}).")
        end, log_w, chance = self.oracle.space.ids(x1[None]), torch.zeros(1).double(), torch.ones(1).double()
        for n in range(self.steps - 1, -1, -1):
            forth, back = self.step(n)
            log_w = (log_w[:, None] + forth[end].log() - back[end].log()).flatten()
            chance = (chance[:, None] * back[end]).flatten()
            end = torch.arange(count).repeat(len(end))
            end, log_w, chance = end[chance > 0], log_w[chance > 0], chance[chance > 0]
        return log_w + self.oracle.source_law.log()[end], chance

    def bound_of_two(self, x1: Int[Tensor, " L"]) -> float:
        """E[-log (w_1 + w_2)/2], the bound with two paths, over all pairs of paths."""
        log_w, chance = self.law(x1)
        total = 0.0
        for one, p in zip(log_w.split(1024), chance.split(1024), strict=True):
            mean = torch.logaddexp(one[:, None], log_w) - torch.log(torch.tensor(2.0).double())
            total -= float((p[:, None] * chance * mean).sum())
        return total

    @cached_property
    def _start(self) -> Float[Tensor, "D S"]:
        """One row per x1, where every path begins."""
        space = self.oracle.space
        return torch.eye(len(space.states), dtype=torch.float64)[space.ids(space.data)]

    def _gain(self, n: int) -> Float[Tensor, "1 #L"]:
        rest = self.oracle.flow.schedule.rest(self.times[n : n + 2, None])
        return rest[:1] - rest[1:]


def _mean(law: Float[Tensor, "D S"], values: Float[Tensor, " S"]) -> Float[Tensor, " D"]:
    return torch.where(law > 0, law * values, 0.0).sum(1)
