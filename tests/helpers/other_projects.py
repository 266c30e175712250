"""Transformers of other projects as made-up weights, and their forward passes written out step by step.

Nothing of hopflow is used here: the functions follow the published code of each project, with other means (complex
rotations, norms by mean and variance, a loop over heads), so that the two implementations share no mistake.
"""

import math

import torch
from torch import Tensor

Weights = dict[str, Tensor]


def made_weights(
    layout: str, rows: int, *, width: int = 16, heads: int = 2, layers: int = 2, condition: int = 6, seed: int = 0
) -> Weights:
    """Random weights under the names of a layout, in the order in which its modules are registered."""
    draws = torch.Generator().manual_seed(seed)

    def matrix(*shape: int, size: float = 0.6) -> Tensor:
        return size * torch.randn(*shape, generator=draws) / math.sqrt(shape[-1] if len(shape) > 1 else 1)

    facebook = layout == "flow_matching"
    clock = "time_embedding.mlp" if facebook else "sigma_map.mlp"
    found = {
        "vocab_embed.weight" if facebook else "vocab_embed.embedding": matrix(rows, width, size=2),
        f"{clock}.0.weight": matrix(condition, 256, size=2),
        f"{clock}.0.bias": matrix(condition),
        f"{clock}.2.weight": matrix(condition, condition, size=1.2),
        f"{clock}.2.bias": matrix(condition),
    }
    head = width // heads
    speeds = 1 / 10_000 ** (torch.arange(0, head, 2).float() / head)
    if layout == "gidd":
        angle = torch.outer(torch.arange(12).float(), speeds).repeat(1, 2)[None, :, None, None]
        cos, sin = (wave.repeat(1, 1, 3, 1, 1) for wave in (angle.cos(), angle.sin()))
        cos[:, :, 2], sin[:, :, 2] = 1, 0
        found |= {"rotary_emb.cos_cached": cos, "rotary_emb.sin_cached": sin}
    else:
        found["rotary_emb.inv_freq"] = speeds
    for i in range(layers):
        names = ("qw", "kw", "vw") if facebook else ("attn_qkv",)
        block = {"norm1.weight": 1 + matrix(width)}
        block |= {f"{name}.weight": matrix(3 * width // len(names), width, size=2) for name in names}
        block |= {"attn_out.weight": matrix(width, width, size=2), "norm2.weight": 1 + matrix(width)}
        block |= {"mlp.0.weight": matrix(4 * width, width, size=1.2), "mlp.0.bias": matrix(4 * width)}
        block |= {"mlp.2.weight": matrix(width, 4 * width, size=1.2), "mlp.2.bias": matrix(width)}
        block |= {"adaLN_modulation.weight": matrix(6 * width, condition), "adaLN_modulation.bias": matrix(6 * width)}
        found |= {f"blocks.{i}.{name}": value for name, value in block.items()}
    found["output_layer.norm_final.weight"] = 1 + matrix(width)
    found |= {"output_layer.linear.weight": matrix(rows, width, size=0.3), "output_layer.linear.bias": matrix(rows)}
    found["output_layer.adaLN_modulation.weight"] = matrix(2 * width, condition)
    found["output_layer.adaLN_modulation.bias"] = matrix(2 * width)
    if layout == "gidd":
        found["logit_bias"] = torch.zeros(1, 1, 1)
    return found


def outputs(layout: str, weights: Weights, heads: int, x: Tensor, time: Tensor) -> Tensor:
    """What the network returns, (B, L, rows); `time` is what the project passes: σ, or its own time."""
    w = {name: value.double() for name, value in weights.items()}
    facebook = layout == "flow_matching"
    clock = "time_embedding.mlp" if facebook else "sigma_map.mlp"
    frequencies = torch.tensor([10_000 ** (-j / 128) for j in range(128)], dtype=torch.float64)
    angles = time.double()[:, None] * frequencies
    c = torch.cat([torch.cos(angles), torch.sin(angles)], 1) @ w[f"{clock}.0.weight"].T + w[f"{clock}.0.bias"]
    c = _silu(_silu(c) @ w[f"{clock}.2.weight"].T + w[f"{clock}.2.bias"])
    h = w["vocab_embed.weight" if facebook else "vocab_embed.embedding"][x]
    layers = len({name.split(".")[1] for name in w if name.startswith("blocks.")})
    for i in range(layers):
        b = {name.removeprefix(f"blocks.{i}."): value for name, value in w.items() if name.startswith(f"blocks.{i}.")}
        six = c @ b["adaLN_modulation.weight"].T + b["adaLN_modulation.bias"]
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (part[:, None] for part in six.split(h.shape[-1], 1))
        y = _norm(h, b["norm1.weight"]) * (1 + scale_1) + shift_1
        if facebook:
            q, k, v = (y @ b[f"{name}.weight"].T for name in ("qw", "kw", "vw"))
        else:
            q, k, v = (y @ b["attn_qkv.weight"].T).split(h.shape[-1], -1)
        h = h + gate_1 * (_attention(q, k, v, heads) @ b["attn_out.weight"].T)
        y = _norm(h, b["norm2.weight"]) * (1 + scale_2) + shift_2
        inner = y @ b["mlp.0.weight"].T + b["mlp.0.bias"]
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        h = h + gate_2 * (inner @ b["mlp.2.weight"].T + b["mlp.2.bias"])
    two = c @ w["output_layer.adaLN_modulation.weight"].T + w["output_layer.adaLN_modulation.bias"]
    shift, scale = (part[:, None] for part in two.split(h.shape[-1], 1))
    y = _norm(h, w["output_layer.norm_final.weight"]) * (1 + scale) + shift
    return y @ w["output_layer.linear.weight"].T + w["output_layer.linear.bias"]


def sedd_log_scores(weights: Weights, heads: int, x: Tensor, sigma: Tensor, scaled: bool) -> Tensor:
    """SEDD's output: log p_t(x with y at i) - log p_t(x), for every y; with or without scale_by_sigma."""
    found = outputs("sedd", weights, heads, x, sigma)
    if scaled:
        found = found - torch.log(torch.expm1(sigma.double()))[:, None, None] - math.log(found.shape[-1] - 1)
    return found.scatter(-1, x[..., None], 0.0)


def _silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt((centered**2).mean(-1, keepdim=True) + 1e-5) * weight


def _attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Each head by itself, with the first and second half of its numbers as real and imaginary parts."""
    parts = []
    for mine in zip(*(each.chunk(heads, -1) for each in (q, k, v)), strict=True):
        queries, keys, values = mine
        half = queries.shape[-1] // 2
        speeds = torch.tensor([10_000 ** (-2 * j / (2 * half)) for j in range(half)], dtype=torch.float64)
        turn = torch.polar(torch.ones(1, dtype=torch.float64), torch.arange(q.shape[1]).double()[:, None] * speeds)
        queries, keys = (torch.complex(x[..., :half], x[..., half:]) * turn for x in (queries, keys))
        weights = torch.einsum("bid,bjd->bij", queries, keys.conj()).real / math.sqrt(2 * half)
        parts.append(torch.softmax(weights, -1) @ values)
    return torch.cat(parts, -1)


WORDS = ("the", "red", "owl", "greets", "a", "grey", "ram", "[UNK]")


def tokenizer_json(words: tuple[str, ...] = WORDS) -> dict[str, object]:
    """The content of a tokenizer.json with these words."""
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"}
    parts = {"version": "1.0", "added_tokens": [], "normalizer": None, "decoder": None, "post_processor": None}
    return {**parts, "pre_tokenizer": {"type": "Whitespace"}, "model": model, "truncation": None, "padding": None}
