import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from cases import Allocations, name
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import generator

from hopflow import costs
from hopflow.costs import EXAMPLES, Cost, Embedding, Hamming, OneStepLikelihood, SquaredEmbedding, TokenMatrix
from hopflow.transport import cost_matrix
from hopflow.transport.assignment import assignment


@dataclass(frozen=True)
class Climb(Cost):
    """A newcomer's cost that knows the order from, to: it costs to rise."""

    def dissimilarity(self, a, b, embedding=None):
        return (b - a).clamp(min=0).float()


def rows(n: int, length: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randint(vocab, (n, length), generator=generator(seed))


def table(vocab: int, width: int = 3) -> torch.Tensor:
    return torch.randn(vocab, width, generator=generator(9))


BY_TOKEN = [*(cost for cost in EXAMPLES if isinstance(cost, Cost)), Climb()]


def network(xt, t):
    """Logits over 7 data tokens that depend on the whole of xt."""
    assert (t == 0).all()
    shift = xt.float().mean(1)[:, None, None]
    return torch.sin(3 * xt[..., None] + shift + torch.arange(7.0))


@pytest.mark.parametrize("cost", BY_TOKEN, ids=name)
@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 8), st.integers(0, 1000))
def test_the_matrix_holds_the_sum_over_positions_from_x0_to_x1_a_row_per_data_sequence(cost, n, m, length, vocab, seed):
    x0, x1, e = rows(n, length, vocab, seed), rows(m, length, vocab, seed + 1), table(vocab)
    found = cost.matrix(x0, x1, e)
    by_hand = [[sum(float(cost.dissimilarity(a, b, e)) for a, b in zip(r0, r1, strict=True)) for r0 in x0] for r1 in x1]
    torch.testing.assert_close(found, torch.tensor(by_hand), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cost", BY_TOKEN, ids=name)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_plain_embedding_distances_of_equal_tokens_are_zero_and_others_right_far_from_the_origin(dtype):
    e = (30 + table(60, 40)).to(dtype)
    x0, x1 = rows(40, 5, 60, 0), rows(50, 5, 60, 1)
    x1[0] = x0[3]
    found = Embedding().matrix(x0, x1, e).double()
    expected = (e[x1].double()[:, None] - e[x0].double()[None]).norm(dim=3).sum(2)
    assert found[0, 3] == 0
    torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-4)


def test_plain_embedding_distances_need_no_embeddings_of_all_pairs():
    x0, x1, e = rows(50, 4, 300, 0), rows(60, 4, 300, 1), table(300, 64)
    with Allocations(x0, x1, e) as made:
        Embedding().cost_matrix(x0, x1, e)
    assert made.largest <= 300 * 64


def test_a_large_vocabulary_and_batch_need_no_tensor_per_position():
    n, length, vocab = 64, 128, 100_514
    x0, x1 = rows(n, length, vocab, 0), rows(n, length, vocab, 1)
    x1[:, 5] = x0[0, 5]
    with Allocations(x0, x1) as made:
        found = Hamming().matrix(x0, x1)
    assert made.largest <= n * length
    assert torch.equal(found, (x0[None] != x1[:, None]).sum(-1).float())


def test_the_embedding_cost_asks_for_its_table():
    with pytest.raises(ValueError, match=r"needs the embedding table: pass embedding="):
        SquaredEmbedding().matrix(rows(2, 3, 4, 0), rows(2, 3, 4, 1))


def test_sequences_without_positions_are_refused():
    empty = torch.empty(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match="length 0"):
        Hamming().matrix(empty, empty)


@pytest.mark.parametrize("vocab", [3, costs.FEW_TOKENS, costs.FEW_TOKENS + 1, 2**16, 2**16 + 3, 2**24 + 3])
def test_hamming_counts_alike_for_few_tokens_many_and_very_many(vocab, monkeypatch):
    monkeypatch.setattr(cost_matrix, "CPU_CHUNK", 1000)  # several chunks
    monkeypatch.setattr(costs, "COMPARED_ROWS", 8)
    x0, x1 = rows(20, 33, vocab, 0), rows(17, 33, vocab, 1)
    x0[:, ::2] = vocab - 2
    x1[:, ::2] = vocab - rows(17, 17, 2, 2) - 2  # 2^24 and 2^24 + 1 are one number in float32
    assert torch.equal(Hamming().matrix(x0, x1), (x0[None] != x1[:, None]).sum(-1).float())


@pytest.mark.parametrize("length", [255, 256, 600])
def test_hamming_counts_more_positions_than_a_byte_does(length):
    x0, x1 = rows(5, length, 1000, 0), rows(4, length, 1000, 1)
    assert torch.equal(Hamming().matrix(x0, x1), (x0[None] != x1[:, None]).sum(-1).float())
    assert Hamming().matrix(x0, x0 + 1000).eq(length).all()


@pytest.mark.parametrize("cost", EXAMPLES, ids=name)
def test_what_is_solved_is_the_cost_up_to_constants_of_rows_and_columns_and_pairs_pay_the_true_cost(cost, monkeypatch):
    monkeypatch.setattr(cost_matrix, "CPU_CHUNK", 100)
    x0, x1, e = rows(20, 5, 7, 0), rows(20, 5, 7, 1), table(7)
    full, split = cost.matrix(x0, x1, e, network), cost.cost_matrix(x0, x1, e, network)
    difference = (full - split.pairwise).double()
    centred = difference - difference.mean(0) - difference.mean(1, keepdim=True) + difference.mean()
    assert float(centred.abs().max()) < 1e-5
    assert split.mean() == pytest.approx(float(full.double().mean()), rel=1e-6)
    assert split.max() == pytest.approx(float(full.max()), rel=1e-6)
    paid = cost.paired(x0, x1, e, network).double()
    torch.testing.assert_close(paid, full.diagonal().double(), rtol=1e-5, atol=1e-5)


def test_the_learned_cost_is_what_the_network_finds_unlikely_from_x0():
    x0, x1 = rows(70, 4, 9, 0), rows(5, 4, 7, 1)
    found = OneStepLikelihood(batch=32).matrix(x0, x1, network=network)
    log_probs = network(x0, torch.zeros(70)).log_softmax(-1)
    by_hand = [[-sum(float(log_probs[j, i, row[i]]) for i in range(4)) for j in range(70)] for row in x1]
    torch.testing.assert_close(found, torch.tensor(by_hand), rtol=1e-4, atol=1e-4)


def test_the_learned_cost_leaves_the_network_as_it_was_and_takes_no_gradient():
    net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Embedding(7, 7))
    cost = OneStepLikelihood().matrix(rows(3, 4, 7, 0), rows(3, 4, 7, 1), network=lambda x, t: net[1](x))
    model = Model(net)
    assert not OneStepLikelihood().matrix(rows(3, 4, 7, 0), rows(3, 4, 7, 1), network=model).requires_grad
    assert torch.equal(cost, OneStepLikelihood().matrix(rows(3, 4, 7, 0), rows(3, 4, 7, 1), network=model))
    assert model.training


class Model(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, xt, t):
        return self.net[0](self.net[1](xt))


def test_the_learned_cost_asks_for_its_network():
    with pytest.raises(ValueError, match=r"needs the network: pass network="):
        OneStepLikelihood().matrix(rows(2, 3, 4, 0), rows(2, 3, 4, 1))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (((0.0, 1.0),), "a square table, got 1 rows, one of them with 2 numbers"),
        (((0.0, 1.0), (1.0, 2.0)), r"rows\[1\]\[1\] must be 0, because s\(a, a\) = 0, got 2.0"),
    ],
)
def test_a_table_of_dissimilarities_is_square_with_zeros_on_its_diagonal(bad, message):
    with pytest.raises(ValueError, match=message):
        TokenMatrix(bad)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_the_error_of_a_rounded_table_is_that_of_its_rounding(dtype, bound):
    """Against float64, relative to the largest entry; half precision does not overflow, though the costs exceed it."""
    e = 30 * torch.randn(1000, 64, generator=generator(0), dtype=torch.float64)
    x0, x1 = rows(40, 32, 1000, 1), rows(40, 32, 1000, 2)
    exact = SquaredEmbedding().matrix(x0, x1, e)
    assert exact.max() > 65504
    found = SquaredEmbedding().matrix(x0, x1, e.to(dtype))
    assert found.dtype == torch.float32
    assert float((found.double() - exact).abs().max() / exact.max()) < bound
    paid = SquaredEmbedding().paired(x0, x1, e.to(dtype)).double()
    assert float((paid - exact.diagonal()).abs().max() / exact.max()) < bound


@pytest.mark.parametrize("vocab", [3, 10, 32, 33, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_far_from_the_origin_distances_are_as_right_as_near_it_whether_tokens_are_few_or_many(vocab, dtype):
    x0, x1, e = rows(12, 30, vocab, 0), rows(9, 30, vocab, 1), (100 + table(vocab, 64).double()).to(dtype)
    near = e.double() - 100
    by_hand = (near[x1].flatten(1)[:, None] - near[x0].flatten(1)[None]).square().sum(-1)
    split = SquaredEmbedding().cost_matrix(x0, x1, e)
    assert split.pairwise.dtype == dtype
    assert float((split.full() - by_hand).abs().max() / by_hand.max()) < 10 * torch.finfo(dtype).eps


def test_what_pairs_pay_by_the_entries_of_the_matrix_is_what_they_pay_one_by_one():
    """To float32's rounding; were the table not moved to its middle, to 2e-4 only."""
    x0, x1, e = rows(64, 30, 90, 0), rows(64, 30, 90, 1), 100 + table(90, 64)
    order = torch.randperm(64, generator=generator(2))
    split = SquaredEmbedding().cost_matrix(x0, x1, e)
    one_by_one = float(SquaredEmbedding().paired(x0[order], x1, e.double()).mean())
    assert split.paid(order) == pytest.approx(one_by_one, rel=1e-6)
    far = cost_matrix.squared_distances(x0, x1, e)
    assert far.paid(order) != pytest.approx(one_by_one, rel=1e-6)


def test_part_of_a_split_is_the_split_of_its_rows():
    x0, x1, e = rows(20, 5, 7, 0), rows(20, 5, 7, 1), table(7)
    some = torch.tensor([3, 4, 11, 17])
    part, whole = SquaredEmbedding().cost_matrix(x0, x1, e).of(some), SquaredEmbedding().matrix(x0, x1, e)
    torch.testing.assert_close(part.full(), whole[some][:, some])
    assert Hamming().cost_matrix(x0, x1).of(some).columns is None


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_rounded_to_bfloat16_as_on_a_gpu_the_best_pairs_are_as_good_and_cost_what_they_did(offset, monkeypatch):
    """Words as frequent as 1/rank; the true cost of what is chosen is above the optimum by less than 1e-5 of it."""
    gen, n, vocab, width = generator(4), 128, 2000, 96
    e = torch.randn(vocab, width, generator=gen) * torch.rand(width, generator=gen)
    e += offset * torch.randn(width, generator=gen)
    law = 1 / torch.arange(1.0, vocab + 1)
    x0, x1 = torch.multinomial(law, 2 * n * 32, True, generator=gen).view(2, n, 32)
    exact = SquaredEmbedding().cost_matrix(x0, x1, e.double())
    best = exact.paid(assignment(exact.pairwise))
    monkeypatch.setattr(cost_matrix, "rounds", lambda e: e.dtype == torch.float32)
    rounded = SquaredEmbedding().cost_matrix(x0, x1, e)
    assert rounded.pairwise.dtype == torch.float32
    apart = (rounded.full().double() - exact.full()).abs().max() / exact.max()
    assert 1e-6 < float(apart) < 1e-3
    order = assignment(rounded.pairwise)
    assert exact.paid(order) == pytest.approx(best, rel=1e-5)
    assert rounded.paid(order) == pytest.approx(best, rel=5e-4)


def test_a_table_that_holds_nan_stays_a_nan_cost_when_it_is_narrowed():
    e = table(3, 16)
    e[1, 2] = torch.nan
    assert SquaredEmbedding().matrix(rows(5, 4, 3, 0), rows(5, 4, 3, 1), e).isnan().any()


def test_the_embedding_cost_needs_no_tensor_of_all_positions(monkeypatch):
    monkeypatch.setattr(cost_matrix, "CPU_CHUNK", 5000)
    n, length, width = 32, 64, 16
    x0, x1, e = rows(n, length, 50, 0), rows(n, length, 50, 1), table(50, width)
    with Allocations(x0, x1, e) as made:
        SquaredEmbedding().cost_matrix(x0, x1, e)
        SquaredEmbedding().paired(x0, x1, e)
    assert made.largest <= 5000 < n * length * width


PEAK = """
import resource, torch
from hopflow import ExactOT, SquaredEmbedding
generator = torch.Generator().manual_seed(0)
x0, x1 = torch.randint(50257, (2, 4096, 1024), generator=generator)
table = torch.randn(50257, 768, generator=generator)
pairs = ExactOT(SquaredEmbedding()).pair(x0, x1, embedding=table)
assert pairs.cost < pairs.independent_cost
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ru_maxrss has another unit")
def test_4096_sequences_of_1024_tokens_and_width_768_pair_within_8_gib():
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 8


@pytest.mark.parametrize("method", ["cost_matrix", "matrix", "paired"])
@pytest.mark.parametrize("cost", EXAMPLES, ids=name)
def test_sequences_without_tokens_have_no_cost(cost, method):
    empty = torch.empty(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match="at least one token, got length 0"):
        getattr(cost, method)(empty, empty, table(7), network)
