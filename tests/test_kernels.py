"""Triton kernels are what torch's operations give, in float64: here by Triton's interpreter, which needs no GPU.

What a compiler makes of them, in bf16 and with gradients through whole networks, is for test_fast_paths.py and a GPU.
"""

import copy
import os
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

if torch.cuda.is_available():
    pytest.skip("kernels are tested on the GPU that is here, in test_fast_paths.py", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"  # read where kernels are defined, those of triton itself included
pytest.importorskip("triton", reason="there is no triton to interpret kernels")

import hopflow
from cases import Mixed
from hopflow import divergences, models
from hopflow.categorical import categorical
from hopflow.models import two_layers
from hopflow.models.attention import rotated
from hopflow.predictions import Evidence
from hopflow.scores import _three
from hopflow.sources import BagOfWords, Uniform
from hopflow.vocab import Vocab


def plainly(package: ModuleType, name: str) -> ModuleType:
    """A module without the checks of shapes that the tests put around functions: Triton reads the source of kernels."""
    spec = PathFinder.find_spec(name, package.__path__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


triton_rows, triton_table, triton_divergence = (
    plainly(hopflow, name) for name in ("triton_rows", "triton_table", "triton_divergence")
)
triton_add_norm, triton_attention, triton_gelu = (
    plainly(models, name) for name in ("triton_add_norm", "triton_attention", "triton_gelu")
)
del os.environ["TRITON_INTERPRET"]  # nobody else here shall interpret


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def close(found: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), exact.detach(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("n", "v"), [(5, 17), (3, 2_100), (70, 40), (2, 4_500)])
def test_three_numbers_of_rows_of_logits_and_the_gradient_in_their_place(n, v):
    torch.manual_seed(0)
    width = -(-v // 64) * 64
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    xt, x1 = torch.randint(0, v, (n,)), torch.randint(0, v, (n,))
    xt[0], x1[1] = 1 << 30, xt[1]  # a mask, and a token that stays
    wide, wide_bias = (x.double().requires_grad_() for x in (logits, bias[:v]))
    exact = _three(wide[:, :v] + wide_bias, xt, x1)
    found = triton_rows.forward(logits, bias, xt.int(), x1.int())
    there = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(found), there)
    close(found[there], exact[there])
    grad = torch.randn(n, 3) * there
    (torch.where(there, exact, 0.0) * grad).sum().backward()
    grad_bias = triton_rows.backward_(logits, bias, xt.int(), x1.int(), found, grad)
    close(logits, wide.grad)
    close(grad_bias[:v], wide_bias.grad)


def test_where_there_is_a_single_token_nothing_but_it_has_a_gradient():
    logits, bias = torch.randn(3, 64), torch.full((64,), -torch.inf)
    bias[0] = 0.5
    token, grad = torch.zeros(3, dtype=torch.int32), torch.randn(3, 3)
    three = triton_rows.forward(logits, bias, token, token)
    assert torch.equal(three[:, 0], torch.full((3,), -torch.inf))
    triton_rows.backward_(logits, bias, token, token, three, grad)
    close(logits[:, 0], (grad[:, 1] + grad[:, 2]).double())
    assert not logits[:, 1:].any()


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize(
    ("rows", "source"),
    [
        (divergences._leaving_rows, Uniform(Vocab(1_100))),
        (divergences._leaving_rows, BagOfWords(Vocab(3), (0.7, 0.0, 0.3))),
        (divergences._leaving_rows, Mixed(Vocab(40, 3))),
        (divergences._proposal_rows, Uniform(Vocab(1_100))),
    ],
    ids=["corrector", "corrector, with a zero", "corrector, with masks", "proposal"],
)
def test_a_row_of_logits_is_summed_to_its_divergence(source, size, rows, monkeypatch):
    torch.manual_seed(0)
    n, v = 40, source.vocab.data
    rest = torch.rand(n, dtype=torch.float64) ** 3
    x1, x0 = torch.randint(v, (n,)), source.sample(n, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    xt = torch.where(torch.rand(n) < 0.5, x0, x1)
    wide = size * torch.randn(n, 64 * (v // 64 + 1), dtype=torch.float64)
    wide[0, v // 2] = -torch.inf  # some token is impossible
    wide = wide.float().double()[:, :v]  # rows that are not dense
    columns = [rest] if rows is divergences._proposal_rows else [rest, 1 / rest, 1 / (1 - rest)]
    how = {"source": source, "prediction": Evidence()}
    exact = rows(wide, xt, x1, *columns, **how)
    monkeypatch.setattr(divergences, "_kernel", lambda logits: triton_divergence.row_divergence)
    found = rows(wide.float(), xt, x1, *(column.float() for column in columns), **how)
    there = torch.isfinite(exact)
    assert there.any()
    assert torch.equal(torch.isfinite(found), there)
    torch.testing.assert_close(found[there].double(), exact[there], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("n", "v"), [(4, 300), (3, 1_500)])
def test_sums_of_chances_over_blocks(n, v):
    torch.manual_seed(0)
    width = -(-v // 64) * 64
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    xt, shift = torch.randint(0, v, (n,)), torch.rand(n)
    top, sums = triton_rows.block_sums(logits, bias, xt.int(), shift)
    exact = logits.double() + bias
    exact[torch.arange(n), xt] += shift
    close(top, exact.amax(1))
    chances = torch.nn.functional.pad((exact - exact.amax(1, keepdim=True)).exp(), (0, -width % triton_rows.SUMMED))
    close(sums, chances.unflatten(1, (-1, triton_rows.SUMMED)).sum(2))


@pytest.mark.parametrize("v", [40, 300, 1_500])
def test_a_token_is_drawn_where_the_running_sum_passes_a_number(v):
    torch.manual_seed(0)
    width, n = -(-v // 64) * 64, 60
    logits, bias = 3 * torch.randn(n, width), torch.full((width,), -torch.inf)
    bias[:v] = torch.randn(v)
    bias[: v // 3] = bias[-v // 4 :] = -torch.inf  # impossible ones come first and last, whole blocks of them
    xt, shift, u = torch.randint(0, v, (n,)), torch.rand(n), torch.rand(n, dtype=torch.float64)
    xt[0], u[1], u[2] = 1 << 30, 0.0, 1.0  # which is what a number may be rounded to
    found, _ = triton_rows.draw(logits, bias, xt.int(), shift, u)
    exact = logits.double() + bias
    exact[torch.arange(1, n), xt[1:]] += shift[1:]
    p = exact.softmax(1)
    own, above = (x.gather(1, found[:, None])[:, 0] for x in (p, p.cumsum(1)))
    assert bool((own > 0).all())
    assert bool(((u > above - own - 1e-6) & (u < above + 1e-6)).all())
    assert float((found == categorical(exact, u)).double().mean()) > 0.98
    logits[4] = torch.nan
    assert torch.isnan(triton_rows.draw(logits, bias, xt.int(), shift, u)[1][4]).any()


@pytest.mark.parametrize("shape", [(2, 13, 3, 32), (1, 20, 1, 64), (1, 128, 2, 64), (1, 70, 7, 32)], ids=str)
def test_attention_with_turned_queries_and_keys(shape, monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(shared_memory_per_block_optin=1 << 20)
    )
    b, length, heads, width = shape
    torch.manual_seed(0)
    qkv, grad = torch.randn(b, length, 3, heads, width), torch.randn(b, length, heads * width)
    angle = torch.randn(length, width // 2)
    turn = angle.cos(), angle.sin()
    wide = qkv.double().requires_grad_()
    both, values = wide.split([2, 1], 2)
    q, k = rotated(both, tuple(x.double() for x in turn)).permute(2, 0, 3, 1, 4)
    exact = scaled_dot_product_attention(q, k, values[:, :, 0].transpose(1, 2)).transpose(1, 2).flatten(2)
    exact.backward(grad.double())
    close(triton_attention.forward(qkv, *turn), exact)
    row, position = torch.randint(0, b, (9,)), torch.randint(0, length, (9,))
    single = triton_attention.glance(qkv[row, position, 0], qkv[:, :, 1:].contiguous(), row, position, *turn)
    close(single, exact[row, position])
    close(triton_attention.backward(grad, qkv, *turn), wide.grad)


@pytest.mark.parametrize("shape", [(2, 33, 20), (3, 70, 16), (1, 1, 48)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_what_is_added_and_normed_between_branches(shape, shared, dropped):
    torch.manual_seed(0)
    x, given, grad, grad_seen = torch.randn(4, *shape)
    parts = torch.randn(1 if shared else shape[0], 1, 3 * shape[2]).chunk(3, -1)
    lift, seed, rest = 0.5, torch.tensor(1 << 61 | 12345) if dropped else None, (dropped, 1e-5, torch.float32)
    one = torch.ones(1, 1, shape[2])
    kept, _, _ = triton_add_norm.forward(torch.zeros(shape), torch.ones(shape), one, one, one, lift, seed, *rest)
    assert set(kept.unique().tolist()) <= {0.0, torch.tensor(1 / (1 - dropped)).item()}
    wide = [part.double().requires_grad_() for part in (x, given, *parts)]
    exact = wide[0] + wide[2] * wide[1] * kept
    exact_seen = layer_norm(exact, shape[-1:]) * (lift + wide[3]) + wide[4]
    torch.autograd.backward([exact, exact_seen], [grad.double(), grad_seen.double()])
    out, seen, stats = triton_add_norm.forward(x, given, *parts, lift, seed, *rest)
    close(out, exact)
    close(seen, exact_seen)
    back = triton_add_norm.backward(grad, grad_seen, out, given, *parts[:2], stats, lift, seed, dropped)
    for found, exactly in zip(back[:2], wide[:2], strict=True):
        close(found, exactly.grad)
    for found, exactly in zip(back[2].unsqueeze(2), wide[2:], strict=True):
        close(found.sum_to_size(exactly.shape), exactly.grad)


def test_a_number_is_dropped_by_chance_wherever_it_is():
    shape, one = (2, 256, 128), torch.ones(1, 1, 128)

    def kept(seed: int) -> torch.Tensor:
        rest = (1.0, torch.tensor(seed), 0.25, 1e-5, torch.float32)
        return (triton_add_norm.forward(torch.zeros(shape), torch.ones(shape), one, one, one, *rest)[0] > 0).double()

    first, again, other = (kept(seed) - 0.75 for seed in (5, 5, 6))
    assert torch.equal(first, again)
    variance, n = 0.25 * 0.75, first.numel()
    assert abs(float(first.mean())) < 4 * (variance / n) ** 0.5
    for lagged in (other, *(first.roll(1, dim) for dim in range(3)), first.roll(64, 2)):
        assert abs(float((first * lagged).mean())) < 4 * variance / n**0.5


@pytest.mark.parametrize(("n", "width"), [(5, 16), (40, 70), (33, 1_030)])
def test_gelu_with_a_bias(n, width):
    torch.manual_seed(0)
    x, bias, grad = 3 * torch.randn(n, width), torch.randn(width), torch.randn(n, width)
    wide, wide_bias = x.double().requires_grad_(), bias.double().requires_grad_()
    exact = gelu(wide + wide_bias, approximate="tanh")
    exact.backward(grad.double())
    close(triton_gelu.forward(x, bias), exact)
    again, to_bias = triton_gelu.backward_(grad, x, bias)
    close(again, exact)
    close(grad, wide.grad)
    close(to_bias, wide_bias.grad)


def test_two_layers_and_their_gradients_of_which_one_wide_tensor_is_kept(monkeypatch):
    monkeypatch.setattr(models, "triton_gelu", triton_gelu, raising=False)
    monkeypatch.setattr(two_layers, "fits", lambda *_: True)
    torch.manual_seed(0)
    layers, x = nn.ModuleList([nn.Linear(12, 50), nn.Linear(50, 7)]), torch.randn(3, 5, 12, requires_grad=True)
    first, second = exact_layers = copy.deepcopy(layers).double()
    wide, grad = x.detach().double().requires_grad_(), torch.randn(3, 5, 7)
    exact = second(gelu(first(wide), approximate="tanh"))
    exact.backward(grad.double())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        found = two_layers.two_layers(x, *layers)
    found.backward(grad)
    close(found, exact)
    close(x.grad, wide.grad)
    for mine, theirs in zip(layers.parameters(), exact_layers.parameters(), strict=True):
        close(mine.grad, theirs.grad)
    assert sum(saved.numel() == 3 * 5 * 50 for saved in kept) == 1


@pytest.mark.parametrize("shape", [(7, 20), (130, 33), (3, 5_000)], ids=str)
def test_rows_of_a_table_about_its_middle_and_what_they_sum_to(shape):
    torch.manual_seed(0)
    table, middle = torch.randn(shape), torch.randn(shape[1])
    tokens = torch.randint(0, shape[0], (5, 8))[:, 1:4]
    exact = (table - middle)[tokens].flatten(1)
    found, squares = triton_table.looked_up(table, tokens, middle, torch.float32)
    assert torch.equal(found, exact)
    close(squares, exact.double().square().sum(1))
    found, squares = triton_table.looked_up(table, tokens, middle, torch.bfloat16)
    torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=0)  # the interpreter cuts digits off
    close(squares, found.double().square().sum(1))


@pytest.mark.parametrize("stray", [-1, 7])
def test_a_token_that_a_table_lacks_is_no_number(stray):
    tokens = torch.tensor([[0, 1], [2, stray], [3, 4]])
    found, squares = triton_table.looked_up(torch.randn(7, 20), tokens, torch.zeros(20), torch.bfloat16)
    for numbers in (squares, found[:, 20]):
        assert torch.isnan(numbers).tolist() == [False, True, False]
    assert not torch.isnan(found[:, :20]).any()


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.7, 1.0])
def test_an_average_moves_towards_a_table(weight):
    torch.manual_seed(0)
    average, table = torch.randn(2, 70, 99)
    exact = average.double().lerp(table.double(), torch.tensor(weight).double())
    moved = torch.empty_like(average)
    triton_table.lerp(average, table, torch.tensor(weight), out=moved)
    close(moved, exact)
    assert weight < 1 or torch.equal(moved, table)
    assert weight > 0 or torch.equal(moved, average)
    triton_table.lerp(average, table, torch.tensor(weight), out=average)
    assert torch.equal(average, moved)
