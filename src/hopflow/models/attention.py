"""Attention with rotary position embedding, by torch's scaled dot product or by hopflow's kernel."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from ..kernels import short_attention
from .sizes import Size

BASE = 10_000.0
"""The slowest pair of numbers rotates once in 2π·BASE positions."""
BACKENDS_WITHOUT_PLAN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Backends that need no plan for each new number of rows; making one for cuDNN takes longer than a call."""

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, (L, width/2) each."""


def rotation(like: Float[Tensor, "B L D"], size: Size, start: int = 0) -> Rotation:
    """The rotation of each pair of numbers at the positions from `start` on; at least float32, for exact positions.

    Computed in every call and shared by all blocks, which is cheaper than to cache it per length and device.
    """
    computed = _as_operation if torch.compiler.is_compiling() else _rotation  # an operation imports the compiler
    cos, sin = computed(like.detach(), size.width // size.heads // 2, start)
    return cos, sin


def _rotation(like: Tensor, pairs: int, start: int) -> Tensor:
    dtype = torch.promote_types(like.dtype, torch.float32)
    speed = BASE ** (-torch.arange(pairs, dtype=dtype, device=like.device) / pairs)
    position = torch.arange(start, start + like.shape[1], dtype=dtype, device=like.device)
    angle = position[:, None] * speed
    return torch.stack([angle.cos(), angle.sin()])


_as_operation = torch.library.custom_op("hopflow::rotation", _rotation, mutates_args=())
"""The compiler would recompute sines and cosines in every block if they were not one operation."""


@_as_operation.register_fake
def _(like: Tensor, pairs: int, start: int) -> Tensor:
    return like.new_empty(2, like.shape[1], pairs, dtype=torch.promote_types(like.dtype, torch.float32))


def rotated(x: Float[Tensor, "B L *heads W"], rotary: Rotation) -> Float[Tensor, "B L *heads W"]:
    """Each pair (x_j, x_{j + W/2}) rotated by its position, so that ⟨q_i, k_j⟩ depends on i - j only."""
    cos, sin = (part.view(len(part), *[1] * (x.ndim - 3), part.shape[1]) for part in rotary)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class KeyValueCache:
    """Keys and values of the positions so far, for generation token by token."""

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] = ()

    def extended(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append new keys and values; returns all of them."""
        self.parts = tuple(torch.cat(pair, 2) for pair in zip(self.parts, new, strict=True)) if self.parts else new
        return self.parts


class Attention(nn.Module):
    """Bidirectional attention: every position attends to every position."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(
        self, x: Float[Tensor, "B L D"], rotary: Rotation, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "B L D"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, L, 3, H, W)
        out: Tensor = self.out(self.attend(qkv, rotary, cache))
        return out

    def keys_values(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 2 H W"]:
        """Keys, not rotated yet, and values of all positions."""
        return linear(x, self.qkv.weight[x.shape[-1] :]).unflatten(-1, (2, self.heads, -1))

    def forward_at(
        self,
        x: Float[Tensor, "m D"],
        row: Int[Tensor, " m"],
        position: Int[Tensor, " m"],
        keys_values: Float[Tensor, "B L 2 H W"],
        rotary: Rotation,
    ) -> Float[Tensor, "m D"]:
        """`forward` for single positions, each of which attends to the keys and values of its row."""
        queries = linear(x, self.qkv.weight[: x.shape[-1]]).unflatten(-1, (self.heads, -1))
        # the kernel has no gradient
        fused = not torch.is_grad_enabled() and keys_values.is_cuda and short_attention.supports(keys_values)
        attend_at = short_attention.attention_at if fused else torch_attention_at
        out: Tensor = self.out(attend_at(queries, keys_values, row, position, *rotary))
        return out

    def attend(
        self, qkv: Float[Tensor, "B L 3 H W"], rotary: Rotation, cache: KeyValueCache | None
    ) -> Float[Tensor, "B L D"]:
        """Attention over queries, keys and values, by the kernel where it is supported."""
        if qkv.is_cuda and short_attention.supports(qkv):
            mixed: Tensor = short_attention.attention(qkv, *rotary)
            return mixed
        return self.torch_attend(qkv, rotary, cache)

    def torch_attend(
        self, qkv: Float[Tensor, "B L 3 H W"], rotary: Rotation, cache: KeyValueCache | None
    ) -> Float[Tensor, "B L D"]:
        """The same by torch's operations, for any length and device."""
        queries_keys, values = qkv.split([2, 1], 2)  # (B, L, 2 | 1, H, W)
        # rotate both at once, before the transpose: this saves a fifth of a small network's time on a CPU
        q, k = rotated(queries_keys, rotary).to(values.dtype).permute(2, 0, 3, 1, 4)  # (B, H, L, W) each
        v = values[:, :, 0].transpose(1, 2)
        return self.dot_product(q, k, v, cache).transpose(1, 2).flatten(2)

    def dot_product(self, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache | None) -> Tensor:
        return scaled_dot_product_attention(q, k, v)


def torch_attention_at(
    queries: Float[Tensor, "m H W"],
    keys_values: Float[Tensor, "B L 2 H W"],
    row: Int[Tensor, " m"],
    position: Int[Tensor, " m"],
    cos: Tensor,
    sin: Tensor,
) -> Float[Tensor, "m D"]:
    """`short_attention.attention_at` by torch's operations, for any length and device."""
    q = rotated(queries[None], (cos[position], sin[position]))[0].to(queries.dtype)
    keys, values = keys_values.unbind(2)
    few = len(row) < len(keys)  # rotate the keys of the requested rows or of all rows, whichever are fewer
    rotated_keys = rotated(keys[row] if few else keys, (cos, sin)).to(keys.dtype)
    k, v = (part.transpose(1, 2) for part in (rotated_keys if few else rotated_keys[row], values[row]))
    with sdpa_kernel(BACKENDS_WITHOUT_PLAN):
        return scaled_dot_product_attention(q[:, :, None], k, v).flatten(1)


class CausalAttention(Attention):
    """Every position attends to itself and earlier ones; with a cache, one new position attends to all cached ones."""

    def attend(
        self, qkv: Float[Tensor, "B L 3 H W"], rotary: Rotation, cache: KeyValueCache | None
    ) -> Float[Tensor, "B L D"]:
        return self.torch_attend(qkv, rotary, cache)

    def dot_product(self, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache | None) -> Tensor:
        if cache is None:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        k, v = cache.extended(k, v)
        return scaled_dot_product_attention(q, k, v)
