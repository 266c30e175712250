"""NetworkScores: a network and how it is run, for the bounds: precision, head, float type of the times."""

from dataclasses import replace

import torch
from torch import Tensor

from ..flow import Flow
from ..network.network import Network, NetworkCaller
from ..paths import PathSample
from ..scores import Scores


class NetworkScores:
    """The scores of path samples by a network; `dtype` is the type it computed in at the last call.

    Where the network offers a head, the head runs in float32 where its weights do, and only where tokens may move.
    """

    def __init__(self, model: Network, flow: Flow, precision: str = "auto") -> None:
        self.caller = NetworkCaller(model, flow.vocab.data, precision=precision)
        self.flow = flow
        self.dtype = ""

    def features(self, *inputs: Tensor) -> Tensor:
        """What the heads of the network read, for (xt, t) or (xt, t, labels); one call."""
        with self.caller.use_precision(inputs[0].device) as self.dtype:
            return self.caller.features(*inputs)

    def x0_features(self, features: Tensor, *inputs: Tensor) -> Tensor:
        """What the x0_head of the network reads, from the features of these inputs."""
        with self.caller.use_precision(inputs[0].device):
            return self.caller.x0_features(features, *inputs)

    def __call__(self, sample: PathSample, features: Tensor | None = None) -> Scores:
        """Call the network; times are in the type of the logits, at least float32.

        `features` are passed if they were computed before.
        """
        with self.caller.use_precision(sample.xt.device) as self.dtype:
            if self.caller.has_head:
                timed = _timed(sample, self.caller.time_dtype)
                return self.flow.ask(self.caller, timed, features=features)
            logits: Tensor = self.caller.model(*sample.inputs)
        if self.dtype == "unknown":
            self.dtype = str(logits.dtype).removeprefix("torch.")
        return self.flow.scores(logits, _timed(sample, torch.promote_types(logits.dtype, torch.float32)))


def _timed(sample: PathSample, dtype: torch.dtype) -> PathSample:
    return replace(sample, rest=sample.rest.to(dtype), dk=sample.dk.to(dtype))
