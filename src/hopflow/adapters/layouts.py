"""Layouts: how the transformers of other projects store their weights, as data.

All of them are the diffusion transformer of SEDD with small changes: token embedding, blocks of attention and MLP with
adaptive layer norms (weights without bias, shift, scale and gate linear in the time embedding), and a linear head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..models.dit import DataTime, NoiseTime, TimeInput, TotalNoise
from ..predictions import Carry, Evidence, Plain, Prediction
from ..system.hints import did_you_mean

SourceName = Literal["mask", "uniform"]
BASE = 10_000.0
"""Of the rotary embedding, in all layouts."""
TOLERANCE = 1e-2
"""Largest difference of a stored rotation from the expected one: it may have been stored in bf16."""

COMPILED = "_orig_mod."
"""What torch.compile puts into names."""
OTHER_PARTS = frozenset({"noise", "noise_schedule", "teacher", "ema", "metrics", "gen_ppl_metric"}) | {
    f"{split}_metrics" for split in ("train", "valid", "test")
}
"""Parts of a training module that are not the network."""


@dataclass(frozen=True)
class Layout:
    """The names of a project's weights, and what its networks mean."""

    name: str
    about: str
    time_input: TimeInput
    """The number that the network embeds as its time."""
    prediction: Prediction
    """What its logits mean. Duo puts its probabilities in the place of x1 in the posterior, so that they describe the
    context of a position: its sampler and bound are those of Evidence with η = 1. flow_matching trains p(x1 | xt)."""
    sources: tuple[SourceName, ...]
    """Sources that the project trains with; the first is the usual one."""
    embedding: str = "vocab_embed.embedding"
    clock: str = "sigma_map.mlp"
    qkv: tuple[str, ...] = ("attn_qkv",)
    """One matrix for queries, keys and values, or one for each."""
    buffers: tuple[str, ...] = ("rotary_emb.inv_freq",)
    """Constants that may be stored; they are checked, not kept."""
    mask_named: bool = True
    """Whether a mask that the tokenizer names is that of the network; otherwise it is the row after its tokens."""
    time_optional: bool = False
    """Whether the project also trains networks whose time input is always 0; it is then the default."""

    def shapes(self, rows: int, width: int, condition: int, layers: int) -> dict[str, tuple[int, ...]]:
        """The name and shape of every parameter."""
        found: dict[str, tuple[int, ...]] = {
            self.embedding: (rows, width),
            f"{self.clock}.0.weight": (condition, 256),
            f"{self.clock}.0.bias": (condition,),
            f"{self.clock}.2.weight": (condition, condition),
            f"{self.clock}.2.bias": (condition,),
        }
        block = {
            "norm1.weight": (width,),
            **{f"{name}.weight": (3 * width // len(self.qkv), width) for name in self.qkv},
            "attn_out.weight": (width, width),
            "norm2.weight": (width,),
            "mlp.0.weight": (4 * width, width),
            "mlp.0.bias": (4 * width,),
            "mlp.2.weight": (width, 4 * width),
            "mlp.2.bias": (width,),
            "adaLN_modulation.weight": (6 * width, condition),
            "adaLN_modulation.bias": (6 * width,),
        }
        found |= {f"blocks.{i}.{name}": shape for i in range(layers) for name, shape in block.items()}
        return found | {
            "output_layer.norm_final.weight": (width,),
            "output_layer.linear.weight": (rows, width),
            "output_layer.linear.bias": (rows,),
            "output_layer.adaLN_modulation.weight": (2 * width, condition),
            "output_layer.adaLN_modulation.bias": (2 * width,),
        }


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("mdlm", "kuleshov-group/mdlm", TotalNoise(1e-3), Carry(), ("mask",), time_optional=True),
        Layout("duo", "s-sahoo/duo", TotalNoise(1e-3), Evidence(), ("uniform",)),
        Layout(
            "sedd",
            "louaaron/Score-Entropy-Discrete-Diffusion",
            TotalNoise(1e-3),
            Carry(),
            ("mask",),
            mask_named=False,
        ),
        Layout(
            "flow_matching",
            "facebookresearch/flow_matching, examples/text",
            DataTime(),
            Plain(),
            ("mask", "uniform"),
            embedding="vocab_embed.weight",
            clock="time_embedding.mlp",
            qkv=("qw", "kw", "vw"),
            mask_named=False,
        ),
        Layout(
            "gidd",
            "dvruette/gidd",
            NoiseTime(1e-4),
            Carry(),
            ("mask",),
            buffers=("rotary_emb.cos_cached", "rotary_emb.sin_cached", "rotary_emb.inv_freq", "logit_bias"),
        ),
    )
}


def layout_named(name: str) -> Layout:
    """The layout with this name."""
    if name not in LAYOUTS:
        hint = did_you_mean(name, LAYOUTS) or f"known layouts: {', '.join(LAYOUTS)}"
        raise ValueError(f"there is no layout {name!r}; {hint}")
    return LAYOUTS[name]


def head_width(name: str, buffer: Tensor) -> int | None:
    """The width of an attention head by a stored constant; a ValueError if it has unexpected values."""
    if name == "logit_bias":
        if bool((buffer != 0).any()):
            raise ValueError("logit_bias is not 0: hopflow's networks do not add a number to the logit of each token")
        return None
    if buffer.ndim not in (1, 5):
        raise ValueError(f"{name} has {buffer.ndim} dimensions, expected 1 or 5")
    width = 2 * len(buffer) if buffer.ndim == 1 else int(buffer.shape[-1])
    expected = _rotations(name, width, buffer)
    smallest = 0.0 if buffer.ndim == 1 else TOLERANCE  # slow rotations matter in long texts
    if not torch.allclose(buffer.double(), expected, rtol=TOLERANCE, atol=smallest):
        raise ValueError(f"{name} does not have the values of a rotary embedding with base {BASE:g}")
    return width


def _rotations(name: str, width: int, buffer: Tensor) -> Float[Tensor, "..."]:
    """The speeds of a rotary embedding, or the cosines or sines of queries, keys and values, as they are stored."""
    speed = BASE ** (-torch.arange(width // 2, dtype=torch.float64) * 2 / width)
    if buffer.ndim == 1:
        return speed
    angle = torch.arange(buffer.shape[1], dtype=torch.float64)[:, None] * speed
    wave, still = (angle.cos(), 1.0) if "cos" in name else (angle.sin(), 0.0)
    found = wave.repeat(1, 2)[None, :, None, None].repeat(1, 1, 3, 1, 1)
    found[:, :, 2] = still  # values are not rotated
    return found if found.shape == buffer.shape else torch.full_like(buffer, torch.nan, dtype=torch.float64)
