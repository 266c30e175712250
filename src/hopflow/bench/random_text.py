"""RandomText: random tokens in place of a corpus."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..runs.rng import stream

TOKENS = 1 << 20
"""Length of the random text that batches are cut from."""


class RandomText:
    """A corpus of random tokens with frequencies like those of words (1/rank); batches are as fast as from a text."""

    def __init__(self, vocab_size: int, length: int, seed: int) -> None:
        self.length, self.vocab_size = length, vocab_size
        cumulative = (1.0 / torch.arange(1, vocab_size + 1, dtype=torch.float64)).cumsum(0)
        u = torch.rand(TOKENS, dtype=torch.float64, generator=stream(seed, "bench"))
        text = torch.searchsorted(cumulative, u * cumulative[-1]).clamp(max=vocab_size - 1)
        self._windows = text.unfold(0, length, 1)

    test: Int[Tensor, "n L"] = torch.empty(0, 1, dtype=torch.int64)
    test_keep: Bool[Tensor, "n L"] | None = None
    identity: dict[str, Any] = {}  # noqa: RUF012

    def batch(self, seed: int, start: int, count: int) -> Int[Tensor, "n L"]:
        places = torch.randint(len(self._windows), (count,), generator=stream(seed, "bench", start))
        return self._windows[places]

    def keep(self, seed: int, start: int, count: int) -> Bool[Tensor, "n L"] | None:
        return None

    def decode(self, tokens: Int[Tensor, " L"]) -> str:
        return " ".join(map(str, tokens.tolist()))
