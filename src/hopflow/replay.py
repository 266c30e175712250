"""Replay: calls of one shape on a GPU as a single launch."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WARM = 1
"""Calls before the recording: whatever is made once is made then."""


class Replay(Generic[T]):
    """A CUDA graph of a function without gradients: a host needs as long for it as for one kernel.

    What it gives lies in the same place at every call, and is overwritten by the next one.
    """

    def __init__(self, function: Callable[..., T], *inputs: Tensor) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        with torch.cuda.device_of(self._inputs[0]):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(WARM):
                    function(*self._inputs)
            self._graph = torch.cuda.CUDAGraph()
            # by a stream of this device; what other threads ask of CUDA meanwhile is their own
            with torch.cuda.graph(self._graph, stream=aside, capture_error_mode="thread_local"):
                self._outputs = function(*self._inputs)
            torch.cuda.current_stream().wait_stream(aside)

    def __call__(self, *inputs: Tensor) -> T:
        for mine, new in zip(self._inputs, inputs, strict=True):
            mine.copy_(new)
        self._graph.replay()
        return self._outputs
