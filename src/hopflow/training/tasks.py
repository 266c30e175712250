"""Tasks: what a step of training is given, what its loss is, and how held-out text is looked at.

A `FlowTask` learns a flow from pairs, a `CausalTask` the next token. What a batch holds depends on (seed, step) only;
every process draws the numbers of the whole batch and takes its share, so that their number changes nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds import nll_bound
from ..couplings import Independent
from ..draws import stratified
from ..estimate import known, mean_and_error
from ..flow import Flow
from ..models.causal import Causal
from ..network import Network, home
from ..paths import PathSample
from ..sampling import generate
from ..scores import open_places
from .devices import most_workers
from .distributed import GlobalPairing
from .ema import Ema
from .pairs import Pairing, Table
from .settings import Settings
from .shares import Share
from .streams import stream, stream_seed

LAST = 1 - 2.0**-24
"""The latest t: the float32 before 1, where 1 - k is still above 0."""


@runtime_checkable
class Text(Protocol):
    """What training asks of a corpus; `hopflow.data.Corpus` is one."""

    @property
    def length(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def test(self) -> Int[Tensor, "n L"]: ...
    @property
    def test_keep(self) -> Bool[Tensor, "n L"] | None: ...
    @property
    def identity(self) -> dict[str, Any]: ...
    def batch(self, seed: int, start: int, count: int) -> Int[Tensor, "n L"]: ...
    def keep(self, seed: int, start: int, count: int) -> Bool[Tensor, "n L"] | None: ...
    def decode(self, tokens: Int[Tensor, " L"]) -> str: ...


@dataclass
class Look:
    """What a look at held-out text found: numbers for the metrics, and sequences drawn."""

    numbers: dict[str, float | int | None] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Batch:
    """What the loss of a step reads."""

    tensors: tuple[Tensor, ...]
    """A row per sequence each."""
    counts: Int[Tensor, " B"] | None = None
    """Positions of each sequence where the network's word matters; not for the device, which would have to be asked."""

    def parts(self, count: int) -> Iterator["Batch"]:
        """In so many parts of consecutive rows."""
        counts = [None] * count if self.counts is None else self.counts.chunk(count)
        yield from map(Batch, zip(*(tensor.chunk(count) for tensor in self.tensors), strict=True), counts)

    def read(self, place: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        """The arguments of the loss, each tensor put in its place."""
        return (None if self.counts is None else int(self.counts.sum()), *map(place, self.tensors))


class Task(ABC):
    """Batches, their loss, and a look at held-out text."""

    loss: nn.Module
    """Maps a batch to the nats of each of its sequences (B,)."""

    def __init__(self, corpus: Text, settings: Settings, share: Share) -> None:
        self.corpus, self.settings, self.share = corpus, settings, share
        if settings.batch % (share.world * settings.accumulate):
            raise ValueError(
                f"a batch of {settings.batch} cannot be taken by {share.world} process(es) in {settings.accumulate} "
                f"part(s) each: take a multiple of {share.world * settings.accumulate}"
            )

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """This process's share of the step's batch, on the CPU; every tensor has one row per sequence."""

    @abstractmethod
    def examine(self, step: int, device: torch.device) -> Look:
        """Numbers and sequences of the network as it is now."""

    def tokens(self, step: int) -> int:
        """Tokens of the whole batch that the loss counts."""
        keep = self._keep(step)
        return self.settings.batch * self.corpus.length if keep is None else int(keep.sum())

    def numbers(self, step: int) -> dict[str, float]:
        """On the batch of a step that has just been taken, and on the time since they were asked for last."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Go on where `state_dict` was taken."""

    def wait_until_ready(self) -> None:  # noqa: B027
        """Until what runs beside the steps is awake; a run need not wait for it, a clock should."""

    def close(self) -> None:  # noqa: B027
        """End what runs beside the steps."""

    def data(self, step: int) -> Int[Tensor, "n L"]:
        """This process's share of the step's sequences, as they stand in the text."""
        return self._mine(self.corpus.batch(self.settings.seed, step * self.settings.batch, self.settings.batch))

    def _keep(self, step: int) -> Bool[Tensor, "n L"] | None:
        return self.corpus.keep(self.settings.seed, step * self.settings.batch, self.settings.batch)

    def _mine(self, rows: Tensor) -> Tensor:
        """This process's rows of a whole batch."""
        each = len(rows) // self.share.world
        return rows[self.share.rank * each : (self.share.rank + 1) * each]


class FlowLoss(nn.Module):
    """Nats of each sequence under a flow's objective, at points of its path."""

    def __init__(self, model: nn.Module, flow: Flow) -> None:
        super().__init__()
        self.model, self.flow = model, flow
        self._body: Network | None = None

    def compile(self, *how: Any, **keys: Any) -> None:
        """Compile the network up to its head, where it has one: what the head gives has kernels of its own."""
        body = getattr(self.model, "features", None)
        if callable(body) and callable(getattr(self.model, "head", None)):
            self._body = torch.compile(body, dynamic=False)
        else:
            self.model.compile(*how, **keys)

    def forward(self, count: int | None, *sample: Tensor) -> Float[Tensor, " B"]:
        """Of a `PathSample`, field by field; `count` of its positions are open."""
        point = PathSample(*sample)
        x0_head = getattr(self.model, "x0_head", None)
        if x0_head is None:
            return self.flow.objective(self.flow.ask(self.model, point, body=self._body, count=count), point)
        body: Any = self._body or self.model.features
        features = body(point.xt, point.t)
        nats = self.flow.objective(self.flow.ask(self.model, point, body=lambda *_: features, count=count), point)
        # the head's gradient and not its nats: the loss is the flow's
        more = x0_head.nats(features, point)
        return nats + (more - more.detach())


class FlowTask(Task):
    """Learn a flow: pairs by its coupling, ahead of time, and points of the path between them."""

    def __init__(self, model: nn.Module, flow: Flow, corpus: Text, settings: Settings, share: Share) -> None:
        super().__init__(corpus, settings, share)
        if flow.vocab.data != corpus.vocab_size:
            raise ValueError(
                f"the flow knows {flow.vocab.data} data tokens, the text has {corpus.vocab_size}: "
                f"was it tokenised with another tokenizer?"
            )
        if flow.couples and "embedding" in flow.coupling.reads and embedding_table(model) is None:
            raise ValueError(
                f"{flow.coupling} reads the network's embeddings, and {type(model).__name__} offers none: give it a "
                f"property `table` (V, D), or take another cost, such as Hamming()"
            )
        self.model, self.flow = model, flow
        x0_head, counts = getattr(model, "x0_head", None), getattr(corpus, "counts", None)
        if x0_head is not None and counts is not None:
            x0_head.fit(counts)
        self.loss = FlowLoss(model, flow)
        self.average: Ema | None = None
        """What the OT cost reads in place of the network's own embedding table: its average."""
        self._waited = 0.0
        shared: dict[str, Any] = {
            "length": corpus.length,
            "batch": settings.batch,
            "ot_batch": settings.ot_batch,
            "seed": settings.seed,
            "workers": settings.workers,
            "most_workers": most_workers(home(model)),
            "ahead": settings.ahead,
        }
        self._pairing: Pairing | GlobalPairing
        # without a choice there is no cost to report either, for which the embedding table would have to be read
        paired = flow if flow.couples else replace(flow, coupling=Independent())
        if share.world > 1 and flow.couples:
            self._pairing = GlobalPairing(paired, self._rows, **shared)
        else:
            self._pairing = Pairing(paired, self._rows, share=share, **shared)

    def batch(self, step: int) -> Batch:
        seed, size, length = self.settings.seed, self.settings.batch, self.corpus.length
        x0, x1 = self._pairing.step(step, self._table(), self.model)
        t = stratified(1, size, stream(seed, "time", step))[0]
        # in a shuffled order: neighbours in a batch may be neighbours in the OT batch
        t = t[torch.randperm(size, generator=stream(seed, "times", step))].float().clamp(max=LAST)
        u = torch.rand(size, length, dtype=torch.float64, generator=stream(seed, "path", step))
        keep = self._keep(step)
        sample = self.flow.path.at(x0, x1, self._mine(t), self._mine(u), None if keep is None else self._mine(keep))
        fields = (sample.x0, sample.x1, sample.xt, sample.t, sample.rest, sample.dk)
        return Batch(fields if sample.keep is None else (*fields, sample.keep), self._open(sample))

    def numbers(self, step: int) -> dict[str, float]:
        report, every = self._pairing.report(step), self._pairing.seconds_waited
        waited, self._waited = every - self._waited, every
        if report is None or not self.flow.couples:
            return {}
        return {
            "ot_cost": report.cost,
            "ot_independent_cost": report.independent_cost,
            "ot_marginal_error": report.marginal_error,
            "ot_seconds": report.seconds_solved,
            "ot_waited": waited,
            "ot_workers": self._pairing.workers,
        }

    def examine(self, step: int, device: torch.device) -> Look:
        settings, found = self.settings, Look()
        rows = self.corpus.test[: settings.eval_rows].to(device)
        if len(rows) and self.corpus.test_keep is None:  # of padded sequences only a part was learned: no bound
            # a network that goes on redrawing near t = 1 has a finite bound for a finite number of steps only
            steps = None if self.flow.prediction.settles(self.flow.source) else settings.eval_steps
            bound = nll_bound(
                self.model,
                self.flow,
                rows,
                steps=steps,
                draws=8,
                seed=settings.seed,
                precision=settings.precision,
            )
            name = bound.quantity
            found.numbers |= {f"{name}_ppl": bound.ppl, f"{name}_se": bound.ppl_stderr, f"{name}_n": bound.n}
        if settings.eval_samples:
            out = generate(
                self.model,
                self.flow,
                n=settings.eval_samples,
                length=self.corpus.length,
                steps=settings.eval_steps,
                seed=stream_seed(settings.seed, "sample", step),
                precision=settings.precision,
            )
            found.texts = [self.corpus.decode(row) for row in out.tokens.cpu()]
            found.numbers |= _mean("jumps", out.jumps)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        return self._pairing.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._pairing.load_state_dict(state)

    def wait_until_ready(self) -> None:
        if isinstance(self._pairing, Pairing):
            self._pairing.wait_until_ready()

    def close(self) -> None:
        self._pairing.close()

    def _open(self, sample: PathSample) -> Int[Tensor, " B"] | None:
        prediction, source = self.flow.prediction, self.flow.source
        return open_places(sample, prediction, source).sum(1) if prediction.stays(source) else None

    def _table(self) -> Table | None:
        return self.average if self.average is not None else embedding_table(self.model)

    def _rows(self, index: int) -> Int[Tensor, "n L"]:
        size = self.settings.ot_batch or self.settings.batch
        rows = self.corpus.batch(self.settings.seed, index * size, size)
        return self.share.take(rows, self.settings.batch)


class CausalLoss(nn.Module):
    """Nats of each sequence under a causal network."""

    def __init__(self, model: Causal) -> None:
        super().__init__()
        self.model = model
        self._body: Network | None = None

    def compile(self, *how: Any, **keys: Any) -> None:
        """Compile the network up to its head."""
        self._body = torch.compile(self.model.features, dynamic=False)

    def forward(
        self, count: None, x1: Int[Tensor, "B L"], keep: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, " B"]:
        return self.model.nll(x1, keep, self._body)


class CausalTask(Task):
    """Learn the next token."""

    def __init__(self, model: Causal, corpus: Text, settings: Settings, share: Share) -> None:
        super().__init__(corpus, settings, share)
        self.model, self.loss = model, CausalLoss(model)

    def batch(self, step: int) -> Batch:
        keep = self._keep(step)
        return Batch((self.data(step), *(() if keep is None else (self._mine(keep),))))

    def examine(self, step: int, device: torch.device) -> Look:
        settings, found = self.settings, Look()
        rows, keep = self.corpus.test[: settings.eval_rows], self.corpus.test_keep
        if len(rows):
            kept = torch.ones_like(rows, dtype=torch.bool) if keep is None else keep[: settings.eval_rows]
            pieces = zip(rows.to(device).split(64), kept.to(device).split(64), strict=True)
            nats = torch.cat([self.model.nll(x1, k) for x1, k in pieces]).double()
            per_token = nats / kept.to(device).sum(1)
            found.numbers |= _mean("nll", per_token.cpu())
        if settings.eval_samples:
            generator = stream(settings.seed, "sample", step)
            tokens = self.model.generate(settings.eval_samples, self.corpus.length, generator)
            found.texts = [self.corpus.decode(row) for row in tokens.cpu()]
        return found


def task_for(model: nn.Module, flow: Flow | None, corpus: Text, settings: Settings, share: Share) -> Task:
    """What there is to learn: the flow, or without one the next token."""
    if flow is not None:
        return FlowTask(model, flow, corpus, settings, share)
    if not isinstance(model, Causal):
        raise ValueError(f"{type(model).__name__} needs a flow: train(model, flow, corpus); only Causal learns without")
    return CausalTask(model, corpus, settings, share)


def embedding_table(model: nn.Module) -> Float[Tensor, "V D"] | None:
    """The token embeddings that a network offers as `table`, if it does."""
    table = getattr(model, "table", None)
    return table if isinstance(table, Tensor) else None


def _mean(name: str, values: Tensor) -> dict[str, float | int | None]:
    value, error = mean_and_error(values)
    return {name: value, f"{name}_se": known(error), f"{name}_n": len(values)}
