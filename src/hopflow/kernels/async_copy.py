"""AsyncCopy and to_device: copies between host and GPU that the host does not wait for."""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from . import switch


class AsyncCopy:
    """A copy of a CUDA tensor on the host, made in the background."""

    def __init__(self, tensor: Shaped[Tensor, "*shape"]) -> None:
        self._arrived: torch.cuda.Event | None = None
        if not switch.current.async_copy:
            self._here = tensor.detach().cpu()
        else:
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor.detach(), non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def tolist(self) -> Any:
        """The copied numbers, as `Tensor.tolist` returns them; waits until the copy is complete."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here.tolist()


def to_device(tensor: Shaped[Tensor, "*shape"], device: torch.device) -> Shaped[Tensor, "*shape"]:
    """A host tensor on a CUDA device; only from pinned memory the host need not wait for the copy."""
    if tensor.device.type == "cpu" and switch.current.async_copy:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
