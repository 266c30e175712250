"""What is copied from the CPU to another device, for which the host waits if that is a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Copies(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found: list[torch.Size] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        moved = isinstance(out, torch.Tensor) and args and isinstance(args[0], torch.Tensor)
        if moved and args[0].device.type == "cpu" and out.device.type != "cpu":
            self.found.append(out.shape)
        return out


@contextmanager
def copies_from_the_cpu() -> Iterator[list[torch.Size]]:
    """The shapes of all tensors that are copied inside from the CPU to another device, such as meta."""
    with _Copies() as mode:
        yield mode.found
