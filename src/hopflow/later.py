"""Later: a number on its way from a GPU."""

import torch
from jaxtyping import Shaped
from torch import Tensor


class Later:
    """A tensor as it is now, on its way to the host, which need not wait for it. On a CPU it is there at once."""

    def __init__(self, tensor: Shaped[Tensor, "*shape"]) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensor.device.type != "cuda":
            self._here = tensor.detach().clone()
        else:
            self._here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.copy_(tensor.detach(), non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Shaped[Tensor, "*shape"]:
        """The tensor, waited for if need be."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._here
