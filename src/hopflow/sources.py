"""Sources: the distribution p0 of the starting sequences x0, whose positions are independent."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .network.precision import widest_float
from .vocab import TokenDistribution, Vocab, require_vocab


@dataclass(frozen=True)
class Source(ABC):
    """A distribution p0 over tokens; the positions of x0 are independent draws from it.

    A new source implements `token_probs`; sampling, entropy, `disjoint` and all else follow from it. If that returns a
    distribution for each position (L, V), all sequences have L tokens, and the last dimension of tokens is the position
    (`of_rows` is for tokens at other positions).
    """

    vocab: Vocab
    counts_positions: ClassVar[bool] = False
    """Whether `fit` takes the token counts of each position, (L, Vd)."""

    def __post_init__(self) -> None:
        require_vocab(self.vocab)

    def _require_masks(self, count: int, reason: str = "") -> None:
        if self.vocab.masks < 1:
            needed = (
                f"{'a mask token' if count == 1 else 'mask tokens'}: pass Vocab(data={self.vocab.data}, masks={count})"
            )
            raise ValueError(f"{type(self).__name__} needs {needed}{reason}.")

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """The source for a text with these token counts; `masks` is the number of masks, if the source has a choice.

        A source may take further numbers, each with a default; on the command line they follow a colon: `mixed:0.1`.
        """
        _refuse_masks(cls, masks)
        return cls(Vocab(len(counts)))

    @abstractmethod
    def token_probs(self) -> Float[Tensor, "*#L V"]:
        """p0 over all V tokens, or that of each position (L, V), in float64 on the CPU."""

    @cached_property
    def shared(self) -> bool:
        """Whether all positions have the same p0."""
        return self._p0.shared

    def check_length(self, length: int) -> None:
        """Raise ValueError if p0 is that of sequences of another length."""
        self._p0.check_length(length)

    @cached_property
    def disjoint_positions(self) -> Bool[Tensor, " #L"]:
        """The positions at which no source token is a data token; a single value if p0 is shared."""
        return self._p0.none_below(self.vocab.data, torch.device("cpu"))

    @cached_property
    def disjoint(self) -> bool:
        """Whether no source token is a data token; then a data token in xt comes from x1."""
        return bool(self.disjoint_positions.all())

    @cached_property
    def full(self) -> bool:
        """Whether exactly the data tokens have positive probability, which B_κ needs."""
        data, masks = self._p0.probs[..., : self.vocab.data], self._p0.probs[..., self.vocab.data :]
        return bool((data > 0).all() and (masks == 0).all())

    @cached_property
    def constant(self) -> bool:
        """Whether each position has one token only; then all source rows are equal and there is nothing to couple."""
        return bool((self._p0.probs.count_nonzero(-1) == 1).all())

    @cached_property
    def mean_probs(self) -> Float[Tensor, " V"]:
        """The mean of p0 over positions: the token frequencies of source sequences."""
        return self._p0.probs if self.shared else self._p0.probs.mean(0)

    @cached_property
    def entropy(self) -> float:
        """The entropy of p0 in nats per token."""
        return float(torch.special.entr(self._p0.probs).sum(-1).mean())

    def of_rows(self, positions: Int[Tensor, " n"]) -> "Source":
        """This source for n tokens at these positions, in place of complete sequences; itself if p0 is shared."""
        if self.shared:
            return self
        _ = self.disjoint  # computed once, and shared by the copy
        found = copy(self)
        found.__dict__["_p0"] = self._p0.at_positions(positions)
        return found

    def sample(
        self, *shape: int, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> Int[Tensor, "..."]:
        """Random tokens of this shape, drawn on the device of the generator and moved to `device`."""
        where = generator.device if generator is not None else torch.device(device)
        return self.at(torch.rand(shape, generator=generator, device=where, dtype=widest_float(where))).to(device)

    def at(self, u: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Tokens by inversion at uniform numbers u in [0, 1), on the device of u."""
        return self._p0.at(u)

    def probs(self, x: Int[Tensor, "..."], dtype: torch.dtype = torch.float32) -> Float[Tensor, "..."]:
        """p0(x), on the device of x."""
        return self._p0.of(x).to(dtype)

    def probs_on(self, device: torch.device, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*#L V"]:
        """p0 over all V tokens, or that of each position, on a device."""
        return self._p0.on(device).to(dtype)

    def comes_from_data(self, x: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether x is a data token where the source draws none, so that it comes from x1."""
        if self.shared:
            return self.vocab.is_data(x) if self.disjoint else torch.zeros_like(x, dtype=torch.bool)
        return self.vocab.is_data(x) & self._p0.none_below(self.vocab.data, x.device)[self._p0.positions_of(x)]

    @cached_property
    def _p0(self) -> TokenDistribution:
        owner = type(self).__name__
        return TokenDistribution(self.vocab.normalized(self.token_probs(), owner), owner)


@dataclass(frozen=True)
class Mask(Source):
    """Every position starts as the first mask. Section 2.1.3, (i)

    >>> Mask(Vocab(3, masks=1)).sample(2, 4)
    tensor([[3, 3, 3, 3],
            [3, 3, 3, 3]])
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_masks(1)

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
        self._require_masks(self.vocab.data, ", as many masks as data tokens, as in the paper")

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
class Mixed(Source):
    """A position starts as a uniform data token with probability `uniform`, else as a mask.

    A constant mixture: p0 is the same at all times. In GIDD (arXiv 2503.04482) the share of uniform tokens varies with
    time instead. Data tokens of the source teach the network to correct tokens; masks say which positions are noise.

    >>> Mixed(Vocab(2, masks=1), uniform=0.1).token_probs()
    tensor([0.0500, 0.0500, 0.9000], dtype=torch.float64)
    """

    uniform: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_masks(1)
        if not (isinstance(self.uniform, Real) and 0 <= self.uniform <= 1):
            raise ValueError(
                f"uniform, the share of data tokens in the noise, must lie in [0, 1], got {self.uniform!r}."
            )

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None, uniform: float = 0.1) -> "Source":
        return cls(Vocab(len(counts), masks or 1), uniform)

    def token_probs(self) -> Float[Tensor, " V"]:
        data = torch.full((self.vocab.data,), self.uniform / self.vocab.data, dtype=torch.float64)
        masks = torch.full((self.vocab.masks,), (1 - self.uniform) / self.vocab.masks, dtype=torch.float64)
        return torch.cat([data, masks])


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
        _ = self._p0  # raises an error for invalid frequencies

    def __str__(self) -> str:
        low, high = min(self.frequencies), max(self.frequencies)
        return f"BagOfWords(vocab={self.vocab}, {len(self.frequencies)} frequencies from {low:.3g} to {high:.3g})"

    @classmethod
    def fit(cls, counts: Int[Tensor, " Vd"], masks: int | None = None) -> "Source":
        """These frequencies, mixed with a uniform distribution of weight 0.001, so that all tokens are possible."""
        _refuse_masks(cls, masks)
        return cls(Vocab(len(counts)), tuple(_mixed_with_uniform(counts).tolist()))

    @classmethod
    def of(cls, vocab: Vocab, tokens: Int[Tensor, "..."], smoothing: float = 0.0) -> "BagOfWords":
        """The frequencies of these training tokens; `smoothing` is added to every count (B_κ needs positive ones)."""
        vocab.check_data(tokens)
        if tokens.numel() == 0 and smoothing == 0:
            raise ValueError("tokens is empty: pass the tokens of the training text, or smoothing > 0.")
        counts = torch.bincount(tokens.flatten().cpu(), minlength=vocab.data)
        return cls(vocab, tuple(_frequencies(counts, smoothing).tolist()))

    def token_probs(self) -> Float[Tensor, " V"]:
        p0 = torch.zeros(self.vocab.size, dtype=torch.float64)
        p0[: self.vocab.data] = torch.tensor(self.frequencies, dtype=torch.float64)
        return p0


@dataclass(frozen=True)
class PositionFrequencies(Source):
    """Data tokens with the frequencies of their position in the training set, as in a position weight matrix.

    For sequences of one length whose positions differ, such as aligned DNA, pixels or entries of a table.

    >>> import torch
    >>> rows = torch.tensor([[0, 1, 1], [0, 1, 0]])
    >>> PositionFrequencies.of(Vocab(2), rows).token_probs()
    tensor([[1.0000, 0.0000],
            [0.0000, 1.0000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """

    frequencies: tuple[tuple[float, ...], ...]
    """The probability of each data token at each position."""
    counts_positions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            rows = tuple(tuple(float(f) for f in row) for row in self.frequencies)
        except TypeError:
            raise ValueError("frequencies must contain a list of numbers for each position, got a number.") from None
        object.__setattr__(self, "frequencies", rows)
        if not rows or {len(row) for row in rows} != {self.vocab.data}:
            sizes = ", ".join(str(len(row)) for row in rows[:9])
            raise ValueError(
                f"frequencies must contain one number per data token ({self.vocab.data}) for each position, "
                f"got {f'rows of {sizes} numbers' if rows else 'no position'}."
            )
        _ = self._p0  # raises an error for invalid frequencies

    def __str__(self) -> str:
        return f"PositionFrequencies(vocab={self.vocab}, {len(self.frequencies)} positions)"

    @classmethod
    def fit(cls, counts: Int[Tensor, "L Vd"], masks: int | None = None) -> "Source":
        """From the token counts of each position, mixed with a uniform distribution of weight 0.001."""
        _refuse_masks(cls, masks)
        return cls(Vocab(counts.shape[1]), tuple(map(tuple, _mixed_with_uniform(counts).tolist())))

    @classmethod
    def of(cls, vocab: Vocab, rows: Int[Tensor, "n L"], smoothing: float = 0.0) -> "PositionFrequencies":
        """The frequencies in these training rows; `smoothing` is added to every count (B_κ needs positive ones)."""
        vocab.check_ids(rows, "(n, L)")
        vocab.check_data(rows)
        if rows.numel() == 0:
            raise ValueError("rows is empty: pass the rows of the training set.")
        return cls(vocab, tuple(map(tuple, _frequencies(vocab.position_counts(rows), smoothing).tolist())))

    def token_probs(self) -> Float[Tensor, "L V"]:
        data = torch.tensor(self.frequencies, dtype=torch.float64)
        return torch.cat([data, data.new_zeros(len(data), self.vocab.masks)], 1)


def _frequencies(counts: Int[Tensor, "*#L Vd"], smoothing: float) -> Float[Tensor, "*#L Vd"]:
    if not smoothing >= 0:
        raise ValueError(f"smoothing must be ≥ 0, got {smoothing}.")
    smooth = counts.double() + smoothing
    return smooth / smooth.sum(-1, keepdim=True)


def _mixed_with_uniform(counts: Int[Tensor, "*#L Vd"]) -> Float[Tensor, "*#L Vd"]:
    counts = torch.as_tensor(counts)  # a list of numbers is allowed, too
    return 0.999 * counts.double() / counts.sum(-1, keepdim=True) + 0.001 / counts.shape[-1]


def _refuse_masks(cls: type[Source], masks: int | None) -> None:
    if masks:
        raise ValueError(f"{cls.__name__} has no masks, got masks={masks}.")


def examples(vocab: Vocab, length: int = 4) -> Sequence[Source]:
    """One source of each class, for the contract tests and the docs; `length` is that of a source by position."""
    weights = torch.arange(1, vocab.data + 1, dtype=torch.float64)
    bag = BagOfWords(vocab, tuple((weights / weights.sum()).tolist()))
    by_position = torch.stack([weights.roll(place) / weights.sum() for place in range(length)])
    positional = PositionFrequencies(vocab, tuple(map(tuple, by_position.tolist())))
    return Mask(vocab), MultiMask(vocab), Uniform(vocab), bag, Mixed(vocab), positional
