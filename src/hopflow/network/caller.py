"""NetworkCaller: the one place where hopflow calls a network."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from .head import Head, full_precision_head
from .network import Network, device_of, evaluation_mode, has_head, time_dtype
from .precision import computed_dtype, use_precision

TOKENS, GPU_TOKENS = 1 << 13, 1 << 16
"""Tokens per network call."""
LOGITS_PER_TOKEN = 1 << 14
"""Logits per token above which a network without a separate head gets smaller batches: 512 MiB on a CPU, 4 GiB on a
GPU."""


class NetworkCaller:
    """Calls a network for losses, bounds, samplers, costs and evaluation.

    It runs features and head separately where the network has both, compiles the features, chooses the precision, the
    batch size and evaluation mode.

    - `outputs`: number of data tokens, the width of the logits. None accepts any width.
    - `precision`: None leaves autocast as the surrounding code set it, and the head is the network's own; losses use
      this. auto, float32 or bf16 apply inside `inference`, and the head runs in the type of its weights.
    - `plain_time`: the float type of the times that a plain function gets; the exact oracle passes float64.
    - `all_positions`: run the head at every position, not only where a token may change; for benchmarks.
    """

    def __init__(
        self,
        model: Network,
        outputs: int | None = None,
        *,
        precision: str | None = None,
        plain_time: torch.dtype = torch.float32,
        all_positions: bool = False,
    ) -> None:
        self.model, self.outputs, self.precision = model, outputs, precision
        self.plain_time, self.all_positions = plain_time, all_positions
        self._compiled: Network | None = None

    @classmethod
    def of(cls, network: "Network | NetworkCaller", outputs: int | None = None) -> "NetworkCaller":
        """The caller itself, or a new one for a network."""
        return network if isinstance(network, NetworkCaller) else cls(network, outputs)

    @property
    def has_head(self) -> bool:
        """Whether features and head can run separately."""
        return has_head(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the weights; the CPU for a plain function."""
        return device_of(self.model)

    @property
    def time_dtype(self) -> torch.dtype:
        """The float type of the times t that the network gets."""
        return time_dtype(self.model, self.plain_time)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the features, because the head has its own kernels; without a head, the complete module in place."""
        if self.has_head:
            self._compiled = torch.compile(cast(Any, self.model).features, dynamic=False)
        else:
            cast(nn.Module, self.model).compile(*arguments, **options)

    def features(self, *inputs: Tensor) -> Tensor:
        """The network's features, compiled after `compile`; precision and mode are those of the surrounding code."""
        features: Tensor = (self._compiled or cast(Any, self.model).features)(*inputs)
        return features

    def x0_features(self, features: Tensor, xt: Tensor, t: Tensor) -> Tensor:
        """The input of the network's x0_head, from its features; precision and mode are those of the surrounding code.

        A network without the method `x0_features` has a head that reads the features.
        """
        own = getattr(self.model, "x0_features", None)
        return features.detach() if own is None else cast(Tensor, own(features, xt, t))

    @property
    def head(self) -> Head:
        """The network's own head for losses (`precision=None`), otherwise the head in the type of its weights."""
        return cast(Head, cast(Any, self.model).head) if self.precision is None else self.full_precision_head

    @property
    def chunks_head(self) -> bool:
        """Whether the head runs on chunks of rows; a loss keeps all logits for its gradient."""
        return self.precision is not None

    @cached_property
    def full_precision_head(self) -> Head:
        """The head in the type of its weights. Made once: the weights must not change afterwards."""
        return full_precision_head(self.model, self.outputs)

    def logits(self, xt: Tensor, t: Tensor) -> Tensor:
        """Logits of all positions, in evaluation mode and the surrounding precision; t may have any float type."""
        with self.evaluation_mode():
            return self.model(xt, t.to(self.time_dtype))

    def evaluation_mode(self) -> AbstractContextManager[None]:
        """Disable gradients and dropout inside."""
        return evaluation_mode(self.model)

    def use_precision(self, device: torch.device) -> AbstractContextManager[str]:
        """Compute in this caller's precision inside; yields its name for results."""
        if self.precision is None:
            return nullcontext(computed_dtype(self.model, device))
        return use_precision(self.model, device, self.precision)

    @contextmanager
    def inference(self, device: torch.device) -> Iterator[str]:
        """Evaluation mode and this caller's precision inside; yields the name of the precision."""
        with self.evaluation_mode(), self.use_precision(device) as name:
            yield name

    def batch_size(self, length: int, device: torch.device) -> int:
        """Sequences per call: many tokens, but with full logits no more than fit into memory."""
        tokens = TOKENS if device.type == "cpu" else GPU_TOKENS
        if not self.has_head and self.outputs is not None:
            tokens = min(tokens, tokens * LOGITS_PER_TOKEN // self.outputs)
        return max(1, tokens // length)
