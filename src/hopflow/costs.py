"""Costs: how far apart two tokens are; a sequence costs the sum over its positions (Theorem 3.1 [theorem1])."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


class Cost(ABC):
    """A token dissimilarity s(a, b) ≥ 0 with s(a, a) = 0, from a to b; it need not be symmetric."""

    @abstractmethod
    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        """s(a, b); costs that live in the model's embedding space are given its table."""

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
    ) -> Float[Tensor, "m n"]:
        """c(x0_j, x1_i) = Σ_l s(x0_j^l, x1_i^l), a row per data sequence; one position at a time, never (m, n, L)."""
        total = None
        for a, b in zip(x0.T, x1.T, strict=True):
            grid_b, grid_a = b[:, None].expand(len(b), len(a)), a[None, :].expand(len(b), len(a))
            part = self.dissimilarity(grid_a, grid_b, embedding)
            total = part if total is None else total + part
        if total is None:
            raise ValueError("sequences of length 0 have no transport cost")
        return total


@dataclass(frozen=True)
class Hamming(Cost):
    """s(a, b) = 1 where the tokens differ; its sequence cost is the Hamming distance. Cor. 3.2 [coro1]"""

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return (a != b).float()


@dataclass(frozen=True)
class SquaredEmbedding(Cost):
    """s(a, b) = ‖e(a) - e(b)‖²; its sequence cost is that of the concatenated embeddings. Cor. 3.3 [coro2]"""

    def dissimilarity(
        self, a: Int[Tensor, "*shape"], b: Int[Tensor, "*shape"], embedding: Float[Tensor, "V D"] | None = None
    ) -> Float[Tensor, "*shape"]:
        return (_table(embedding)[a] - _table(embedding)[b]).square().sum(-1)

    def matrix(
        self,
        x0: Int[Tensor, "n L"],
        x1: Int[Tensor, "m L"],
        embedding: Float[Tensor, "V D"] | None = None,
    ) -> Float[Tensor, "m n"]:
        e0, e1 = _table(embedding)[x0].flatten(1), _table(embedding)[x1].flatten(1)
        cross = e1 @ e0.T
        return (e1.square().sum(1)[:, None] + e0.square().sum(1)[None, :] - 2 * cross).clamp(min=0)


def _table(embedding: Float[Tensor, "V D"] | None) -> Float[Tensor, "V D"]:
    if embedding is None:
        raise ValueError(
            "SquaredEmbedding needs the embedding table: pair(x0, x1, generator, embedding=model.embedding.weight)"
        )
    return embedding


EXAMPLES: tuple[Cost, ...] = (Hamming(), SquaredEmbedding())
