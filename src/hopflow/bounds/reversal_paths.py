"""Paths drawn backwards from x1 by the time reversal of a flow, and their importance weights.  theory.md (B_R)

One network call at x_n is used for two factors: the sampler's step from x_n to x_{n+1}, and the reversed step from x_n
to x_{n-1}. Where data tokens stay (a disjoint source with Carry or Evidence) the path needs no network, and its weight
needs it only at the steps that unmask a position. A network without time runs only where the state has changed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow
from ..network.network import Network
from ..paths import PathSample
from ..sampling.random_draws import RandomStreams
from ..velocities import Eta
from .network_scores import NetworkScores
from .reversal_steps import (
    FromPosterior,
    Renoising,
    Step,
    StepTable,
    TokenOdds,
    log_kernel,
    renoise_from_source,
)
from .x0_posterior import X0Posterior

Labels = Int[Tensor, " B"] | None
"""The label of each row; None for a network without labels."""
BLOCK = 1 << 24
"""Random numbers that are drawn at once."""


class ReversedPaths:
    """Draws paths x_N = x1, …, x_0 backwards, with weights w = p0(x_0)·Π K_θ(x_{n+1}|x_n)/b(x_n|x_{n+1}).

    Tokens are redrawn from the source. For coupled pairs at η = 0 they are redrawn from p_{0|t}: that of the network's
    x0_head if it has one, or that of `x0`, a network (xt, t) -> logits (B, L, V). `gamma` is described in
    `renoise_from_source`.
    """

    def __init__(
        self,
        model: Network,
        flow: Flow,
        steps: int,
        eta: Eta = 0.0,
        *,
        gamma: float = 1.0,
        x0: Network | None = None,
        precision: str = "auto",
        device: torch.device | None = None,
    ) -> None:
        no_corrector = not callable(eta) and eta == 0
        if x0 is not None and not no_corrector:
            raise ValueError(f"x0 reverses the sampler with eta=0 only, got eta={eta}: leave x0 out.")
        self.model, self.flow, self.gamma, self.x0 = model, flow, gamma, x0
        self.x0_head: Any = getattr(model, "x0_head", None) if x0 is None and flow.couples and no_corrector else None
        self._last_features: tuple[int, Tensor, Tensor] | None = None
        self.scores = NetworkScores(model, flow, precision)
        self.device = device or torch.device("cpu")
        self.float64_device = torch.device("cpu") if self.device.type == "mps" else self.device
        self.table = StepTable(flow, steps, eta, self.float64_device)
        self.time_dtype = self.scores.caller.time_dtype
        self.calls = 0
        """Network calls so far, counted per row."""

    @property
    def steps(self) -> int:
        return self.table.steps

    def batch(self, length: int) -> int:
        """Paths per network call."""
        rows = self.scores.caller.batch_size(length, self.device)
        if self.x0 is None:
            return rows  # a head runs in chunks of rows
        return max(1, min(rows, BLOCK // (length * self.flow.vocab.size)))  # log p_{0|t} is held for all tokens

    def log_weights(self, x1: Int[Tensor, "B L"], streams: RandomStreams, labels: Labels = None) -> Float[Tensor, " B"]:
        """log w of one reversed path per row, drawn from the random numbers of the row."""
        return self._weigh(x1.to(self.float64_device), self._uniforms(streams, x1.shape[1]), None, self._there(labels))

    def log_weights_of(self, path: Sequence[Int[Tensor, "B L"]], labels: Labels = None) -> Float[Tensor, " B"]:
        """log w of given paths x_0, …, x_N."""
        if len(path) != self.steps + 1:
            raise ValueError(f"a path of {self.steps} steps has {self.steps + 1} states, got {len(path)}.")
        states = [x.to(self.float64_device) for x in path]
        return self._weigh(states[-1], iter(()), states[:-1], self._there(labels))

    def _weigh(
        self, x1: Int[Tensor, "B L"], uniforms: Iterator[Tensor], path: Sequence[Tensor] | None, labels: Labels
    ) -> Float[Tensor, " B"]:
        """log w of the paths, drawn from `uniforms` or given as `path`."""
        network_free = not self.uses_posterior and self.flow.prediction.keeps_data_tokens(self.flow.source)
        total = torch.zeros(len(x1), dtype=torch.float64, device=self.float64_device)
        x, odds, delayed = x1, None, _StepBuffer(len(x1))
        for n in range(self.steps - 1, -1, -1):
            back = self.backward(n, x, odds, labels)
            y = back.draw(next(uniforms)) if path is None else path[n]
            total -= back.log_prob(y).sum(1)
            if network_free:
                total += self._log_kernel_delayed(n, y, x, delayed, total, labels)
                odds = None
            else:
                odds = self._odds(n, y, x, odds, labels)
                total += self.forward(n, y, x, odds).sum(1)
            x = y
        for steps in delayed.rest():
            self._add_log_kernel(steps, total, labels)
        return total + self.flow.source.probs(x, torch.float64).log().sum(1)

    @property
    def uses_posterior(self) -> bool:
        """Whether tokens are redrawn from p_{0|t}, and not from the source."""
        return self.x0 is not None or self.x0_head is not None

    # one step

    def forward(self, n: int, xt: Int[Tensor, "B L"], new: Int[Tensor, "B L"], odds: TokenOdds) -> Float[Tensor, "B L"]:
        """log K_θ(x_{n+1} = new | x_n = xt)."""
        return log_kernel(self.flow, self._step(n), xt, new, odds)

    def backward(self, n: int, x: Int[Tensor, "B L"], odds: TokenOdds | None, labels: Labels = None) -> Renoising:
        """b(x_n | x_{n+1} = x), from the odds at x_{n+1}; not needed at n + 1 = N."""
        step = self._step(n)
        if self.uses_posterior:
            return FromPosterior(x, step.noised, self._posterior(n + 1, x, labels))
        return renoise_from_source(self.flow, step, x, odds, self.gamma)

    def odds(
        self, n: int | Int[Tensor, " B"], xt: Int[Tensor, "B L"], new: Int[Tensor, "B L"], labels: Labels = None
    ) -> TokenOdds:
        """The odds of xt and of the next tokens by the network at x_n = xt; one call."""
        is_data = self.flow.vocab.is_data(new)
        target = torch.where(is_data, new, 0)  # a mask is never predicted
        t, rest = (times[n].to(self.time_dtype).to(self.device) for times in (self.table.t, self.table.rest))
        if isinstance(n, int):  # an index on the device would make the host wait for it
            t, rest = t.repeat(len(xt)), rest.repeat(len(xt), 1)
        xt_there, target = xt.to(self.device), target.to(self.device)
        sample = PathSample(xt_there, target, xt_there, t, rest, torch.ones_like(rest), labels=labels)
        if self.x0_head is not None and isinstance(n, int):  # both heads have the same input
            features = self._features(n, xt, labels)
            scores = self.scores(sample, features)
        else:
            scores = self.scores(sample)
            self.calls += len(xt)
        against, share = (
            value.to(self.float64_device).double() for value in (scores.log_context_odds, scores.log_share)
        )
        return TokenOdds(
            torch.where(self.flow.vocab.is_data(xt), against, torch.inf),
            torch.where(is_data, share, -torch.inf),
        )

    def _odds(self, n: int, xt: Tensor, new: Tensor, before: TokenOdds | None, labels: Labels) -> TokenOdds:
        """The same; a network without time is called only for the rows that have changed."""
        if before is None or self.uses_posterior or getattr(self.model, "time", True):
            return self.odds(n, xt, new, labels)
        changed = (xt != new).any(1).nonzero()[:, 0]
        if not len(changed):
            return before
        fresh = self.odds(n, xt[changed], new[changed], _of_rows(labels, changed))
        return TokenOdds(
            before.against.index_copy(0, changed, fresh.against), before.share.index_copy(0, changed, fresh.share)
        )

    def _log_kernel_delayed(
        self, n: int, xt: Tensor, new: Tensor, delayed: "_StepBuffer", total: Float[Tensor, " B"], labels: Labels
    ) -> Float[Tensor, " B"]:
        """log K_θ of the rows in which no mask becomes data; the other rows are delayed until a batch is full."""
        vocab = self.flow.vocab
        unmasks = (vocab.is_data(new) & ~vocab.is_data(xt)).any(1)
        against = torch.where(vocab.is_data(xt), 0.0, torch.inf).double()  # independent of the network
        unchanged = self.forward(n, xt, new, TokenOdds(against, torch.full_like(against, -torch.inf))).sum(1)
        at = unmasks.nonzero()[:, 0]
        for steps in delayed.add(DelayedSteps(at, torch.full_like(at, n), xt[at], new[at])):
            self._add_log_kernel(steps, total, labels)
        return torch.where(unmasks, 0.0, unchanged)

    def _add_log_kernel(self, steps: "DelayedSteps", total: Float[Tensor, " B"], labels: Labels) -> None:
        """Add log K_θ of delayed steps to the totals of their rows."""
        row, n, xt, new = steps
        log_k = log_kernel(self.flow, self.table.at(n), xt, new, self.odds(n, xt, new, _of_rows(labels, row)))
        total.index_add_(0, row, log_k.sum(1))

    def _posterior(self, n: int, xt: Int[Tensor, "B L"], labels: Labels) -> X0Posterior:
        """p_{0|t} at x_n = xt."""
        if self.x0 is None:
            inputs = self._inputs(n, xt, labels)
            features = self.scores.x0_features(self._features(n, xt, labels), *inputs)
            return X0Posterior.from_head(self.x0_head, features, xt, self.table.rest[n][None], self.flow.source)
        logits = self.x0(*self._inputs(n, xt, labels))
        return X0Posterior.from_logits(logits, xt, self.flow.source)

    def _features(self, n: int, xt: Int[Tensor, "B L"], labels: Labels) -> Tensor:
        """The features at x_n = xt, used for the sampler's step and the reversed step."""
        if self._last_features is None or self._last_features[0] != n or self._last_features[1] is not xt:
            self._last_features = n, xt, self.scores.features(*self._inputs(n, xt, labels))
            self.calls += len(xt)
        return self._last_features[2]

    def _inputs(self, n: int, xt: Int[Tensor, "B L"], labels: Labels) -> tuple[Tensor, ...]:
        """The arguments of the network at x_n = xt."""
        t = self.table.t[n].to(self.time_dtype).to(self.device).expand(len(xt))
        return (xt.to(self.device), t) if labels is None else (xt.to(self.device), t, labels)

    def _there(self, labels: Labels) -> Labels:
        return None if labels is None else labels.to(self.device)

    def _step(self, n: int) -> Step:
        return self.table.at(slice(n, n + 1))

    def _uniforms(self, streams: RandomStreams, length: int) -> Iterator[Float[Tensor, "B L"]]:
        """The random numbers of each step, from the last step to the first."""
        block = max(1, BLOCK // (len(streams) * length))
        for start in range(0, self.steps, block):
            numbers = streams.uniform(min(block, self.steps - start), length).to(self.float64_device)
            yield from numbers.unbind(1)


def _of_rows(labels: Tensor | None, rows: Tensor) -> Tensor | None:
    """The labels of some rows."""
    return None if labels is None else labels[rows.to(labels.device)]


class DelayedSteps(NamedTuple):
    """Steps from xt to `new` of several rows, with one n per row."""

    row: Int[Tensor, " m"]
    n: Int[Tensor, " m"]
    xt: Int[Tensor, "m L"]
    new: Int[Tensor, "m L"]


class _StepBuffer:
    """Collects steps until there are enough for a network call."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.parts: list[DelayedSteps] = []

    def add(self, steps: DelayedSteps) -> Iterator[DelayedSteps]:
        """Collect these steps, and return batches once there are enough."""
        self.parts.append(steps)
        self.count += len(steps.row)
        if self.count >= self.size:
            yield from self.rest()

    def rest(self) -> Iterator[DelayedSteps]:
        """All collected steps, in batches."""
        if self.count:
            columns = [torch.cat(column) for column in zip(*self.parts, strict=True)]
            self.parts, self.count = [], 0
            yield from (DelayedSteps(*piece) for piece in zip(*(c.split(self.size) for c in columns), strict=True))
