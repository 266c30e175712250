"""NetworkReader: what a sampler needs of a network, logits at the positions that change."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..kernels import switch
from ..kernels.cuda_graph import CudaGraph
from ..kernels.fused_head import Bf16x3Head
from ..kernels.support import TRITON_WORKS
from .network import NetworkCaller, check_outputs, check_rows
from .precision import autocast_dtype, low_precision_copy

FEW_POSITIONS = 4
"""Positions per sequence, on average, up to which the last block runs at these positions only: each position reads all
keys and values."""
RECORD_AT_CALL = 3
"""The call of a shape at which a CUDA graph is recorded: for fewer calls it takes longer than it saves."""
COMPILE_FROM_CALLS = 4096
"""Calls on a GPU from which `auto` compiles: that takes most of a minute, and saves some milliseconds per call."""


@dataclass(frozen=True)
class BatchLogits:
    """Logits of one batch, computed at the positions that are asked for. Valid until the next `NetworkReader.read`."""

    logits: Callable[[Tensor, Tensor], Tensor]
    """logits(row, position) -> (m, Vd)."""
    draw: Callable[..., tuple[Tensor, Tensor] | None] = lambda *_: None
    """draw(row, position, xt, shift, u): tokens drawn from the softmax of the logits, with `shift` added at xt, and
    whether all logits are numbers. None if the head has no kernel for it."""


class NetworkReader:
    """Reads a network's logits at chosen positions.

    With `guidance` g ≠ 1 the network is called twice: as it is, and without label and prompt (label -1, noise in place
    of the prompt). The logits are then without + g·(with - without).
    """

    def __init__(self, caller: NetworkCaller, guidance: float = 1.0, compile: bool | str = False) -> None:
        real = isinstance(guidance, Real)
        if not (real and math.isfinite(guidance)):
            raise ValueError(f"guidance must be a finite number (1 = no guidance), got {guidance!r}")
        if compile not in (True, False, "auto"):
            raise ValueError(f"compile must be True, False or 'auto', got {compile!r}")
        self.caller, self.guidance = caller, guidance
        self.calls = 1 if guidance == 1 else 2
        """Network calls per read."""
        self._on_gpu = caller.device.type == "cuda"
        self._has_head = caller.has_head
        self._network = cast(Any, caller.model)
        self._partial = (
            self._has_head
            and hasattr(caller.model, "supports_partial_features")
            and self._network.supports_partial_features()
        )
        """Whether the last block can run at chosen positions only."""
        self._records = self._on_gpu and self._partial and switch.current.cuda_graph
        """Whether calls of one shape become a CUDA graph: the host needs longer to start the kernels one by one than a
        GPU needs to run them."""
        if self._on_gpu and self._partial:
            dtype = autocast_dtype(next(self._network.parameters(), torch.empty(0)))
            if dtype is not None:
                self._network = low_precision_copy(self._network, dtype).eval()
        if self._partial:
            self._body: Any = self._network.begin_features
        else:
            self._body = self._network.features if self._has_head else self._network
        self._head = caller.full_precision_head if self._has_head else None
        self._compile, self._compiled = compile, compile is True
        self._most_rows: dict[int, int] = {}
        self._graph: CudaGraph[Any] | None = None
        self._shape, self._calls_of_shape = torch.Size(), 0

    def expect_calls(self, calls: int) -> None:
        """Decide whether `compile="auto"` compiles, from the number of calls of one length that follow."""
        pays = self._compile == "auto" and self._on_gpu and TRITON_WORKS and calls >= COMPILE_FROM_CALLS
        self._compiled = self._compile is True or pays
        self._calls_of_shape, self._graph = 0, None

    @cached_property
    def _compiled_body(self) -> Any:
        return torch.compile(self._body, dynamic=False)

    def batch_size(self, length: int, device: torch.device) -> int:
        """Sequences per read."""
        return max(1, self.caller.batch_size(length, device) // self.calls)

    def read(
        self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"], dropped: Int[Tensor, "B L"], labels: Tensor | None
    ) -> BatchLogits:
        """Run the network on a batch; `dropped` is xt without the prompt, for guidance."""
        label = () if labels is None else (labels,)
        if self.calls == 1:
            return self._batch(xt, t, *label)
        both = tuple(torch.cat([x, torch.full_like(x, -1)]) for x in label)
        batch = self._batch(torch.cat([xt, dropped]), torch.cat([t, t]), *both)

        def guided(row: Tensor, position: Tensor) -> Tensor:
            twice = torch.cat([row, row + len(xt)]), torch.cat([position, position])
            logits = batch.logits(*twice)
            with_, without = logits.to(torch.promote_types(logits.dtype, torch.float32)).chunk(2)
            moved = without + self.guidance * (with_ - without)
            return torch.where(with_.isinf() | without.isinf(), with_, moved)  # impossible tokens stay impossible

        return BatchLogits(guided)

    def _batch(self, *inputs: Tensor) -> BatchLogits:
        if self._compiled or self._records:  # both need one number of rows: pad smaller batches at the end
            count, length = inputs[0].shape
            self._most_rows[length] = max(self._most_rows.get(length, 0), count)
            missing = self._most_rows[length] - count
            inputs = tuple(torch.cat([x, x[:1].expand(missing, *x.shape[1:])]) for x in inputs)
        out, head = self._run(*inputs), self._head
        if not self._partial:
            check_rows(out, inputs[0])
        if head is None:
            check_outputs(out.shape[-1], self.caller.outputs)
            return BatchLogits(lambda row, position: out[row, position])
        features = self._partial_features(out, len(inputs[0])) if self._partial else lambda row, at: out[row, at]

        def logits(row: Tensor, position: Tensor) -> Tensor:
            return head(features(row, position))

        if not (isinstance(head, Bf16x3Head) and head.can_draw):
            return BatchLogits(logits)
        return BatchLogits(logits, lambda row, position, *columns: head.draw(features(row, position), *columns))

    def _run(self, *inputs: Tensor) -> Any:
        """Run the network up to its head. With a CUDA graph, the next call overwrites the result."""
        body = self._compiled_body if self._compiled else self._body
        if not self._records:
            return body(*inputs)
        shape = inputs[0].shape
        if self._shape != shape:
            self._shape, self._calls_of_shape, self._graph = shape, 0, None
        self._calls_of_shape += 1
        if self._calls_of_shape < RECORD_AT_CALL:
            return body(*inputs)
        if self._graph is None:
            self._graph = CudaGraph(body, *inputs)
        return self._graph(*inputs)

    def _partial_features(self, partial: Any, count: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Features at the requested positions; at all positions, once as many have been requested."""
        everywhere: list[Tensor] = []
        left = FEW_POSITIONS * count

        def features(row: Tensor, position: Tensor) -> Tensor:
            nonlocal left
            left -= len(row)
            if left >= 0:
                some: Tensor = self._network.finish_features(partial, row, position)
                return some
            if not everywhere:
                everywhere.append(self._network.finish_all_features(partial))
            return everywhere[0][row, position]

        return features
