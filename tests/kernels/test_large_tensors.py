"""Kernels on tensors with more than 2^31 numbers: the last rows are computed as the same rows are by themselves.

Needs a GPU with 80 GB. test_compiled_kernels.py checks without one that addresses are computed in 64 bits.
"""

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < 76e9:
    pytest.skip("needs a GPU with 80 GB", allow_module_level=True)
pytest.importorskip("triton")

from hopflow.kernels import (
    divergence_triton,
    embedding_triton,
    fused_head_triton,
    gelu_mlp_triton,
    residual_norm_triton,
    short_attention_triton,
)

ROWS, WIDTH = (1 << 15) + 4, 1 << 16
"""Just over 2^31 numbers; the last four rows lie beyond them."""


@pytest.fixture(autouse=True)
def on_the_gpu():
    torch.manual_seed(0)
    with torch.device("cuda"):
        yield
    torch.cuda.empty_cache()


def with_last(end: torch.Tensor, n: int = ROWS) -> torch.Tensor:
    """n rows of zeros, but the last ones are these."""
    out = torch.zeros(n, *end.shape[1:], dtype=end.dtype)
    out[-len(end) :] = end
    return out


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found[-len(expected) :], expected, rtol=1e-3, atol=1e-3)


def logits_and_rows() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """The last four rows of logits, their bias, and two tokens and a shift for each row."""
    tokens = [torch.randint(0, WIDTH, (4,)).int() for _ in range(2)]
    return torch.randn(4, WIDTH).half(), torch.randn(WIDTH), [*tokens, torch.rand(4)]


def test_score_terms_of_a_large_tensor_and_their_gradient():
    logits, bias, (xt, x1, _) = logits_and_rows()
    rows, tokens, grad = with_last(logits), (with_last(xt), with_last(x1)), torch.randn(4, 3)
    found, expected = fused_head_triton.forward(rows, bias, *tokens), fused_head_triton.forward(logits, bias, xt, x1)
    close(found, expected)
    fused_head_triton.backward_(rows, bias, *tokens, found, with_last(grad))
    fused_head_triton.backward_(logits, bias, xt, x1, expected, grad)
    close(rows, logits)


def test_tokens_drawn_from_a_large_tensor():
    logits, bias, (xt, _, shift) = logits_and_rows()
    u = torch.rand(4, dtype=torch.float64)
    found, _ = fused_head_triton.draw(with_last(logits), bias, *(with_last(part) for part in (xt, shift, u)))
    expected, _ = fused_head_triton.draw(logits, bias, xt, shift, u)
    assert torch.equal(found[-4:], expected)


def test_divergence_of_a_large_tensor():
    logits, _, parts = logits_and_rows()
    p0, parts = torch.rand(WIDTH), [*parts, torch.rand(4, 7)]
    found = divergence_triton.row_divergence(with_last(logits), p0, *(with_last(part) for part in parts))
    for one, expected in zip(found, divergence_triton.row_divergence(logits, p0, *parts), strict=True):
        close(one, expected)


def test_gelu_of_a_large_tensor():
    x, bias, grad = torch.randn(4, WIDTH).half(), torch.randn(WIDTH).half(), torch.randn(4, WIDTH).half()
    rows, gradients = with_last(x), with_last(grad)
    close(gelu_mlp_triton.forward(rows, bias), gelu_mlp_triton.forward(x, bias))
    found, _ = gelu_mlp_triton.backward_(gradients, rows, bias)
    expected, _ = gelu_mlp_triton.backward_(grad, x, bias)
    close(found, expected)
    close(gradients, grad)


# the second case has more than 2^30 numbers in each of the sums of gate, scale and shift
@pytest.mark.parametrize(("sequences", "length"), [(ROWS, 64), ((1 << 20) + 4, 1)])
def test_residual_norm_of_a_large_tensor(sequences, length):
    x, update, grad, grad_normed = torch.randn(4, 4, length, 1024).half()
    shared, rest = torch.randn(1, 1, 3 * 1024).chunk(3, -1), (1.0, None, 0.0)
    large = [with_last(part, sequences) for part in (x, update)]
    found = residual_norm_triton.forward(*large, *shared, *rest, 1e-5, torch.float16)
    out, _, stats = expected = residual_norm_triton.forward(x, update, *shared, *rest, 1e-5, torch.float16)
    for one, other in zip(found, expected, strict=True):
        close(one, other)
    del found, large
    large = [with_last(part, sequences) for part in (grad, grad_normed, out, update)]
    found = residual_norm_triton.backward(*large, *shared[:2], with_last(stats, sequences), *rest)
    expected = residual_norm_triton.backward(grad, grad_normed, out, update, *shared[:2], stats, *rest)
    for one, other in zip(found[:2], expected[:2], strict=True):
        close(one, other)
    for one, other in zip(found[2], expected[2], strict=True):
        close(one, other)


def test_attention_of_a_large_tensor():
    length, heads, width = 16, 64, 64
    qkv, grad = torch.randn(4, length, 3, heads, width).half(), torch.randn(4, length, heads * width).half()
    angle = torch.randn(length, width // 2)
    rotary = angle.cos(), angle.sin()
    large = with_last(qkv)
    close(short_attention_triton.forward(large, *rotary), short_attention_triton.forward(qkv, *rotary))
    found = short_attention_triton.backward(with_last(grad), large, *rotary)
    close(found, short_attention_triton.backward(grad, qkv, *rotary))


def test_attention_of_single_queries_in_a_large_tensor():
    length, heads, width, queries = 16, 64, 64, (1 << 19) + 4
    qkv, row, position = torch.randn(4, length, 3, heads, width).half(), torch.arange(4), torch.arange(4)
    angle, query, keys_values = torch.randn(length, width // 2), qkv[:, 0, 0].contiguous(), qkv[:, :, 1:].contiguous()
    where = with_last(row + ROWS - 4, queries), with_last(position, queries), angle.cos(), angle.sin()
    found = short_attention_triton.forward_at(with_last(query, queries), with_last(keys_values), *where)
    close(found, short_attention_triton.forward_at(query, keys_values, row, position, angle.cos(), angle.sin()))


def test_lookup_of_embeddings_into_a_large_tensor():
    rows, middle, n = torch.randn(4, 4096), torch.randn(4096), (1 << 19) + 4
    tokens = torch.arange(4)[:, None]
    found = embedding_triton.lookup(with_last(rows, n), with_last(tokens + n - 4, n), middle, torch.bfloat16)
    for one, expected in zip(found, embedding_triton.lookup(rows, tokens, middle, torch.bfloat16), strict=True):
        close(one, expected)


def test_average_of_a_large_table_of_embeddings():
    average, table = torch.randn(2, 4, WIDTH)
    large, weight = with_last(average), torch.tensor(0.25)
    embedding_triton.lerp(large, with_last(table), weight, out=large)
    embedding_triton.lerp(average, table, weight, out=average)
    close(large, average)
