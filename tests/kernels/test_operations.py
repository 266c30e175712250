"""The operations around the kernels, which Triton's interpreter runs: gradients, shapes for a compiler, heads."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from interpreted_kernels import (
    close,
    embedding_triton,
    fused_head_triton,
    gelu_mlp_triton,
    interpreted,  # noqa: F401
    residual_norm_triton,
    short_attention_triton,
)
from torch import nn
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from hopflow import kernels
from hopflow.kernels import fused_head, gelu_mlp, residual_norm, short_attention
from hopflow.models.attention import rotated
from hopflow.sampling.random_draws import categorical
from hopflow.scores import _terms
from hopflow.transport import cost_matrix


@pytest.fixture
def operations(monkeypatch):
    """hopflow's custom operations, with interpreted kernels."""
    for module in (residual_norm_triton, short_attention_triton, gelu_mlp_triton):
        monkeypatch.setattr(kernels, module.__name__.split(".")[-1], module, raising=False)
    some = SimpleNamespace(shared_memory_per_block_optin=1 << 20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: some)
    torch.manual_seed(0)


def matches(found, exact, parts, wide) -> None:
    """Outputs and the gradients of their parts match those in float64."""
    grads = [torch.randn(x.shape) for x in found]
    torch.autograd.backward(found, grads)
    torch.autograd.backward(exact, [grad.double() for grad in grads])
    for x, y in (*zip(found, exact, strict=True), *((x.grad, y.grad) for x, y in zip(parts, wide, strict=True))):
        close(x, y)


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("sequences", [1, 2])
def test_the_operation_of_residual_sum_and_norm_has_gradients(sequences):
    parts = [torch.randn(2, 5, 16, requires_grad=True) for _ in range(2)]
    parts += [torch.randn(sequences, 1, 16, requires_grad=True) for _ in range(3)]
    wide = [part.detach().double().requires_grad_() for part in parts]
    found = residual_norm.residual_norm(*parts, 0.5, 0.0, 1e-5, torch.float32)
    exact = wide[0] + wide[2] * wide[1]
    matches(found, [exact, layer_norm(exact, (16,)) * (0.5 + wide[3]) + wide[4]], parts, wide)


@pytest.mark.usefixtures("operations")
def test_the_operation_of_residual_sum_and_norm_applies_dropout_in_both_passes():
    x, update = torch.zeros(2, 40, 16), torch.ones(2, 40, 16, requires_grad=True)
    shared = [torch.ones(1, 1, 16) for _ in range(3)]
    out, _ = residual_norm.residual_norm(x, update, *shared, 0.0, 0.25, 1e-5, torch.float32)
    out.sum().backward()
    close(update.grad, out.double())
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}


@pytest.mark.usefixtures("operations")
def test_the_operation_of_attention_has_a_gradient():
    qkv, angle = torch.randn(2, 9, 3, 2, 32, requires_grad=True), torch.randn(9, 16)
    wide = qkv.detach().double().requires_grad_()
    q, k = rotated(wide[:, :, :2], (angle.cos().double(), angle.sin().double())).permute(2, 0, 3, 1, 4)
    exact = scaled_dot_product_attention(q, k, wide[:, :, 2].transpose(1, 2)).transpose(1, 2).flatten(2)
    found = short_attention.attention(qkv, angle.cos(), angle.sin())
    row, position = torch.tensor([1, 0, 1]), torch.tensor([3, 8, 0])
    at = qkv.detach()[row, position, 0], qkv.detach()[:, :, 1:], row, position, angle.cos(), angle.sin()
    close(short_attention.attention_at(*at), exact[row, position])
    matches([found], [exact], [qkv], [wide])


def operation_cases() -> dict[str, tuple]:
    """Every custom operation with arguments."""
    x, shared, stats = torch.randn(2, 5, 16), torch.randn(1, 1, 16), torch.rand(2, 5, 2)
    qkv, rotation, rows = torch.randn(2, 9, 3, 2, 32), torch.rand(9, 16), torch.randn(2, 5, 32)
    numbers = 1.0, torch.tensor(5), 0.1
    return {
        "residual_norm": (x, x, *[shared] * 3, *numbers, 1e-5, torch.float16),
        "residual_norm_backward": (x, x, x, x, shared, shared, stats, *numbers),
        "attention": (qkv, rotation, rotation),
        "attention_backward": (torch.randn(2, 9, 64), qkv, rotation, rotation),
        "linear_gelu": (x, torch.randn(24, 16), torch.randn(24)),
        "gelu_linear": (x, torch.randn(16), torch.randn(32, 16), torch.randn(32)),
        "gelu_linear_backward": (rows, x, torch.randn(16), torch.randn(32, 16)),
    }


@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("name", operation_cases())
def test_a_compiler_is_told_the_shapes_that_an_operation_returns(name):
    operation, arguments = getattr(torch.ops.hopflow, name).default, operation_cases()[name]
    torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


def test_every_custom_operation_of_the_kernels_is_tested():
    files = (Path(kernels.__file__).parent).glob("*.py")
    named = {name for file in files for name in re.findall(r'custom_op\("hopflow::(\w+)"', file.read_text())}
    assert set(operation_cases()) == named


@pytest.mark.usefixtures("operations")
def test_linear_and_gelu_without_gradients_are_one_product(monkeypatch):
    monkeypatch.setattr(gelu_mlp, "supports", lambda *_: True)
    inner, outer = nn.Linear(12, 50).double(), nn.Linear(50, 7).double()
    x = torch.randn(3, 5, 12).double()
    with torch.no_grad():
        exact = outer(gelu(inner(x), approximate="none"))  # a CPU has no product with the tanh approximation
        torch.testing.assert_close(gelu_mlp.gelu_mlp(x, inner, outer), exact)


@pytest.mark.parametrize("biased", [False, True])
def test_the_score_terms_of_a_fused_head_have_gradients(biased):
    torch.manual_seed(0)
    features, head = torch.randn(9, 12, requires_grad=True), nn.Linear(12, 70, bias=biased)
    wide, wide_head = features.detach().double().requires_grad_(), copy.deepcopy(head).double()
    xt, x1 = torch.randint(0, 70, (9,)), torch.randint(0, 70, (9,))
    xt[0] = 71  # a mask
    found = fused_head.fused_score_terms(fused_head_triton, features, head, xt, x1)
    exact = _terms(wide_head(wide), xt, x1)
    there = torch.isfinite(exact)
    grad = torch.randn(9, 3) * there
    found.backward(grad, retain_graph=True)
    torch.where(there, exact, 0.0).backward(grad.double())
    close(found[there], exact[there])
    close(features.grad, wide.grad)
    for mine, theirs in zip(head.parameters(), wide_head.parameters(), strict=True):
        close(mine.grad, theirs.grad)
    with pytest.raises(RuntimeError, match="only once"):
        found.backward(grad)


@pytest.mark.parametrize("biased", [False, True])
def test_a_bf16x3_head_scores_and_draws_as_its_logits_do(monkeypatch, biased):
    torch.manual_seed(0)
    monkeypatch.setattr(fused_head, "_kernels", lambda *_: fused_head_triton)
    monkeypatch.setattr(fused_head, "_float32_product", lambda a, b: a.float() @ b.float())
    layer, features = nn.Linear(12, 70, bias=biased), torch.randn(9, 12)
    head, exact = fused_head.Bf16x3Head(layer), layer.double()(features.double()).detach()
    torch.testing.assert_close(head(features).double(), exact, rtol=1e-4, atol=1e-4)
    xt, x1, shift, u = torch.randint(0, 70, (9,)), torch.randint(0, 70, (9,)), torch.rand(9), torch.rand(9)
    terms = _terms(exact, xt, x1)
    torch.testing.assert_close(head.score_terms(features, xt, x1).double(), terms, rtol=1e-4, atol=1e-4)
    assert head.score_terms(features[:0], xt[:0], x1[:0]) is None
    assert head.can_draw
    tokens, finite = head.draw(features, xt, shift, u)
    exact[torch.arange(9), xt] += shift
    assert bool(finite)
    assert torch.equal(tokens, categorical(exact, u.double()))
    features[3] = torch.nan
    assert not head.draw(features, xt, shift, u)[1]


@pytest.mark.usefixtures("operations")
def test_transport_costs_of_embeddings_that_are_rounded_when_they_are_looked_up(monkeypatch):
    monkeypatch.setattr(kernels, "embedding_triton", embedding_triton, raising=False)
    for name in ("rounds", "has_kernels"):
        monkeypatch.setattr(cost_matrix, name, lambda _: True)
    table, x0, x1 = 5 + torch.randn(40, 24), torch.randint(0, 40, (3, 7)), torch.randint(0, 40, (4, 7))
    exact = (table[x1].flatten(1)[:, None] - table[x0].flatten(1)).double().square().sum(2)
    found = cost_matrix.centred_distances(x0, x1, table).full()
    torch.testing.assert_close(found.double(), exact, rtol=0.02, atol=0.02)
