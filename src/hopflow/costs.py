"""Costs: how far a source sequence is from a data sequence.

A `Cost` knows two tokens, and a sequence costs the sum over its positions (Theorem 3.1 [theorem1]). A `SequenceCost`
may look at whole sequences. What lives in a network and changes while it learns is handed in when a cost is computed:
`embedding`, the table of its token embeddings, and `network` itself. A cost takes what it needs and ignores the rest;
`reads` says which of the two it needs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .network import Network, clock_dtype, resting
from .products import centred_distances, chunks, narrowed, squared_distances
from .split import Split

FEW_TOKENS = 16
"""Up to here a product of one-hot rows counts matches faster than comparing does (7 times at 3 tokens, n = 2048)."""
COMPARED = 64
"""Data rows that are compared at once: with 4,096 source rows a byte each fits a core's cache."""


class SequenceCost(ABC):
    """What it costs to lead a source sequence to a data sequence."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Of "embedding" and "network", what it cannot do without."""

    @abstractmethod
    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        """c(x0_j, x1_i) of all pairs, a row per data sequence; never a tensor of shape (m, n, L)."""

    @abstractmethod
    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        """c(x0_i, x1_i): the true cost of the pairs as they stand."""

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, "m n"]:
        """c(x0_j, x1_i) in full."""
        return self.split(x0, x1, embedding, network).full()


class Cost(SequenceCost):
    """A token dissimilarity s(a, b) ≥ 0 with s(a, a) = 0, from a to b; it need not be symmetric.

    `dissimilarity` is all that a new one needs.
    """

    @abstractmethod
    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        """s(a, b); costs that live in the model's embedding space are given its table."""

    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        _some_positions(x0)
        total = None
        for a, b in zip(x0.T, x1.T, strict=True):
            grid_b, grid_a = b[:, None].expand(len(b), len(a)), a[None, :].expand(len(b), len(a))
            part = self.dissimilarity(grid_a, grid_b, embedding)
            # a sum over many positions outgrows half precision: 65504 is its largest number
            total = part.to(torch.promote_types(part.dtype, torch.float32)) if total is None else total.add_(part)
        assert total is not None
        return Split(total)

    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        _some_positions(x0)
        return self.dissimilarity(x0, x1, embedding).sum(1, dtype=_sum_dtype(x0))


@dataclass(frozen=True)
class Hamming(Cost):
    """s(a, b) = 1 where the tokens differ; its sequence cost is the Hamming distance. Cor. 3.2 [coro1]"""

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return (a != b).float()

    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        _some_positions(x0)
        tokens = int(torch.maximum(x0.max(), x1.max())) + 1
        if tokens <= FEW_TOKENS:
            matches = x0.new_zeros(len(x1), len(x0), dtype=torch.float32)
            for at in chunks(x0, tokens):
                hot0, hot1 = (torch.nn.functional.one_hot(x[:, at], tokens).flatten(1).float() for x in (x0, x1))
                matches.addmm_(hot1, hot0.T)
            return Split(x0.shape[1] - matches)
        if x0.device.type == "cpu":
            return Split(_compared(x0, x1, tokens))
        # the 0-norm counts where two rows differ; float32 holds ids up to 2^24 exactly
        dtype = torch.float32 if tokens <= 1 << 24 else torch.float64
        return Split(torch.cdist(x1.to(dtype), x0.to(dtype), p=0.0).float())


class _InEmbeddingSpace(Cost):
    """What costs of token embeddings share: they read the table, and never hold the embeddings of a whole batch."""

    reads: ClassVar[tuple[str, ...]] = ("embedding",)

    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        _some_positions(x0)
        # summed as they come: small results kept between large chunks tear the heap apart, to 12 GiB where n = 4096
        total = torch.zeros(len(x0), dtype=_sum_dtype(x0), device=x0.device)
        for at in chunks(x0, _table(embedding).shape[1]):
            total += super().paired(x0[:, at], x1[:, at], embedding)
        return total


@dataclass(frozen=True)
class SquaredEmbedding(_InEmbeddingSpace):
    """s(a, b) = ‖e(a) - e(b)‖²; its sequence cost is that of the concatenated embeddings. Cor. 3.3 [coro2]

    Solved on the cross term -2⟨e(x0), e(x1)⟩ alone, of embeddings about the middle of the table: there products lose
    the fewest digits. On a GPU, whose float32 products take five times as long, those of a float32 table are rounded to
    bfloat16 first; so are they in a bfloat16 table. Products are summed in float32. Each coordinate is then off by 2^-9
    at most, an entry of 64 tokens and width 256 by 3e-4, and what the pairs truly cost by nothing: 256 rows were paired
    alike.
    """

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        e = _table(embedding)
        wide = torch.promote_types(e.dtype, torch.float32)
        return (e[a].to(wide) - e[b].to(wide)).square().sum(-1)

    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        _some_positions(x0)
        return centred_distances(x0, x1, _table(embedding))

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, "m n"]:
        return super().matrix(x0, x1, embedding).clamp_(min=0)  # equal rows may round to below zero


@dataclass(frozen=True)
class Embedding(_InEmbeddingSpace):
    """s(a, b) = ‖e(a) - e(b)‖, the plain distance of two token embeddings, not squared.

    Theorem 3.1 [theorem1] holds for it as for every s, with the *sum* of the norms over positions as the sequence cost.
    That is not the norm of the concatenated embeddings: a path that hops token by token does not go straight. Cor. 3.3
    [coro2] is about the square, `SquaredEmbedding`, for which sum and concatenation agree.
    """

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return SquaredEmbedding().dissimilarity(a, b, embedding).sqrt()

    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        _some_positions(x0)
        e = _table(embedding)
        e = narrowed(e - e.mean(0))  # a root shows what is lost where long vectors are close to each other
        total = None
        for a, b in zip(x0.T[:, :, None], x1.T[:, :, None], strict=True):  # one position, all pairs
            apart = squared_distances(a, b, e).full().clamp_(min=0).sqrt_().masked_fill_(b == a.T, 0.0)
            total = apart if total is None else total.add_(apart)
        assert total is not None
        return Split(total)


@dataclass(frozen=True)
class TokenMatrix(Cost):
    """s(a, b) = `rows[a][b]`, a table of one's own: plain numbers, so that it is stored with the flow."""

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        size = len(self.rows)
        if any(len(row) != size for row in self.rows) or any(self.rows[a][a] != 0 for a in range(size)):
            raise ValueError("a token dissimilarity is a square table with zeros on its diagonal: s(a, a) = 0")

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return torch.tensor(self.rows, device=a.device)[a, b]


@dataclass(frozen=True)
class OneStepLikelihood(SequenceCost):
    """c(x0, x1) = -Σ_i log p_{1|0}^i(x1^i | x0; θ): what the network itself finds likely from x0. Eq. (179)

    Every prediction is the softmax of the logits at t = 0, where the path holds no evidence yet. It looks at the whole
    of x0, so that it is no token dissimilarity, and Theorem 3.1 [theorem1] says nothing about it.
    """

    reads: ClassVar[tuple[str, ...]] = ("network",)
    batch: int = 64

    def split(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Split:
        _some_positions(x0)
        pairwise, columns = [], []
        for logits in self._logits(x0, network):  # (b, L, Vd)
            at = x1.T.expand(len(logits), *x1.T.shape)  # (b, L, m)
            pairwise.append(-torch.stack([row.gather(1, to).sum(0) for row, to in zip(logits, at, strict=True)]))
            columns.append(logits.logsumexp(-1).sum(1))
        return Split(torch.cat(pairwise).T.contiguous(), None, torch.cat(columns))

    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        _some_positions(x0)
        nats = [
            (logits.logsumexp(-1) - logits.gather(2, rows[..., None])[..., 0]).sum(1)
            for logits, rows in zip(self._logits(x0, network), x1.split(self.batch), strict=True)
        ]
        return torch.cat(nats)

    def _logits(self, x0: Int[Tensor, "n L"], network: Network | None) -> Iterator[Float[Tensor, "b L Vd"]]:
        if network is None:
            raise ValueError("OneStepLikelihood needs the network: pair(x0, x1, generator, network=model)")
        for rows in x0.split(self.batch):
            with resting(network):
                logits = network(rows, torch.zeros(len(rows), dtype=clock_dtype(network), device=rows.device))
            yield logits.to(torch.promote_types(logits.dtype, torch.float32))


def _compared(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], tokens: int) -> Float[Tensor, "m n"]:
    """How many positions differ. numpy compares short integers with the whole width of a core, torch one by one."""
    short = np.min_scalar_type(tokens)
    ours, theirs = (x.T.numpy().astype(short, order="C") for x in (x0, x1))  # a position's tokens side by side
    found = np.empty((len(x1), len(x0)), np.float32)
    for start in range(0, len(x1), COMPARED):
        part = found[start : start + COMPARED]
        differs = np.empty(part.shape, np.bool_)
        part[:] = 0
        for first in range(0, len(ours), 255):  # what a byte can count
            count = np.zeros(part.shape, np.uint8)
            for at in range(first, min(first + 255, len(ours))):
                np.not_equal(theirs[at, start : start + COMPARED, None], ours[at], out=differs)
                np.add(count, differs.view(np.uint8), out=count)
            part += count
    return torch.from_numpy(found)


def _sum_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64  # mps has no float64


def _some_positions(x: Int[Tensor, "n L"]) -> None:
    if x.shape[1] == 0:
        raise ValueError("sequences of length 0 have no transport cost")


def _table(embedding: Float[Tensor, "V D"] | None) -> Float[Tensor, "V D"]:
    if embedding is None:
        raise ValueError(
            "a cost in embedding space needs the embedding table: pair(x0, x1, generator, embedding=model.table)"
        )
    return embedding.detach()


EXAMPLES: tuple[SequenceCost, ...] = (
    Hamming(),
    SquaredEmbedding(),
    Embedding(),
    TokenMatrix(tuple(tuple(float(abs(a - b)) for b in range(8)) for a in range(8))),
    OneStepLikelihood(),
)
