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
            torch.cuda.current_stream().wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = function(*self._inputs)

    def __call__(self, *inputs: Tensor) -> T:
        for mine, new in zip(self._inputs, inputs, strict=True):
            mine.copy_(new)
        self._graph.replay()
        return self._outputs
