"""Paths drawn backwards from x1 by the reversal of a flow, and their weights.  theory.md (B_R)

One network call at x_n serves two factors: the sampler's step from x_n to x_{n+1}, and the reversed step from x_n to
x_{n-1}. Where data tokens stay (a disjoint source under Carry or Evidence) the path needs no network, and its weight
only where a position becomes data. A network without time is run only where the state has changed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .flow import Flow
from .network import Network, clock_dtype
from .network_scores import NetworkScores
from .noise import Noise
from .paths import PathSample
from .reader import batch_size
from .reversed_steps import FromPosterior, Odds, Renoising, Step, StepTable, from_context, log_kernel
from .velocities import Eta
from .x0_law import X0Law

BLOCK = 1 << 24
"""Random numbers that are drawn at once."""


class ReversedPaths:
    """Draws paths x_N = x1, …, x_0 backwards, and weighs them by w = p0(x_0)·Π K_θ(x_{n+1}|x_n)/b(x_n|x_{n+1}).

    `gamma` tempers the reversal, 1 is the reversal itself. Tokens are renoised from the source, by the network's
    context; for coupled pairs at η = 0 from p_{0|t}, of the network's x0_head if it has one, or of `x0`, a network
    (xt, t) -> (B, L, V) for its logits.
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
        still = not callable(eta) and eta == 0
        if x0 is not None and not still:
            raise ValueError(f"a law of x0 reverses the sampler with eta=0 only; got eta={eta}: leave x0 out")
        self.model, self.flow, self.gamma, self.x0 = model, flow, gamma, x0
        self.x0_head: Any = getattr(model, "x0_head", None) if x0 is None and flow.couples and still else None
        self._kept: tuple[int, Tensor, Tensor] | None = None
        self.scores = NetworkScores(model, flow, precision)
        self.device = device or torch.device("cpu")
        self.place = torch.device("cpu") if self.device.type == "mps" else self.device  # where there is float64
        self.table = StepTable(flow, steps, eta, self.place)
        self.clock = clock_dtype(model)
        self.calls = 0
        """Network calls so far, counted per row."""

    @property
    def steps(self) -> int:
        return self.table.steps

    def batch(self, length: int) -> int:
        """Rows to weigh at once."""
        rows = batch_size(self.model, self.flow.vocab, length, self.device)
        if self.x0 is None:
            return rows  # a head runs on chunks of rows
        return max(1, min(rows, BLOCK // (length * self.flow.vocab.size)))  # full rows of log p_{0|t} are held

    def log_weights(self, x1: Int[Tensor, "B L"], noise: Noise) -> Float[Tensor, " B"]:
        """log w of one reversed path of each row, drawn from the row's random numbers."""
        return self._weigh(x1.to(self.place), self._uniforms(noise, x1.shape[1]), None)

    def log_weights_of(self, path: Sequence[Int[Tensor, "B L"]]) -> Float[Tensor, " B"]:
        """log w of given paths x_0, …, x_N."""
        if len(path) != self.steps + 1:
            raise ValueError(f"a path of {self.steps} steps has {self.steps + 1} states; got {len(path)}")
        states = [x.to(self.place) for x in path]
        return self._weigh(states[-1], iter(()), states[:-1])

    def _weigh(
        self, x1: Int[Tensor, "B L"], uniforms: Iterator[Tensor], path: Sequence[Tensor] | None
    ) -> Float[Tensor, " B"]:
        """By whichever way needs the fewest calls."""
        blind = not self.by_law and self.flow.prediction.stays(self.flow.source)
        total = torch.zeros(len(x1), dtype=torch.float64, device=self.place)
        x, odds, pending = x1, None, _Pending(len(x1))
        for n in range(self.steps - 1, -1, -1):
            back = self.backward(n, x, odds)
            y = back.draw(next(uniforms)) if path is None else path[n]
            total -= back.log_prob(y).sum(1)
            if blind:
                total += self._blind(n, y, x, pending, total)
                odds = None
            else:
                odds = self._odds(n, y, x, odds)
                total += self.forward(n, y, x, odds).sum(1)
            x = y
        for waiting in pending.left():
            self._settle(waiting, total)
        return total + self.flow.source.probs(x, torch.float64).log().sum(1)

    @property
    def by_law(self) -> bool:
        """Whether tokens are renoised from a law of x0."""
        return self.x0 is not None or self.x0_head is not None

    # one step

    def forward(self, n: int, xt: Int[Tensor, "B L"], new: Int[Tensor, "B L"], odds: Odds) -> Float[Tensor, "B L"]:
        """log K_θ(x_{n+1} = new | x_n = xt)."""
        return log_kernel(self.flow, self._step(n), xt, new, odds)

    def backward(self, n: int, x: Int[Tensor, "B L"], odds: Odds | None) -> Renoising:
        """b(x_n | x_{n+1} = x), from the odds at x_{n+1}; at n + 1 = N none are needed."""
        step = self._step(n)
        if self.by_law:
            return FromPosterior(x, step.noised, self._law(n + 1, x))
        return from_context(self.flow, step, x, odds, self.gamma)

    def odds(self, n: int | Int[Tensor, " B"], xt: Int[Tensor, "B L"], new: Int[Tensor, "B L"]) -> Odds:
        """What the network says at x_n = xt of the next state; one call."""
        is_data = self.flow.vocab.is_data(new)
        target = torch.where(is_data, new, 0)  # a mask is never predicted
        at = torch.as_tensor(n, device=self.place).expand(len(xt))
        t, rest = self.table.t[at].to(self.clock), self.table.rest[at]
        xt_there, target, t = (x.to(self.device) for x in (xt, target, t))
        rest = rest.to(self.clock).to(self.device)
        sample = PathSample(xt_there, target, xt_there, t, rest, torch.ones_like(rest))
        if self.x0_head is not None and isinstance(n, int):  # both heads read the same features
            features = self._features(n, xt)
            scores = self.scores(sample, body=lambda *_: features)
        else:
            scores = self.scores(sample)
            self.calls += len(xt)
        against, share = (value.to(self.place).double() for value in (scores.log_context_odds, scores.log_share))
        return Odds(
            torch.where(self.flow.vocab.is_data(xt), against, torch.inf),
            torch.where(is_data, share, -torch.inf),
        )

    def _odds(self, n: int, xt: Tensor, new: Tensor, before: Odds | None) -> Odds:
        """The same, from the odds at `new` where a network without time has seen the state already."""
        if before is None or self.by_law or getattr(self.model, "time", True):
            return self.odds(n, xt, new)
        changed = (xt != new).any(1).nonzero()[:, 0]
        if not len(changed):
            return before
        fresh = self.odds(n, xt[changed], new[changed])
        return Odds(
            before.against.index_copy(0, changed, fresh.against), before.share.index_copy(0, changed, fresh.share)
        )

    def _blind(
        self, n: int, xt: Tensor, new: Tensor, pending: "_Pending", total: Float[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """log K_θ of the rows in which no mask becomes data; the others wait for a full batch."""
        vocab = self.flow.vocab
        unmasks = (vocab.is_data(new) & ~vocab.is_data(xt)).any(1)
        against = torch.where(vocab.is_data(xt), 0.0, torch.inf).double()  # what no network can change
        silent = self.forward(n, xt, new, Odds(against, torch.full_like(against, -torch.inf))).sum(1)
        at = unmasks.nonzero()[:, 0]
        for waiting in pending.add(Waiting(at, torch.full_like(at, n), xt[at], new[at])):
            self._settle(waiting, total)
        return torch.where(unmasks, 0.0, silent)

    def _settle(self, waiting: "Waiting", total: Float[Tensor, " B"]) -> None:
        """Add log K_θ of steps that waited."""
        row, n, xt, new = waiting
        log_k = log_kernel(self.flow, self.table.at(n), xt, new, self.odds(n, xt, new))
        total.index_add_(0, row, log_k.sum(1))

    def _law(self, n: int, xt: Int[Tensor, "B L"]) -> X0Law:
        """p_{0|t} at x_n = xt."""
        if self.x0 is None:
            return X0Law.of_head(self.x0_head, self._features(n, xt), xt, self.table.rest[n][None], self.flow.source)
        logits = self.x0(xt.to(self.device), self._time(n, len(xt)))
        return X0Law.of_logits(logits, xt, self.flow.source)

    def _features(self, n: int, xt: Int[Tensor, "B L"]) -> Tensor:
        """The features at x_n = xt, which the sampler's step and the reversed step both need."""
        if self._kept is None or self._kept[0] != n or self._kept[1] is not xt:
            self._kept = n, xt, self.scores.features(xt.to(self.device), self._time(n, len(xt)))
            self.calls += len(xt)
        return self._kept[2]

    def _time(self, n: int, count: int) -> Float[Tensor, " B"]:
        return self.table.t[n].to(self.clock).to(self.device).expand(count)

    def _step(self, n: int) -> Step:
        return self.table.at(torch.tensor([n], device=self.place))

    def _uniforms(self, noise: Noise, length: int) -> Iterator[Float[Tensor, "B L"]]:
        """The numbers of each step, from the last step down, drawn in blocks of steps."""
        block = max(1, BLOCK // (len(noise) * length))
        for start in range(0, self.steps, block):
            numbers = noise.uniform(min(block, self.steps - start), length).to(self.place)
            yield from numbers.unbind(1)


class Waiting(NamedTuple):
    """Steps from xt to new of some rows, each with its own n."""

    row: Int[Tensor, " m"]
    n: Int[Tensor, " m"]
    xt: Int[Tensor, "m L"]
    new: Int[Tensor, "m L"]


class _Pending:
    """Steps that wait for the network until there are enough for a batch."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.parts: list[Waiting] = []

    def add(self, steps: Waiting) -> Iterator[Waiting]:
        self.parts.append(steps)
        self.count += len(steps.row)
        if self.count >= self.size:
            yield from self.left()

    def left(self) -> Iterator[Waiting]:
        """All that waits, in batches."""
        if self.count:
            columns = [torch.cat(column) for column in zip(*self.parts, strict=True)]
            self.parts, self.count = [], 0
            yield from (Waiting(*piece) for piece in zip(*(c.split(self.size) for c in columns), strict=True))
