"""Attention with rotary positions, through torch's scaled dot product."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from .short_attention import attend, fits, glance
from .sizes import Size

BASE = 10_000.0
"""The slowest pair of numbers turns once in 2π·BASE positions."""
PLANLESS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Ways to attend that need no plan for every new number of rows; cuDNN's takes longer to make than a call does."""

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, (L, width/2) each."""


def rotation(like: Float[Tensor, "B L D"], size: Size, start: int = 0) -> Rotation:
    """By how much each pair of numbers turns at the positions from `start` on; float32 at least, bf16 cannot count.

    Made anew by every call and shared by all blocks: that is cheaper than it is to keep one per length and device.
    """
    cos, sin = _rotation(like.detach(), size.width // size.heads // 2, start)
    return cos, sin


@torch.library.custom_op("hopflow::rotation", mutates_args=())
def _rotation(like: Tensor, pairs: int, start: int) -> Tensor:
    """An operation of its own: what it knows of it, a compiler computes anew for every number of every block."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    speed = BASE ** (-torch.arange(pairs, dtype=dtype, device=like.device) / pairs)
    position = torch.arange(start, start + like.shape[1], dtype=dtype, device=like.device)
    angle = position[:, None] * speed
    return torch.stack([angle.cos(), angle.sin()])


@_rotation.register_fake
def _(like: Tensor, pairs: int, start: int) -> Tensor:
    return like.new_empty(2, like.shape[1], pairs, dtype=torch.promote_types(like.dtype, torch.float32))


def rotated(x: Float[Tensor, "B L *heads W"], turn: Rotation) -> Float[Tensor, "B L *heads W"]:
    """Each pair (x_j, x_{j + W/2}) turned by its position, so that ⟨q_i, k_j⟩ depends on positions by i - j only."""
    cos, sin = (part.view(len(part), *[1] * (x.ndim - 3), part.shape[1]) for part in turn)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Past:
    """The keys and values of the positions so far, for drawing one token at a time."""

    def __init__(self) -> None:
        self.parts: tuple[Tensor, ...] = ()

    def extended(self, *new: Tensor) -> tuple[Tensor, ...]:
        self.parts = tuple(torch.cat(pair, 2) for pair in zip(self.parts, new, strict=True)) if self.parts else new
        return self.parts


class Attention(nn.Module):
    """Every position sees every other."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Float[Tensor, "B L D"], turn: Rotation, past: Past | None = None) -> Float[Tensor, "B L D"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # (B, L, 3, H, W)
        out: Tensor = self.out(self.mix(qkv, turn, past))
        return out

    def offered(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 2 H W"]:
        """What the positions offer to be seen: keys, not turned yet, and values."""
        return linear(x, self.qkv.weight[x.shape[-1] :]).unflatten(-1, (2, self.heads, -1))

    def glance(
        self,
        x: Float[Tensor, "m D"],
        row: Int[Tensor, " m"],
        position: Int[Tensor, " m"],
        offered: Float[Tensor, "B L 2 H W"],
        turn: Rotation,
    ) -> Float[Tensor, "m D"]:
        """As `forward` of single positions, of which each sees what its own sequence offers."""
        asked = linear(x, self.qkv.weight[: x.shape[-1]]).unflatten(-1, (self.heads, -1))
        look = glance_any if torch.is_grad_enabled() or not fits(offered) else glance  # which has no gradient
        out: Tensor = self.out(look(asked, offered, row, position, *turn))
        return out

    def mix(self, qkv: Float[Tensor, "B L 3 H W"], turn: Rotation, past: Past | None) -> Float[Tensor, "B L D"]:
        """What each position makes of those that it sees."""
        if fits(qkv):
            mixed: Tensor = attend(qkv, *turn)
            return mixed
        return self.mix_any(qkv, turn, past)

    def mix_any(self, qkv: Float[Tensor, "B L 3 H W"], turn: Rotation, past: Past | None) -> Float[Tensor, "B L D"]:
        """The same by torch's own operations, of any length and on any device."""
        queries_keys, values = qkv.split([2, 1], 2)  # (B, L, 2 | 1, H, W)
        # both turned at once, before heads and positions change places: a fifth of a small network's time on a CPU
        q, k = rotated(queries_keys, turn).to(values.dtype).permute(2, 0, 3, 1, 4)  # (B, H, L, W) each
        v = values[:, :, 0].transpose(1, 2)
        return self.look(q, k, v, past).transpose(1, 2).flatten(2)

    def look(self, q: Tensor, k: Tensor, v: Tensor, past: Past | None) -> Tensor:
        return scaled_dot_product_attention(q, k, v)


def glance_any(
    asked: Float[Tensor, "m H W"],
    offered: Float[Tensor, "B L 2 H W"],
    row: Int[Tensor, " m"],
    position: Int[Tensor, " m"],
    cos: Tensor,
    sin: Tensor,
) -> Float[Tensor, "m D"]:
    """Single queries, at their positions of these rows, by torch's own operations: of any length and on any device."""
    q = rotated(asked[None], (cos[position], sin[position]))[0].to(asked.dtype)
    keys, values = offered.unbind(2)
    few = len(row) < len(keys)  # turn those that are looked at, or all, whichever are fewer
    turned = rotated(keys[row] if few else keys, (cos, sin)).to(keys.dtype)
    k, v = (part.transpose(1, 2) for part in (turned if few else turned[row], values[row]))
    with sdpa_kernel(PLANLESS):
        return scaled_dot_product_attention(q[:, :, None], k, v).flatten(1)


class CausalAttention(Attention):
    """Every position sees itself and those before it; with a past, a single new position sees all of it."""

    def mix(self, qkv: Float[Tensor, "B L 3 H W"], turn: Rotation, past: Past | None) -> Float[Tensor, "B L D"]:
        return self.mix_any(qkv, turn, past)

    def look(self, q: Tensor, k: Tensor, v: Tensor, past: Past | None) -> Tensor:
        if past is None:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
        k, v = past.extended(k, v)
        return scaled_dot_product_attention(q, k, v)
