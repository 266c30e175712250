"""All sequences over a small vocabulary, distributions of pairs, and networks given as tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..network.network import Network, NetworkCaller
from ..vocab import Vocab

MAX_STATES = 200_000


@dataclass(frozen=True)
class Space:
    """All sequences of `length` tokens in lexicographic order: the states of a flow."""

    vocab: Vocab
    length: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be an integer ≥ 1, got {self.length}.")
        if self.vocab.size**self.length > MAX_STATES:
            raise ValueError(
                f"{self.vocab.size}^{self.length} states are too many to enumerate (at most {MAX_STATES:,}). "
                f"Use a smaller vocabulary or length, or estimate with nll_bound."
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.vocab.size,) * self.length

    @property
    def data_shape(self) -> tuple[int, ...]:
        return (self.vocab.data,) * self.length

    @cached_property
    def states(self) -> Int[Tensor, "S L"]:
        return _all(self.shape)

    @cached_property
    def data(self) -> Int[Tensor, "D L"]:
        """The states that contain data tokens only."""
        return _all(self.data_shape)

    def ids(self, x: Int[Tensor, "*rows L"]) -> Int[Tensor, "*rows"]:
        """The index of each sequence among the states."""
        powers = self.vocab.size ** torch.arange(self.length - 1, -1, -1)
        return (x * powers).sum(-1)

    @cached_property
    def neighbours(self) -> Int[Tensor, "S L V"]:
        """The index of each state with one position set to each token."""
        powers = self.vocab.size ** torch.arange(self.length - 1, -1, -1)
        step = (torch.arange(self.vocab.size) - self.states[..., None]) * powers[:, None]
        return torch.arange(len(self.states))[:, None, None] + step

    def law(self, token_probs: Float[Tensor, "*#L V"]) -> Float[Tensor, " S"]:
        """The distribution of sequences with independent positions, whose token probabilities may differ."""
        return token_probs.expand(self.length, -1)[torch.arange(self.length), self.states].prod(1)


def _all(shape: tuple[int, ...]) -> Int[Tensor, "N L"]:
    return torch.cartesian_prod(*(torch.arange(n) for n in shape)).view(-1, len(shape))


@dataclass(frozen=True, eq=False)
class Joint:
    """A distribution π of pairs (x0, x1), as a list of pairs with their probabilities."""

    x0: Int[Tensor, "P L"]
    x1: Int[Tensor, "P L"]
    weight: Float[Tensor, " P"]

    def __post_init__(self) -> None:
        if not bool((self.weight >= 0).all()) or abs(float(self.weight.sum()) - 1) > 1e-9:
            raise ValueError(f"weight must be ≥ 0 and sum to 1; its sum is {float(self.weight.sum()):.9g}.")

    def check(self, space: Space) -> None:
        """Raise ValueError unless the pairs are states and data sequences of this space."""
        for name, tokens, size in (("x0", self.x0, space.vocab.size), ("x1", self.x1, space.vocab.data)):
            if tokens.shape != (len(self.weight), space.length):
                raise ValueError(
                    f"{name} of the joint must contain a sequence of {space.length} tokens for each of "
                    f"{len(self.weight)} weights, got shape {tuple(tokens.shape)}."
                )
            if bool((tokens < 0).any() | (tokens >= size).any()):
                raise ValueError(f"{name} of the joint must contain tokens from 0 to {size - 1} of {space.vocab}.")

    @classmethod
    def of(cls, space: Space, matrix: Float[Tensor, "S D"]) -> "Joint":
        """From π(x0, x1) as a matrix over all states and all data states."""
        i, j = matrix.nonzero(as_tuple=True)
        return cls(space.states[i], space.data[j], matrix[i, j])

    def matrix(self, space: Space) -> Float[Tensor, "S D"]:
        """π(x0, x1) as a matrix over all states and all data sequences."""
        data = Space(Vocab(space.vocab.data), space.length)
        out = torch.zeros(len(space.states), len(space.data), dtype=torch.float64)
        return out.index_put((space.ids(self.x0), data.ids(self.x1)), self.weight, accumulate=True)


class Table:
    """A network given as a table of P(x1^i | xt) for every state, position and data token; independent of t."""

    time = False
    """The network does not depend on t."""

    def __init__(self, space: Space, probs: Float[Tensor, "S L Vd"]) -> None:
        sums = probs.sum(-1)
        if not bool((probs >= 0).all()) or not torch.allclose(sums, torch.ones_like(sums), atol=1e-6):
            raise ValueError(
                f"probs must be ≥ 0 and sum to 1 over tokens; the sums lie in {sums.min():g} … {sums.max():g}."
            )
        self.space, self.logits = space, probs.double().log()

    @classmethod
    def of(cls, space: Space, rows: Sequence[tuple[Sequence[int], int, Sequence[float]]]) -> "Table":
        """From a list of (state, position, probabilities); other entries are uniform."""
        probs = torch.full(
            (len(space.states), space.length, space.vocab.data), 1 / space.vocab.data, dtype=torch.float64
        )
        for state, position, law in rows:
            probs[space.ids(torch.tensor(state)), position] = torch.tensor(law, dtype=torch.float64)
        return cls(space, probs)

    @classmethod
    def tabulate(cls, space: Space, network: Network) -> "Table":
        """The table of a network that does not depend on t, evaluated once on every state."""
        logits = NetworkCaller(network).logits(space.states, torch.zeros(len(space.states)))
        return cls(space, logits.double().softmax(-1))

    def __call__(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        return self.logits.to(xt.device)[self.space.ids(xt.cpu()).to(xt.device)]
