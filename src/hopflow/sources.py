"""Sources: where x0 comes from, an i.i.d. law over tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .vocab import Vocab


@dataclass(frozen=True)
class Source(ABC):
    """A law p0 over tokens; the positions of x0 are independent draws from it.

    A new source implements `token_probs`; drawing, entropy, `disjoint` and the rest follow.
    """

    vocab: Vocab

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """For text with these token counts; `masks` is the number of mask tokens, where a source may choose it."""
        if masks:
            raise ValueError(f"{cls.__name__} has no choice of masks; got masks={masks}")
        return cls(Vocab(len(counts)))

    @abstractmethod
    def token_probs(self) -> Float[Tensor, " V"]:
        """p0 over the whole vocabulary, float64, on the CPU."""

    @cached_property
    def disjoint(self) -> bool:
        """No source token is a data token: what is data in xt has come from x1, and stays."""
        return bool((self._probs[: self.vocab.data] == 0).all())

    @cached_property
    def full(self) -> bool:
        """Exactly the data tokens have positive probability, as B_κ needs."""
        return bool((self._probs[: self.vocab.data] > 0).all() and (self._probs[self.vocab.data :] == 0).all())

    @cached_property
    def constant(self) -> bool:
        """One token has probability 1, so that all source rows are equal and a coupling has nothing to choose."""
        return int(self._probs.count_nonzero()) == 1

    @cached_property
    def entropy(self) -> float:
        """Nats per token."""
        return float(torch.special.entr(self._probs).sum())

    def sample(
        self, *shape: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> Int[Tensor, "..."]:
        """Draw tokens; the draw happens where the generator lives and moves to `device` afterwards."""
        where = generator.device if generator is not None else torch.device(device)
        return self.at(torch.rand(shape, generator=generator, device=where, dtype=_wide(where))).to(device)

    def at(self, u: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The tokens at uniform numbers in [0, 1), on their device."""
        # search from the right, so that u = 0 never lands on a token of probability 0
        return torch.searchsorted(self._table(u.device)[1], u, right=True).clamp(max=self._last)

    def probs(self, x: Int[Tensor, "..."], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
        """p0(x), on the device of x."""
        return self._table(x.device)[0][x].to(dtype)

    def probs_on(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Float[Tensor, " V"]:
        """p0 over the whole vocabulary on a device."""
        return self._table(device)[0].to(dtype)

    def _table(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """p0 and its cumulative sum on a device, moved there once."""
        key, wide = str(device), _wide(device)
        if key not in self._tables:
            self._tables[key] = self._probs.to(device, wide), self._probs.cumsum(0).to(device, wide)
        return self._tables[key]

    @cached_property
    def _probs(self) -> Float[Tensor, " V"]:
        p0 = self.token_probs()
        if p0.shape != (self.vocab.size,):
            raise ValueError(
                f"{type(self).__name__}.token_probs() must give one probability per token, "
                f"({self.vocab.size},); got {tuple(p0.shape)}"
            )
        p0 = p0.double().cpu()
        if not bool((p0 >= 0).all()) or abs(float(p0.sum()) - 1) > 1e-6:
            raise ValueError(
                f"the token probabilities of {type(self).__name__} must be ≥ 0 and sum to 1; they sum to "
                f"{float(p0.sum()):.6g}, the least is {float(p0.min()):.3g}. Divide counts by their sum."
            )
        return p0 / p0.sum()

    @cached_property
    def _last(self) -> int:
        return int(self._probs.nonzero().max())

    @cached_property
    def _tables(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {}


def _wide(device: torch.device) -> torch.dtype:
    """float64 where there is one."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Mask(Source):
    """Every position starts as the first mask. Section 2.1.3, (i)"""

    def __post_init__(self) -> None:
        if self.vocab.masks < 1:
            raise ValueError(f"Mask needs a mask token: Vocab(data={self.vocab.data}, masks=1)")

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        if masks not in (None, 1):
            raise ValueError(f"Mask has one mask token, MultiMask has several; got masks={masks}")
        return cls(Vocab(len(counts), 1))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[self.vocab.data] = 1
        return p0


@dataclass(frozen=True)
class MultiMask(Source):
    """Every position starts as a mask drawn uniformly from all of them, which leaves something to couple.

    Section 3.2
    """

    def __post_init__(self) -> None:
        if self.vocab.masks < 1:
            raise ValueError(
                f"MultiMask needs mask tokens, the paper takes as many as data tokens: "
                f"Vocab(data={self.vocab.data}, masks={self.vocab.data})"
            )

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        return cls(Vocab(len(counts), len(counts) if masks is None else masks))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[self.vocab.data :] = 1 / self.vocab.masks
        return p0


@dataclass(frozen=True)
class Uniform(Source):
    """Every data token is as likely as any other. Section 2.1.3, (ii)"""

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[: self.vocab.data] = 1 / self.vocab.data
        return p0


@dataclass(frozen=True)
class BagOfWords(Source):
    """Tokens by their frequency in the training set. Section 5.1 [toy_datasets]"""

    frequencies: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "frequencies", tuple(float(f) for f in self.frequencies))
        if len(self.frequencies) != self.vocab.data:
            raise ValueError(
                f"BagOfWords needs one frequency per data token ({self.vocab.data}); got {len(self.frequencies)}"
            )
        _ = self._probs  # fail here, not at the first draw

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """These frequencies, of which a thousandth is spread evenly: a token unseen so far must not be impossible."""
        if masks:
            raise ValueError(f"BagOfWords draws data tokens and has no masks; got masks={masks}")
        frequencies = 0.999 * counts.double() / counts.sum() + 0.001 / len(counts)
        return cls(Vocab(len(counts)), tuple(frequencies.tolist()))

    @classmethod
    def of(cls, vocab: Vocab, tokens: Int[Tensor, "..."], smoothing: float = 0.0) -> "BagOfWords":
        """The frequencies of these training tokens; `smoothing` is added to every count, so that B_κ exists."""
        vocab.check_data(tokens)
        if tokens.numel() == 0 and smoothing == 0:
            raise ValueError("there are no tokens to count: pass the training text, or a smoothing")
        if not smoothing >= 0:
            raise ValueError(f"smoothing is added to every count and must be ≥ 0; got {smoothing}")
        counts = torch.bincount(tokens.flatten().cpu(), minlength=vocab.data).double() + smoothing
        return cls(vocab, tuple((counts / counts.sum()).tolist()))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[: self.vocab.data] = torch.tensor(self.frequencies, dtype=torch.float64)
        return p0


def examples(vocab: Vocab) -> Sequence[Source]:
    """One of each, for the contract tests, the recipes by name and the docs."""
    weights = torch.arange(1, vocab.data + 1, dtype=torch.float64)
    bag = BagOfWords(vocab, tuple((weights / weights.sum()).tolist()))
    return Mask(vocab), MultiMask(vocab), Uniform(vocab), bag
