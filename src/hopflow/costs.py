"""Costs: the transport cost c(x0, x1) between a source sequence and a data sequence.

A `Cost` is a dissimilarity of two tokens, summed over positions (Theorem 3.1 [theorem1]). A `SequenceCost` is any
function of two sequences. The parts of a network that change during training are arguments: `embedding`, the table of
token embeddings, and `network` itself. `reads` lists which of the two a cost needs.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .network.network import Network, NetworkCaller
from .network.precision import widest_float
from .transport.cost_matrix import CostMatrix, centred_distances, narrowed, position_chunks, squared_distances

FEW_TOKENS = 16
"""Vocabulary size up to which products of one-hot rows are faster than comparisons (7 times at V = 3, n = 2048)."""
COMPARED_ROWS = 64
"""Data rows that are compared at once, so that one byte per pair with 4,096 source rows fits into a cache."""


class SequenceCost(ABC):
    """The cost of transporting a source sequence to a data sequence; defined by `cost_matrix` and `paired`."""

    reads: ClassVar[tuple[str, ...]] = ()
    """Which of "embedding" and "network" it needs."""

    @abstractmethod
    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        """c(x0_j, x1_i) of all pairs, one row per data sequence, without a tensor of shape (m, n, L)."""

    def split(self, *rows: Any, **parts: Any) -> CostMatrix:
        """Deprecated name of `cost_matrix`."""
        warnings.warn("SequenceCost.split is now cost_matrix", DeprecationWarning, stacklevel=2)
        return self.cost_matrix(*rows, **parts)

    @abstractmethod
    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        """c(x0_i, x1_i), the costs of the pairs."""

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, "m n"]:
        """c(x0_j, x1_i) of all pairs as one tensor."""
        return self.cost_matrix(x0, x1, embedding, network).full()


class Cost(SequenceCost):
    """A token dissimilarity s(a, b) ≥ 0 from a to b with s(a, a) = 0; it need not be symmetric.

    A new cost implements `dissimilarity`.
    """

    @abstractmethod
    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        """s(a, b) for all elements; `embedding` is for costs in the embedding space of the network."""

    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        _some_positions(x0)
        total = None
        for a, b in zip(x0.T, x1.T, strict=True):
            grid_b, grid_a = b[:, None].expand(len(b), len(a)), a[None, :].expand(len(b), len(a))
            part = self.dissimilarity(grid_a, grid_b, embedding)
            # a sum over many positions may exceed 65504, the largest float16 number
            total = part.to(torch.promote_types(part.dtype, torch.float32)) if total is None else total.add_(part)
        assert total is not None
        return CostMatrix(total)

    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        _some_positions(x0)
        return self.dissimilarity(x0, x1, embedding).sum(1, dtype=widest_float(x0.device))


@dataclass(frozen=True)
class Hamming(Cost):
    """s(a, b) = 1 if the tokens differ; the sequence cost is the Hamming distance. Cor. 3.2 [coro1]

    >>> Hamming().matrix(torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 1], [1, 1]]))
    tensor([[1., 1.],
            [2., 0.]])
    """

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return (a != b).float()

    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        _some_positions(x0)
        tokens = int(torch.maximum(x0.max(), x1.max())) + 1
        if tokens <= FEW_TOKENS:
            matches = x0.new_zeros(len(x1), len(x0), dtype=torch.float32)
            for at in position_chunks(x0, tokens):
                hot0, hot1 = (torch.nn.functional.one_hot(x[:, at], tokens).flatten(1).float() for x in (x0, x1))
                matches.addmm_(hot1, hot0.T)
            return CostMatrix(x0.shape[1] - matches)
        if x0.device.type == "cpu":
            return CostMatrix(_compared(x0, x1, tokens))
        # the 0-norm is the number of differences; float32 represents ids up to 2^24 exactly
        dtype = torch.float32 if tokens <= 1 << 24 else torch.float64
        return CostMatrix(torch.cdist(x1.to(dtype), x0.to(dtype), p=0.0).float())


class _InEmbeddingSpace(Cost):
    """Base of costs of token embeddings, which never hold the embeddings of a complete batch."""

    reads: ClassVar[tuple[str, ...]] = ("embedding",)

    def paired(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "n L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, " n"]:
        _some_positions(x0)
        # summed at once: small results between large chunks fragment the heap, up to 12 GiB at n = 4096
        total = torch.zeros(len(x0), dtype=widest_float(x0.device), device=x0.device)
        for at in position_chunks(x0, _table(embedding).shape[1]):
            total += super().paired(x0[:, at], x1[:, at], embedding)
        return total


@dataclass(frozen=True)
class SquaredEmbedding(_InEmbeddingSpace):
    """s(a, b) = ‖e(a) - e(b)‖²; the sequence cost is that of the concatenated embeddings. Cor. 3.3 [coro2]

    OT is solved on the cross term -2⟨e(x0), e(x1)⟩ of embeddings relative to the center of the table, where products
    lose the fewest digits. On a GPU, where float32 products take five times as long, a float32 table is rounded to
    bfloat16; products are summed in float32. The relative error of a coordinate is then at most 2^-9, that of an entry
    of 64 tokens and width 256 about 3e-4; the pairs of 256 rows were the same.
    """

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        e = _table(embedding)
        dtype = torch.promote_types(e.dtype, torch.float32)
        return (e[a].to(dtype) - e[b].to(dtype)).square().sum(-1)

    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        _some_positions(x0)
        return centred_distances(x0, x1, _table(embedding))

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> Float[Tensor, "m n"]:
        return super().matrix(x0, x1, embedding).clamp_(min=0)  # the cost of equal rows may be slightly negative


@dataclass(frozen=True)
class Embedding(_InEmbeddingSpace):
    """s(a, b) = ‖e(a) - e(b)‖, the distance of two token embeddings, not squared.

    Theorem 3.1 [theorem1] holds with the *sum* of the distances over positions as the sequence cost, which is not the
    distance of the concatenated embeddings. Cor. 3.3 [coro2] is about the square, `SquaredEmbedding`, for which the
    two agree.
    """

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return SquaredEmbedding().dissimilarity(a, b, embedding).sqrt()

    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        _some_positions(x0)
        e = _table(embedding)
        e = narrowed(e - e.mean(0))  # centered, because the square root amplifies rounding errors of small distances
        total = None
        for a, b in zip(x0.T[:, :, None], x1.T[:, :, None], strict=True):  # all pairs at one position
            apart = squared_distances(a, b, e).full().clamp_(min=0).sqrt_().masked_fill_(b == a.T, 0.0)
            total = apart if total is None else total.add_(apart)
        assert total is not None
        return CostMatrix(total)


@dataclass(frozen=True)
class TokenMatrix(Cost):
    """s(a, b) = `rows[a][b]`, a custom table; plain numbers, so that it can be stored with the flow."""

    rows: tuple[tuple[float, ...], ...] = field(metadata={"typed": "FILE"})  # cost=token_matrix:FILE

    def __post_init__(self) -> None:
        size = len(self.rows)
        if lengths := {len(row) for row in self.rows} - {size}:
            raise ValueError(f"rows must be a square table, got {size} rows, one of them with {min(lengths)} numbers.")
        for a in range(size):
            if self.rows[a][a] != 0:
                raise ValueError(f"rows[{a}][{a}] must be 0, because s(a, a) = 0, got {self.rows[a][a]}.")

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return torch.tensor(self.rows, device=a.device)[a, b]


@dataclass(frozen=True)
class OneStepLikelihood(SequenceCost):
    """c(x0, x1) = -Σ_i log p_{1|0}^i(x1^i | x0; θ), a learned cost: the NLL of one step of the network. Eq. (179)

    At t = 0 every prediction is the softmax of the logits. It depends on all of x0, so that it is not a token
    dissimilarity, and Theorem 3.1 [theorem1] does not apply.
    """

    reads: ClassVar[tuple[str, ...]] = ("network",)
    batch: int = 64

    def cost_matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
        network: Network | None = None,
    ) -> CostMatrix:
        _some_positions(x0)
        pairwise, columns = [], []
        for logits in self._logits(x0, network):  # (b, L, Vd)
            at = x1.T.expand(len(logits), *x1.T.shape)  # (b, L, m)
            pairwise.append(-torch.stack([row.gather(1, to).sum(0) for row, to in zip(logits, at, strict=True)]))
            columns.append(logits.logsumexp(-1).sum(1))
        return CostMatrix(torch.cat(pairwise).T.contiguous(), None, torch.cat(columns))

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
            raise ValueError("OneStepLikelihood needs the network: pass network=model.")
        caller = NetworkCaller(network)
        for rows in x0.split(self.batch):
            logits = caller.logits(rows, torch.zeros(len(rows), device=rows.device))
            yield logits.to(torch.promote_types(logits.dtype, torch.float32))


def _compared(x0: Int[Tensor, "n L"], x1: Int[Tensor, "m L"], tokens: int) -> Float[Tensor, "m n"]:
    """The number of positions that differ. numpy compares short integers with SIMD instructions, torch does not."""
    short = np.min_scalar_type(tokens)
    ours, theirs = (x.T.numpy().astype(short, order="C") for x in (x0, x1))  # the tokens of a position are contiguous
    found = np.empty((len(x1), len(x0)), np.float32)
    for start in range(0, len(x1), COMPARED_ROWS):
        part = found[start : start + COMPARED_ROWS]
        differs = np.empty(part.shape, np.bool_)
        part[:] = 0
        for first in range(0, len(ours), 255):  # the largest count of a byte
            count = np.zeros(part.shape, np.uint8)
            for at in range(first, min(first + 255, len(ours))):
                np.not_equal(theirs[at, start : start + COMPARED_ROWS, None], ours[at], out=differs)
                np.add(count, differs.view(np.uint8), out=count)
            part += count
    return torch.from_numpy(found)


def _some_positions(x: Int[Tensor, "n L"]) -> None:
    if x.shape[1] == 0:
        raise ValueError("sequences must contain at least one token, got length 0.")


def _table(embedding: Float[Tensor, "V D"] | None) -> Float[Tensor, "V D"]:
    if embedding is None:
        raise ValueError("a cost in embedding space needs the embedding table: pass embedding=model.table.")
    return embedding.detach()


EXAMPLES: tuple[SequenceCost, ...] = (
    Hamming(),
    SquaredEmbedding(),
    Embedding(),
    TokenMatrix(tuple(tuple(float(abs(a - b)) for b in range(8)) for a in range(8))),
    OneStepLikelihood(),
)
