"""FlowLoss: the loss of a flow on a batch of points of its path."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..flow import Flow, check_network
from ..network.network import NetworkCaller, check_labels, embedding_table
from ..paths import PathSample

LAST = 1 - 2.0**-24
"""The largest t: the float32 before 1, where 1 - k is still above 0."""


class Batch(ABC):
    """The input of a task's loss for one training step."""

    @abstractmethod
    def parts(self, count: int) -> "Sequence[Batch]":
        """The batch in `count` parts of consecutive sequences, for gradient accumulation."""

    @abstractmethod
    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """The batch with `function` applied to the tensors that the loss needs on its device."""


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
            raise ValueError("x1 must be a tensor of token ids of shape (sequences, positions).")
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
