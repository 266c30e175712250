from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import Allocations, name
from hopflow.costs import EXAMPLES, Cost, Hamming, SquaredEmbedding
from toys import generator


@dataclass(frozen=True)
class Climb(Cost):
    """A newcomer's cost that knows the order from, to: it costs to rise."""

    def dissimilarity(self, a, b, embedding=None):
        return (b - a).clamp(min=0).float()


def rows(n: int, length: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randint(vocab, (n, length), generator=generator(seed))


def table(vocab: int, width: int = 3) -> torch.Tensor:
    return torch.randn(vocab, width, generator=generator(9))


@pytest.mark.parametrize("cost", [*EXAMPLES, Climb()], ids=name)
@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 7), st.integers(0, 1000))
def test_the_matrix_holds_the_sum_over_positions_from_x0_to_x1_a_row_per_data_sequence(cost, n, m, length, vocab, seed):
    x0, x1, e = rows(n, length, vocab, seed), rows(m, length, vocab, seed + 1), table(vocab)
    found = cost.matrix(x0, x1, e)
    by_hand = [[sum(float(cost.dissimilarity(a, b, e)) for a, b in zip(r0, r1, strict=True)) for r0 in x0] for r1 in x1]
    torch.testing.assert_close(found, torch.tensor(by_hand), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cost", [*EXAMPLES, Climb()], ids=name)
def test_a_token_is_at_no_distance_from_itself_and_at_none_below_zero(cost):
    a, b = torch.cartesian_prod(torch.arange(6), torch.arange(6)).T
    s = cost.dissimilarity(a, b, table(6))
    assert (s >= 0).all()
    assert (s[a == b] == 0).all()


def test_hamming_counts_the_positions_that_differ():
    x0, x1 = torch.tensor([[0, 1, 2], [2, 2, 2]]), torch.tensor([[0, 1, 1]])
    assert Hamming().matrix(x0, x1).tolist() == [[1.0, 3.0]]


def test_squared_embedding_is_the_distance_of_the_concatenated_embeddings():
    x0, x1, e = rows(4, 5, 7, 0), rows(3, 5, 7, 1), table(7)
    expected = torch.cdist(e[x1].flatten(1).double(), e[x0].flatten(1).double()) ** 2
    torch.testing.assert_close(SquaredEmbedding().matrix(x0, x1, e).double(), expected, rtol=1e-5, atol=1e-5)


def test_equal_rows_are_never_at_a_negative_distance_in_float32():
    e = 100 + table(5)
    x = rows(50, 8, 5, 0)
    assert (SquaredEmbedding().matrix(x, x, e) >= 0).all()


def test_a_large_vocabulary_and_batch_need_no_tensor_per_position():
    n, length, vocab = 64, 128, 100_514
    x0, x1 = rows(n, length, vocab, 0), rows(n, length, vocab, 1)
    x1[:, 5] = x0[0, 5]
    with Allocations(x0, x1) as made:
        found = Hamming().matrix(x0, x1)
    assert made.largest <= n * n
    assert torch.equal(found, (x0[None] != x1[:, None]).sum(-1).float())


def test_the_embedding_cost_asks_for_its_table():
    with pytest.raises(ValueError, match=r"needs the embedding table: pair\(.*embedding="):
        SquaredEmbedding().matrix(rows(2, 3, 4, 0), rows(2, 3, 4, 1))


def test_sequences_without_positions_are_refused():
    empty = torch.empty(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match="length 0"):
        Hamming().matrix(empty, empty)
