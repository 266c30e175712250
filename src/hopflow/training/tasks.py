"""Tasks: the batches of a training step, their loss, and the evaluation on held-out text.

A `FlowTask` learns a flow from pairs, a `CausalTask` (causal_task.py) the next token. A batch depends on (seed, step)
only: every process draws the random numbers of the complete batch and takes its share, so that the result does not
depend on the number of processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..bounds.estimate import known, mean_and_error
from ..bounds.nll import nll_bound
from ..bounds.x0_posterior import possible_tokens
from ..couplings import Independent
from ..flow import Flow, check_network
from ..network.network import NetworkCaller, check_labels, device_of, embedding_table, label_count
from ..paths import PathSample, stratified
from ..runs.devices import most_workers
from ..runs.ot_batch import Share
from ..runs.rng import stream, stream_seed
from ..sampling.generate import generate
from ..scores import open_positions
from .labels import RowLabels
from .pairing.global_pairs import GlobalPairing
from .pairing.pairs import Pairing, Table
from .pairing.stored_pairs import StoredPairs
from .settings import Settings
from .text import Text

LAST = 1 - 2.0**-24
"""The largest t: the float32 before 1, where 1 - k is still above 0."""


@dataclass
class HeldOutEvaluation:
    """The result of an evaluation during training: numbers for the metrics, and generated texts."""

    numbers: dict[str, float | int | None] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


class Batch(ABC):
    """The input of a task's loss for one training step."""

    @abstractmethod
    def parts(self, count: int) -> "Sequence[Batch]":
        """The batch in `count` parts of consecutive sequences, for gradient accumulation."""

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `function` applied to the tensors that the loss needs on its device."""


class Task(ABC):
    """Batches, their loss, and the evaluation on held-out text."""

    loss: nn.Module
    """Maps a batch to the nats of each of its sequences (B,)."""
    flow: Flow | None = None
    """The flow that is learned; None without one."""
    stored_pairs: StoredPairs | None = None
    """The pairs of a store, if the coupling of the flow reads one."""

    def __init__(self, corpus: Text, settings: Settings, share: Share) -> None:
        self.corpus, self.settings, self.share = corpus, settings, share
        parts = share.world * settings.accumulate
        if settings.batch % parts:
            raise ValueError(
                f"batch must be a multiple of {parts} (processes times accumulate = {share.world} × "
                f"{settings.accumulate}), got {settings.batch}."
            )

    @abstractmethod
    def batch(self, step: int, table: Table | None = None) -> Batch:
        """This process's share of the step's batch, on the CPU.

        `table` is the embedding table that an OT cost reads, or its average; None means that of the network.
        """

    @abstractmethod
    def evaluate(self, step: int, device: torch.device) -> HeldOutEvaluation:
        """Evaluate the network on held-out text, and generate texts."""

    def tokens(self, step: int) -> int:
        """The number of tokens in the loss of the complete batch."""
        keep = self._keep(step)
        return self.settings.batch * self.corpus.length if keep is None else int(keep.sum())

    def numbers(self, step: int) -> dict[str, float]:
        """Metrics of the current step's batch, and of the time since the last call."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Resume where `state_dict` was called."""

    def wait_until_ready(self) -> None:  # noqa: B027
        """Wait until worker processes have started. Training does not need this; a benchmark does."""

    def close(self) -> None:  # noqa: B027
        """End the worker processes."""

    def data(self, step: int) -> Int[Tensor, "n L"]:
        """This process's share of the step's sequences, in the order of the text."""
        return self._own_rows(self.corpus.batch(self.settings.seed, step * self.settings.batch, self.settings.batch))

    def _keep(self, step: int) -> Bool[Tensor, "n L"] | None:
        return self.corpus.keep(self.settings.seed, step * self.settings.batch, self.settings.batch)

    def _own_rows(self, rows: Tensor) -> Tensor:
        """This process's rows of a complete batch."""
        each = len(rows) // self.share.world
        return rows[self.share.rank * each : (self.share.rank + 1) * each]


@dataclass(frozen=True)
class FlowBatch(Batch):
    """Points of the flow's path, one per sequence."""

    sample: PathSample
    open_counts: Int[Tensor, " B"] | None = None
    """Positions per sequence at which the network's prediction counts; on the CPU, so that reading it does not wait for
    the device. None if they are all positions."""

    def parts(self, count: int) -> list["FlowBatch"]:
        counts = [None] * count if self.open_counts is None else self.open_counts.chunk(count)
        return [FlowBatch(*part) for part in zip(self.sample.chunk(count), counts, strict=True)]

    def map(self, function: Callable[[Tensor], Tensor]) -> "FlowBatch":
        return FlowBatch(self.sample.map(function), self.open_counts)

    @property
    def open_count(self) -> int | None:
        """Positions of all sequences at which the network's prediction counts."""
        return None if self.open_counts is None else int(self.open_counts.sum())


class FlowLoss(nn.Module):
    """The training loss of a flow as a module: nats of each sequence, for a training loop of your own.

        loss = hf.FlowLoss(model, flow)
        nats = loss(loss.draw(x1))  # (B,)

    Its parameters are those of the network.
    """

    def __init__(self, model: nn.Module, flow: Flow) -> None:
        super().__init__()
        check_network(model, flow)
        self.model, self.flow = model, flow
        self.caller = NetworkCaller(model, flow.vocab.data)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the network up to its head."""
        self.caller.compile(*arguments, **options)

    def draw(
        self,
        x1: Int[Tensor, "B L"],
        generator: torch.Generator | None = None,
        *,
        labels: Int[Tensor, " B"] | None = None,
        keep: Bool[Tensor, "B L"] | None = None,
    ) -> FlowBatch:
        """A batch from data sequences: source sequences paired with them by the flow's coupling, at random times.

        Call it on the FlowLoss itself, not on its DistributedDataParallel wrapper. All of x1 is one OT batch.
        `labels` are those of the sequences, for a network with labels, -1 where the label is left out; sequences are
        paired within their label. `keep` is False for padding, which does not count in the loss.
        """
        if not isinstance(x1, Tensor) or x1.ndim != 2 or x1.is_floating_point():
            got = f"{x1.dtype} of shape {tuple(x1.shape)}" if isinstance(x1, Tensor) else type(x1).__name__
            raise ValueError(f"x1 must be a tensor of token ids of shape (sequences, positions), got {got}.")
        self.flow.vocab.check_data(x1)
        check_labels(self.model, labels, len(x1))
        where = generator.device if generator is not None else x1.device
        x0 = self.flow.source.sample(*x1.shape, generator=generator, device=x1.device)
        table = embedding_table(self.model)
        pairs = self.flow.coupling.pair(x0, x1, generator, embedding=table, network=self.model, group=labels)
        # shuffled, since the order of the sequences may have a meaning
        strata = torch.randperm(len(x1), generator=generator, device=where)
        t = (strata + 1 - torch.rand(len(x1), generator=generator, device=where)) / len(x1)
        sample = self.flow.path.sample(pairs.x0, pairs.x1, t.clamp(max=LAST).to(x1.device), generator)
        labels = None if labels is None else labels.to(x1.device)
        return FlowBatch(replace(sample, labels=labels, keep=keep))

    def forward(self, batch: FlowBatch) -> Float[Tensor, " B"]:
        """The nats of each sequence."""
        sample, count = batch.sample, batch.open_count
        x0_head = getattr(self.model, "x0_head", None)
        if x0_head is None:
            return self.flow.objective(self.flow.ask(self.caller, sample, count=count), sample)
        features = self.caller.features(*sample.inputs)
        nats = self.flow.objective(self.flow.ask(self.caller, sample, count=count, features=features), sample)
        # adds the gradient of the x0 head, but not its value: the reported loss is the flow's
        more = x0_head.nats(self.caller.x0_features(features, *sample.inputs), sample)
        return nats + (more - more.detach())


class FlowTask(Task):
    """Learn a flow from points of the path between coupled pairs, which are computed ahead of time."""

    flow: Flow

    def __init__(self, model: nn.Module, flow: Flow, corpus: Text, settings: Settings, share: Share) -> None:
        super().__init__(corpus, settings, share)
        if flow.vocab.data != corpus.vocab_size:
            raise ValueError(
                f"the flow has {flow.vocab.data} data tokens, but the text has {corpus.vocab_size}; "
                f"use the tokenizer of the text for both."
            )
        flow.check_length(corpus.length)
        self.labels = RowLabels.of(model, flow, corpus, settings, share)
        if flow.couples and "embedding" in flow.coupling.reads and embedding_table(model) is None:
            raise ValueError(
                f"{flow.coupling} reads the network's embeddings, and {type(model).__name__} has none; add a property "
                f"`table` (V, D) to it, or use another cost, such as Hamming()."
            )
        self.model, self.flow = model, flow
        x0_head, counts = getattr(model, "x0_head", None), getattr(corpus, "counts", None)
        if x0_head is not None and counts is not None:
            possible_tokens(flow.source)
            x0_head.fit(counts, flow.source.mean_probs)
        self.loss = FlowLoss(model, flow)
        self._waited = 0.0
        shared: dict[str, Any] = {
            "groups": None if self.labels is None else self.labels.of_ot_batch,
            "length": corpus.length,
            "batch": settings.batch,
            "ot_batch": settings.ot_batch,
            "seed": settings.seed,
            "workers": settings.workers,
            "most_workers": most_workers(device_of(model)),
            "ahead": settings.ahead,
        }
        self._pairing: Pairing | GlobalPairing | StoredPairs
        # an identity coupling reports no cost, which could need the embedding table
        paired = flow if flow.couples else replace(flow, coupling=Independent())
        if flow.coupling.pair_store is not None:
            own = label_count(model) or 0
            self._pairing = self.stored_pairs = StoredPairs(flow, corpus, settings.batch, settings.seed, share, own)
        elif share.world > 1 and flow.couples:
            self._pairing = GlobalPairing(paired, self._rows, **shared)
        else:
            self._pairing = Pairing(paired, self._rows, share=share, **shared)

    def data(self, step: int) -> Int[Tensor, "n L"]:
        return super().data(step) if self.stored_pairs is None else self.stored_pairs.step(step)[1]

    def batch(self, step: int, table: Table | None = None) -> FlowBatch:
        seed, size, length = self.settings.seed, self.settings.batch, self.corpus.length
        x0, x1 = self._pairing.step(step, embedding_table(self.model) if table is None else table, self.model)
        t = stratified(1, size, stream(seed, "time", step))[0]
        # shuffled: consecutive rows of a batch may come from one OT batch
        t = t[torch.randperm(size, generator=stream(seed, "times", step))].float().clamp(max=LAST)
        u = torch.rand(size, length, dtype=torch.float64, generator=stream(seed, "path", step))
        keep = self._keep(step)
        kept = None if keep is None else self._own_rows(keep)
        stored = None if self.stored_pairs is None or self.labels is None else self.stored_pairs.labels(step)
        labels = None if self.labels is None else self.labels.of_step(step, stored)
        sample = self.flow.path.at(x0, x1, self._own_rows(t), self._own_rows(u), kept, labels)
        return FlowBatch(sample, self._open_counts(sample))

    def numbers(self, step: int) -> dict[str, float]:
        report, total = self._pairing.report(step), self._pairing.seconds_waited
        waited, self._waited = total - self._waited, total
        if report is None or not self.flow.couples:
            return {}
        return {
            "ot_cost": report.cost,
            "ot_independent_cost": report.independent_cost,
            "ot_marginal_error": report.marginal_error,
            "ot_seconds": report.seconds,
            "ot_waited": waited,
            "ot_workers": self._pairing.workers,
        }

    def evaluate(self, step: int, device: torch.device) -> HeldOutEvaluation:
        settings, found = self.settings, HeldOutEvaluation()
        rows = self.corpus.test[: settings.eval_rows].to(device)
        if len(rows) and self.corpus.test_keep is None:  # padded sequences, learned only in part, have no bound
            # under predictions that redraw tokens up to t = 1 the bound is finite only for a finite number of steps
            steps = None if self.flow.prediction.has_finite_bounds(self.flow.source) else settings.eval_steps
            bound = nll_bound(
                self.model,
                self.flow,
                rows,
                steps=steps,
                draws=8,
                seed=settings.seed,
                precision=settings.precision,
                labels=None if self.labels is None else self.labels.of_test(len(rows)),
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
                labels=None if self.labels is None else self.labels.of_samples(settings.eval_samples),
            )
            found.texts = [self.corpus.decode(row) for row in out.tokens.cpu()]
            found.numbers |= mean_entries("jumps", out.jumps)
        return found

    def state_dict(self) -> dict[str, Tensor]:
        return self._pairing.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._pairing.load_state_dict(state)

    def wait_until_ready(self) -> None:
        self._pairing.wait_until_ready()

    def close(self) -> None:
        self._pairing.close()

    def _open_counts(self, sample: PathSample) -> Int[Tensor, " B"] | None:
        prediction, source = self.flow.prediction, self.flow.source
        return open_positions(sample, prediction, source).sum(1) if prediction.keeps_data_tokens(source) else None

    def _rows(self, index: int) -> Int[Tensor, "n L"]:
        size = self.settings.ot_batch or self.settings.batch
        rows = self.corpus.batch(self.settings.seed, index * size, size)
        return self.share.take(rows, self.settings.batch)


def mean_entries(name: str, values: Tensor) -> dict[str, float | int | None]:
    """The mean of a metric with its standard error and its number of values, as entries of a metrics row."""
    value, error = mean_and_error(values)
    return {name: value, f"{name}_se": known(error), f"{name}_n": len(values)}
