"""Triton kernels match torch's operations in float64, run by Triton's interpreter, which needs no GPU.

test_fast_paths.py tests the compiled kernels on a GPU: in bf16, and with gradients through complete networks.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from cases import Ramp
from interpreted_kernels import (
    close,
    divergence_triton,
    embedding_triton,
    fused_head_triton,
    gelu_mlp_triton,
    interpreted,  # noqa: F401
    residual_norm_triton,
    short_attention_triton,
)
from torch import nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from hopflow import divergences, kernels
from hopflow.kernels import gelu_mlp
from hopflow.models.attention import rotated
from hopflow.predictions import Evidence
from hopflow.sampling.random_draws import categorical
from hopflow.scores import _terms
from hopflow.sources import BagOfWords, Uniform
from hopflow.vocab import Vocab


@pytest.mark.parametrize(("n", "v"), [(5, 17), (3, 2_100), (70, 40), (2, 4_500)])
def test_score_terms_of_logits_and_the_gradient_that_overwrites_them(n, v):
    torch.manual_seed(0)
    width = -(-v // 64) * 64
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    xt, x1 = torch.randint(0, v, (n,)), torch.randint(0, v, (n,))
    xt[0], x1[1] = 1 << 30, xt[1]  # a mask, and a token that stays
    wide, wide_bias = (x.double().requires_grad_() for x in (logits, bias[:v]))
    exact = _terms(wide[:, :v] + wide_bias, xt, x1)
    found = fused_head_triton.forward(logits, bias, xt.int(), x1.int())
    there = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(found), there)
    close(found[there], exact[there])
    grad = torch.randn(n, 3) * there
    (torch.where(there, exact, 0.0) * grad).sum().backward()
    grad_bias = fused_head_triton.backward_(logits, bias, xt.int(), x1.int(), found, grad)
    close(logits, wide.grad)
    close(grad_bias[:v], wide_bias.grad)


def test_with_a_vocabulary_of_one_token_only_its_logit_has_a_gradient():
    logits, bias = torch.randn(3, 64), torch.full((64,), -torch.inf)
    bias[0] = 0.5
    token, grad = torch.zeros(3, dtype=torch.int32), torch.randn(3, 3)
    three = fused_head_triton.forward(logits, bias, token, token)
    assert torch.equal(three[:, 0], torch.full((3,), -torch.inf))
    fused_head_triton.backward_(logits, bias, token, token, three, grad)
    close(logits[:, 0], (grad[:, 1] + grad[:, 2]).double())
    assert not logits[:, 1:].any()


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("refresh", [0.0, 0.3])
@pytest.mark.parametrize(
    ("rows", "source"),
    [
        (divergences._leaving_rows, Uniform(Vocab(1_100))),
        (divergences._leaving_rows, BagOfWords(Vocab(3), (0.7, 0.0, 0.3))),
        (divergences._leaving_rows, Ramp(Vocab(40, 3))),
        (divergences._proposal_rows, Uniform(Vocab(1_100))),
    ],
    ids=["corrector", "corrector, with a zero", "corrector, with masks", "proposal"],
)
def test_the_divergence_of_a_row_of_logits(source, size, rows, refresh, monkeypatch):
    torch.manual_seed(0)
    n, v = 40, source.vocab.data
    rest = torch.rand(n, dtype=torch.float64) ** 3
    renoise = refresh * torch.rand(n, dtype=torch.float64)
    x1, x0 = torch.randint(v, (n,)), source.sample(n, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    xt = torch.where(torch.rand(n) < 0.5, x0, x1)
    wide = size * torch.randn(n, 64 * (v // 64 + 1), dtype=torch.float64)
    wide[0, v // 2] = -torch.inf  # some token is impossible
    wide = wide.float().double()[:, :v]  # rows that are not dense
    columns = [rest] if rows is divergences._proposal_rows else [rest, 1 / rest, 1 / (1 - rest), renoise]
    how = {"source": source, "prediction": Evidence()}
    exact = rows(wide, xt, x1, *columns, **how)
    monkeypatch.setattr(divergences, "_kernel", lambda logits, source: divergence_triton.row_divergence)
    found = rows(wide.float(), xt, x1, *(column.float() for column in columns), **how)
    there = torch.isfinite(exact)
    assert there.any()
    assert torch.equal(torch.isfinite(found), there)
    torch.testing.assert_close(found[there].double(), exact[there], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("n", "v"), [(4, 300), (3, 1_500)])
def test_sums_of_probabilities_over_blocks_of_tokens(n, v):
    torch.manual_seed(0)
    width = -(-v // 64) * 64
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    xt, shift = torch.randint(0, v, (n,)), torch.rand(n)
    top, sums = fused_head_triton.block_sums(logits, bias, xt.int(), shift)
    exact = logits.double() + bias
    exact[torch.arange(n), xt] += shift
    close(top, exact.amax(1))
    chances = torch.nn.functional.pad(
        (exact - exact.amax(1, keepdim=True)).exp(), (0, -width % fused_head_triton.SUM_BLOCK)
    )
    close(sums, chances.unflatten(1, (-1, fused_head_triton.SUM_BLOCK)).sum(2))


@pytest.mark.parametrize("v", [40, 300, 1_500])
def test_a_token_is_drawn_where_the_cumulative_sum_passes_u(v):
    torch.manual_seed(0)
    width, n = -(-v // 64) * 64, 60
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    bias[: v // 3] = bias[-v // 4 :] = -torch.inf  # complete blocks of impossible tokens come first and last
    xt, shift, u = torch.randint(0, v, (n,)), torch.rand(n), torch.rand(n, dtype=torch.float64)
    xt[0], u[1], u[2] = 1 << 30, 0.0, 1.0  # u may be rounded to these
    found, _ = fused_head_triton.draw(logits, bias, xt.int(), shift, u)
    exact = logits.double() + bias
    exact[torch.arange(1, n), xt[1:]] += shift[1:]
    p = exact.softmax(1)
    own, above = (x.gather(1, found[:, None])[:, 0] for x in (p, p.cumsum(1)))
    assert bool((own > 0).all())
    assert bool(((u > above - own - 1e-6) & (u < above + 1e-6)).all())
    assert float((found == categorical(exact, u)).double().mean()) > 0.98
    logits[4] = torch.nan
    assert torch.isnan(fused_head_triton.draw(logits, bias, xt.int(), shift, u)[1][4]).any()


@pytest.mark.parametrize("shape", [(2, 13, 3, 32), (1, 20, 1, 64), (1, 128, 2, 64), (1, 70, 7, 32)], ids=str)
def test_attention_with_rotated_queries_and_keys(shape, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_block_optin=1 << 20)
    )
    b, length, heads, width = shape
    torch.manual_seed(0)
    qkv, grad = torch.randn(b, length, 3, heads, width), torch.randn(b, length, heads * width)
    angle = torch.randn(length, width // 2)
    rotary = angle.cos(), angle.sin()
    wide = qkv.double().requires_grad_()
    both, values = wide.split([2, 1], 2)
    q, k = rotated(both, tuple(x.double() for x in rotary)).permute(2, 0, 3, 1, 4)
    exact = scaled_dot_product_attention(q, k, values[:, :, 0].transpose(1, 2)).transpose(1, 2).flatten(2)
    exact.backward(grad.double())
    close(short_attention_triton.forward(qkv, *rotary), exact)
    row, position = torch.randint(0, b, (9,)), torch.randint(0, length, (9,))
    single = short_attention_triton.forward_at(
        qkv[row, position, 0], qkv[:, :, 1:].contiguous(), row, position, *rotary
    )
    close(single, exact[row, position])
    close(short_attention_triton.backward(grad, qkv, *rotary), wide.grad)


@pytest.mark.parametrize("shape", [(2, 33, 20), (3, 70, 16), (1, 1, 48)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_residual_sum_and_norm_with_gradients(shape, shared, dropout):
    torch.manual_seed(0)
    x, given, grad, grad_seen = torch.randn(4, *shape)
    parts = torch.randn(1 if shared else shape[0], 1, 3 * shape[2]).chunk(3, -1)
    lift, seed, rest = 0.5, torch.tensor(1 << 61 | 12345) if dropout else None, (dropout, 1e-5, torch.float32)
    one = torch.ones(1, 1, shape[2])
    kept, _, _ = residual_norm_triton.forward(torch.zeros(shape), torch.ones(shape), one, one, one, lift, seed, *rest)
    assert set(kept.unique().tolist()) <= {0.0, torch.tensor(1 / (1 - dropout)).item()}
    wide = [part.double().requires_grad_() for part in (x, given, *parts)]
    exact = wide[0] + wide[2] * wide[1] * kept
    exact_seen = layer_norm(exact, shape[-1:]) * (lift + wide[3]) + wide[4]
    torch.autograd.backward([exact, exact_seen], [grad.double(), grad_seen.double()])
    out, seen, stats = residual_norm_triton.forward(x, given, *parts, lift, seed, *rest)
    close(out, exact)
    close(seen, exact_seen)
    back = residual_norm_triton.backward(grad, grad_seen, out, given, *parts[:2], stats, lift, seed, dropout)
    for found, exactly in zip(back[:2], wide[:2], strict=True):
        close(found, exactly.grad)
    for found, exactly in zip(back[2].unsqueeze(2), wide[2:], strict=True):
        close(found.sum_to_size(exactly.shape), exactly.grad)


def test_dropout_is_random_in_every_dimension():
    shape, one = (2, 256, 128), torch.ones(1, 1, 128)

    def kept(seed: int) -> torch.Tensor:
        rest = (1.0, torch.tensor(seed), 0.25, 1e-5, torch.float32)
        return (
            residual_norm_triton.forward(torch.zeros(shape), torch.ones(shape), one, one, one, *rest)[0] > 0
        ).double()

    first, again, other = (kept(seed) - 0.75 for seed in (5, 5, 6))
    assert torch.equal(first, again)
    variance, n = 0.25 * 0.75, first.numel()
    assert abs(float(first.mean())) < 4 * (variance / n) ** 0.5
    for lagged in (other, *(first.roll(1, dim) for dim in range(3)), first.roll(64, 2)):
        assert abs(float((first * lagged).mean())) < 4 * variance / n**0.5


@pytest.mark.parametrize(("n", "width"), [(5, 16), (40, 70), (33, 1_030)])
def test_gelu_with_a_bias_and_its_gradient(n, width):
    torch.manual_seed(0)
    x, bias, grad = 3 * torch.randn(n, width), torch.randn(width), torch.randn(n, width)
    wide, wide_bias = x.double().requires_grad_(), bias.double().requires_grad_()
    exact = gelu(wide + wide_bias, approximate="tanh")
    exact.backward(grad.double())
    close(gelu_mlp_triton.forward(x, bias), exact)
    again, to_bias = gelu_mlp_triton.backward_(grad, x, bias)
    close(again, exact)
    close(grad, wide.grad)
    close(to_bias, wide_bias.grad)


def test_gelu_mlp_stores_one_hidden_tensor_for_its_gradients(monkeypatch):
    monkeypatch.setattr(kernels, "gelu_mlp_triton", gelu_mlp_triton, raising=False)
    torch.manual_seed(0)
    layers, x = nn.ModuleList([nn.Linear(12, 50), nn.Linear(50, 7)]), torch.randn(3, 5, 12, requires_grad=True)
    first, second = exact_layers = copy.deepcopy(layers).double()
    wide, grad = x.detach().double().requires_grad_(), torch.randn(3, 5, 7)
    exact = second(gelu(first(wide), approximate="tanh"))
    exact.backward(grad.double())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        found = gelu_mlp.gelu_mlp(x, *layers)
    found.backward(grad)
    close(found, exact)
    close(x.grad, wide.grad)
    for mine, theirs in zip(layers.parameters(), exact_layers.parameters(), strict=True):
        close(mine.grad, theirs.grad)
    assert sum(saved.numel() == 3 * 5 * 50 for saved in kept) == 1


@pytest.mark.parametrize("shape", [(7, 20), (130, 33), (3, 5_000)], ids=str)
def test_lookup_of_centred_embeddings_and_their_squared_norms(shape):
    torch.manual_seed(0)
    table, middle = torch.randn(shape), torch.randn(shape[1])
    tokens = torch.randint(0, shape[0], (5, 8))[:, 1:4]
    exact = (table - middle)[tokens].flatten(1)
    found, squares = embedding_triton.lookup(table, tokens, middle, torch.float32)
    assert torch.equal(found, exact)
    close(squares, exact.double().square().sum(1))
    found, squares = embedding_triton.lookup(table, tokens, middle, torch.bfloat16)
    torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=0)  # the interpreter truncates
    close(squares, found.double().square().sum(1))


@pytest.mark.parametrize("stray", [-1, 7])
def test_a_token_outside_the_table_becomes_nan(stray):
    tokens = torch.tensor([[0, 1], [2, stray], [3, 4]])
    found, squares = embedding_triton.lookup(torch.randn(7, 20), tokens, torch.zeros(20), torch.bfloat16)
    for numbers in (squares, found[:, 20]):
        assert torch.isnan(numbers).tolist() == [False, True, False]
    assert not torch.isnan(found[:, :20]).any()


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.7, 1.0])
def test_lerp_of_an_average_towards_a_table(weight):
    torch.manual_seed(0)
    average, table = torch.randn(2, 70, 99)
    exact = average.double().lerp(table.double(), torch.tensor(weight).double())
    moved = torch.empty_like(average)
    embedding_triton.lerp(average, table, torch.tensor(weight), out=moved)
    close(moved, exact)
    assert weight < 1 or torch.equal(moved, table)
    assert weight > 0 or torch.equal(moved, average)
    embedding_triton.lerp(average, table, torch.tensor(weight), out=average)
    assert torch.equal(average, moved)
