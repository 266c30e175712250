"""NetworkScores: a network and how it is run, for the bounds: precision, head, float type of the times."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .flow import Flow
from .heads import Head, head_of
from .network import Network, clock_dtype, has_head
from .paths import PathSample
from .precision import computing
from .scores import Scores


class NetworkScores:
    """The scores of path samples by a network; `dtype` is the type it computed in at the last call.

    Where the network offers a head, the head runs in float32 where its weights do, and only where tokens may move.
    """

    def __init__(self, model: Network, flow: Flow, precision: str = "auto") -> None:
        self.model, self.flow, self.precision = model, flow, precision
        self.dtype = ""

    def features(self, xt: Tensor, t: Tensor) -> Tensor:
        """What the heads of the network read; one call."""
        model: Any = self.model
        with computing(self.model, xt.device, self.precision) as self.dtype:
            features: Tensor = model.features(xt, t)
        return features

    def __call__(self, sample: PathSample, body: Network | None = None) -> Scores:
        """Run the network; times come in the type of the logits, at least in float32.

        `body` stands for `model.features`, such as features that are there already.
        """
        with computing(self.model, sample.xt.device, self.precision) as self.dtype:
            if has_head(self.model):
                timed = _timed(sample, clock_dtype(self.model))
                return self.flow.ask(self.model, timed, body=body, head=self._head)
            logits: Tensor = self.model(sample.xt, sample.t)
        if self.dtype == "unknown":
            self.dtype = str(logits.dtype).removeprefix("torch.")
        return self.flow.scores(logits, _timed(sample, torch.promote_types(logits.dtype, torch.float32)))

    @cached_property
    def _head(self) -> Head:
        return head_of(self.model, self.flow.vocab)


def _timed(sample: PathSample, dtype: torch.dtype) -> PathSample:
    return replace(sample, rest=sample.rest.to(dtype), dk=sample.dk.to(dtype))
