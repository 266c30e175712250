"""Random streams: the draws of a step depend only on a key of names and numbers, not on earlier draws."""

import hashlib
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def stream_seed(seed: int, purpose: str, *index: int) -> int:
    """A 63-bit seed for a key, equal on every machine, process and Python version."""
    # Python's hash() differs between processes and builds
    key = "/".join((str(operator.index(seed)), repr(purpose), *(str(operator.index(i)) for i in index)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, purpose: str, *index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A separate generator for (seed, purpose, index…), such as stream(seed, "source", ot_batch).

    Generators of devices use different algorithms: draw on the CPU what must be equal everywhere. The CPU generator
    uses only 32 bits of its seed, so that among a million keys about a hundred share their numbers with another key:
    harmless for training noise, but not for every purpose.
    """
    return torch.Generator(device).manual_seed(stream_seed(seed, purpose, *index))


class Seeded(TorchDispatchMode):
    """A context in which this thread's random operations on the CPU draw from a generator with this seed.

    The values are those after `torch.manual_seed(seed)`. torch's global generator, which all threads share, is neither
    read nor changed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(options or {})
        if torch.Tag.nondeterministic_seeded in operation.tags and given.get("generator") is None:
            if not any(argument.name == "generator" for argument in operation._schema.arguments):
                raise ValueError(f"{operation} takes no generator: draw in place, e.g. torch.empty(…).normal_()")
            given["generator"] = self._generator
        return operation(*args, **given)
