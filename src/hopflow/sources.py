"""Sources: the distribution p0 of the starting sequences x0, i.i.d. over positions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .network.precision import widest_float
from .vocab import Vocab, require_vocab


@dataclass(frozen=True)
class Source(ABC):
    """A distribution p0 over tokens; the positions of x0 are independent draws from it.

    A new source implements `token_probs`; sampling, entropy, `disjoint` and all else follow from it.
    """

    vocab: Vocab

    def __post_init__(self) -> None:
        require_vocab(self.vocab)

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """The source for a text with these token counts; `masks` is the number of masks, if the source has a choice."""
        if masks:
            raise ValueError(f"{cls.__name__} has no masks, got masks={masks}.")
        return cls(Vocab(len(counts)))

    @abstractmethod
    def token_probs(self) -> Float[Tensor, " V"]:
        """p0 over all V tokens, in float64 on the CPU."""

    @cached_property
    def disjoint(self) -> bool:
        """Whether no source token is a data token; then a data token in xt comes from x1."""
        return bool((self._probs[: self.vocab.data] == 0).all())

    @cached_property
    def full(self) -> bool:
        """Whether exactly the data tokens have positive probability, which B_κ needs."""
        return bool((self._probs[: self.vocab.data] > 0).all() and (self._probs[self.vocab.data :] == 0).all())

    @cached_property
    def constant(self) -> bool:
        """Whether one token has probability 1; then all source rows are equal and there is nothing to couple."""
        return int(self._probs.count_nonzero()) == 1

    @cached_property
    def entropy(self) -> float:
        """The entropy of p0 in nats per token."""
        return float(torch.special.entr(self._probs).sum())

    def sample(
        self, *shape: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> Int[Tensor, "..."]:
        """Random tokens of this shape, drawn on the device of the generator and moved to `device`."""
        where = generator.device if generator is not None else torch.device(device)
        return self.at(torch.rand(shape, generator=generator, device=where, dtype=widest_float(where))).to(device)

    def at(self, u: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Tokens by inversion at uniform numbers u in [0, 1), on the device of u."""
        # right=True, so that u = 0 never draws a token of probability 0
        return torch.searchsorted(self._table(u.device)[1], u, right=True).clamp(max=self._last)

    def probs(self, x: Int[Tensor, "..."], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
        """p0(x), on the device of x."""
        return self._table(x.device)[0][x].to(dtype)

    def probs_on(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Float[Tensor, " V"]:
        """p0 over all V tokens, on a device."""
        return self._table(device)[0].to(dtype)

    def _table(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """p0 and its cumulative sum on a device; copied once per device."""
        key = str(device)
        if key not in self._tables:
            dtype = widest_float(device)
            self._tables[key] = self._probs.to(device, dtype), self._probs.cumsum(0).to(device, dtype)
        return self._tables[key]

    @cached_property
    def _probs(self) -> Float[Tensor, " V"]:
        p0 = self.token_probs()
        if p0.shape != (self.vocab.size,):
            raise ValueError(
                f"{type(self).__name__}.token_probs() must return one probability per token, "
                f"shape ({self.vocab.size},), got {tuple(p0.shape)}."
            )
        p0 = p0.double().cpu()
        if not bool((p0 >= 0).all()) or abs(float(p0.sum()) - 1) > 1e-6:
            raise ValueError(
                f"the token probabilities of {type(self).__name__} must be ≥ 0 and sum to 1; their sum is "
                f"{float(p0.sum()):.6g} and their minimum {float(p0.min()):.3g}. Divide counts by their sum."
            )
        return p0 / p0.sum()

    @cached_property
    def _last(self) -> int:
        return int(self._probs.nonzero().max())

    @cached_property
    def _tables(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {}


@dataclass(frozen=True)
class Mask(Source):
    """Every position starts as the first mask. Section 2.1.3, (i)

    >>> Mask(Vocab(3, masks=1)).sample(2, 4)
    tensor([[3, 3, 3, 3],
            [3, 3, 3, 3]])
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab.masks < 1:
            raise ValueError(f"Mask needs a mask token: pass Vocab(data={self.vocab.data}, masks=1).")

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        if masks not in (None, 1):
            raise ValueError(f"Mask has exactly one mask token, got masks={masks}. For several masks use MultiMask.")
        return cls(Vocab(len(counts), 1))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[self.vocab.data] = 1
        return p0


@dataclass(frozen=True)
class MultiMask(Source):
    """Every position starts as one of several masks, drawn uniformly, so that there is something to couple.

    Section 3.2
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab.masks < 1:
            raise ValueError(
                f"MultiMask needs mask tokens: pass Vocab(data={self.vocab.data}, masks={self.vocab.data}), "
                f"as many masks as data tokens, as in the paper."
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
    """All data tokens have the same probability. Section 2.1.3, (ii)"""

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[: self.vocab.data] = 1 / self.vocab.data
        return p0


@dataclass(frozen=True)
class BagOfWords(Source):
    """Data tokens with their frequencies in the training set. Section 5.1 [toy_datasets]"""

    frequencies: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "frequencies", tuple(float(f) for f in self.frequencies))
        if len(self.frequencies) != self.vocab.data:
            raise ValueError(
                f"frequencies must contain one number per data token ({self.vocab.data}), got {len(self.frequencies)}."
            )
        _ = self._probs  # raises an error for invalid frequencies

    def __str__(self) -> str:
        low, high = min(self.frequencies), max(self.frequencies)
        return f"BagOfWords(vocab={self.vocab}, {len(self.frequencies)} frequencies from {low:.3g} to {high:.3g})"

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """These frequencies, mixed with a uniform distribution of weight 0.001, so that all tokens are possible."""
        if masks:
            raise ValueError(f"BagOfWords has no masks, got masks={masks}.")
        frequencies = 0.999 * counts.double() / counts.sum() + 0.001 / len(counts)
        return cls(Vocab(len(counts)), tuple(frequencies.tolist()))

    @classmethod
    def of(cls, vocab: Vocab, tokens: Int[Tensor, "..."], smoothing: float = 0.0) -> "BagOfWords":
        """The frequencies of these training tokens; `smoothing` is added to every count (B_κ needs positive ones)."""
        vocab.check_data(tokens)
        if tokens.numel() == 0 and smoothing == 0:
            raise ValueError("tokens is empty: pass the tokens of the training text, or smoothing > 0.")
        if not smoothing >= 0:
            raise ValueError(f"smoothing must be ≥ 0, got {smoothing}.")
        counts = torch.bincount(tokens.flatten().cpu(), minlength=vocab.data).double() + smoothing
        return cls(vocab, tuple((counts / counts.sum()).tolist()))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[: self.vocab.data] = torch.tensor(self.frequencies, dtype=torch.float64)
        return p0


def examples(vocab: Vocab) -> Sequence[Source]:
    """One source of each class, for the contract tests and the docs."""
    weights = torch.arange(1, vocab.data + 1, dtype=torch.float64)
    bag = BagOfWords(vocab, tuple((weights / weights.sum()).tolist()))
    return Mask(vocab), MultiMask(vocab), Uniform(vocab), bag
