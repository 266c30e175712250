"""Streams: what a step draws depends on names and numbers only, not on what was drawn before or by whom."""

import hashlib
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def stream_seed(seed: int, purpose: str, *index: int) -> int:
    """63 bits that every machine, process and Python derives alike from the key."""
    # Python's own hash is salted per process and differs between builds
    key = "/".join((str(operator.index(seed)), repr(purpose), *(str(operator.index(i)) for i in index)))
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") >> 1


def stream(seed: int, purpose: str, *index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of its own for (seed, purpose, index…), such as stream(seed, "source", ot_batch).

    A device's generator has its own algorithm: draw on the CPU what must be equal everywhere. The CPU's reads only
    32 bits of its seed, so that among a million keys some hundred share their numbers with another: harmless for
    training noise, and worth knowing before it is used for anything else.
    """
    return torch.Generator(device).manual_seed(stream_seed(seed, purpose, *index))


class Seeded(TorchDispatchMode):
    """While it is entered, this thread's random operations on the CPU draw from a generator of this seed.

    The values are those after `torch.manual_seed(seed)`. torch's global generator belongs to all threads: here it is
    neither read nor changed, so that nobody else disturbs these draws or is disturbed by them.
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
