"""The task of an autoregressive network: learn the next token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..models.causal import Causal
from ..network.network import NetworkCaller
from ..runs.ot_batch import Share
from ..runs.rng import stream
from .pairing.pairs import Table
from .settings import Settings
from .tasks import Batch, HeldOutEvaluation, Task, mean_entries
from .text import Text


@dataclass(frozen=True)
class CausalBatch(Batch):
    """Sequences, and the positions at which the loss counts (None: all)."""

    x1: Int[Tensor, "B L"]
    keep: Bool[Tensor, "B L"] | None = None

    def parts(self, count: int) -> list["CausalBatch"]:
        keeps = [None] * count if self.keep is None else self.keep.chunk(count)
        return [CausalBatch(*part) for part in zip(self.x1.chunk(count), keeps, strict=True)]

    def map(self, function: Callable[[Tensor], Tensor]) -> "CausalBatch":
        return CausalBatch(function(self.x1), None if self.keep is None else function(self.keep))


class CausalLoss(nn.Module):
    """Nats of each sequence under a causal network."""

    def __init__(self, model: Causal) -> None:
        super().__init__()
        self.model = model
        self.caller = NetworkCaller(model, model.vocab_size)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the network up to its head."""
        self.caller.compile(*arguments, **options)

    def forward(self, batch: CausalBatch) -> Float[Tensor, " B"]:
        return self.model.nll(batch.x1, batch.keep, self.caller.features)


class CausalTask(Task):
    """Learn the next token."""

    def __init__(self, model: Causal, corpus: Text, settings: Settings, share: Share) -> None:
        super().__init__(corpus, settings, share)
        self.model, self.loss = model, CausalLoss(model)

    def batch(self, step: int, table: Table | None = None) -> CausalBatch:
        keep = self._keep(step)
        return CausalBatch(self.data(step), None if keep is None else self._own_rows(keep))

    def evaluate(self, step: int, device: torch.device) -> HeldOutEvaluation:
        settings, found = self.settings, HeldOutEvaluation()
        rows, keep = self.corpus.test[: settings.eval_rows], self.corpus.test_keep
        if len(rows):
            kept = torch.ones_like(rows, dtype=torch.bool) if keep is None else keep[: settings.eval_rows]
            pieces = zip(rows.to(device).split(64), kept.to(device).split(64), strict=True)
            nats = torch.cat([self.model.nll(x1, k) for x1, k in pieces]).double()
            per_token = nats / kept.to(device).sum(1)
            found.numbers |= mean_entries("nll", per_token.cpu())
        if settings.eval_samples:
            generator = stream(settings.seed, "sample", step)
            tokens = self.model.generate(settings.eval_samples, self.corpus.length, generator)
            found.texts = [self.corpus.decode(row) for row in tokens.cpu()]
        return found
