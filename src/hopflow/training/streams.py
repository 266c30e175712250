"""Streams: what a step draws depends on names and numbers only, not on what was drawn before or by whom."""

import hashlib
import operator

import torch


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
