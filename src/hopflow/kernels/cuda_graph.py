"""CudaGraph: calls of one shape on a GPU as a single launch."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WARMUP_CALLS = 1
"""Calls before the recording, which create what is created once."""


class CudaGraph(Generic[T]):
    """A function without gradients, recorded as a CUDA graph: the host launches it as fast as one kernel.

    The outputs stay at the same address; the next call overwrites them.
    """

    def __init__(self, function: Callable[..., T], *inputs: Tensor) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        with torch.cuda.device_of(self._inputs[0]):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARMUP_CALLS):
                    function(*self._inputs)
            self._graph = torch.cuda.CUDAGraph()
            # on a stream of this device; thread_local, so that CUDA calls of other threads do not end the capture
            with torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                self._outputs = function(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)

    def __call__(self, *inputs: Tensor) -> T:
        for own, new in zip(self._inputs, inputs, strict=True):
            own.copy_(new)
        self._graph.replay()
        return self._outputs
