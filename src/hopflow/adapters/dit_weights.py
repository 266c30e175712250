"""The weights of another project's transformer as those of `Transformer` or `DiT`: the same function, exactly.

- A norm with weights w followed by ·(1 + scale) + shift equals a norm without weights and scale' = w·(1 + scale) - 1,
  which is linear in the time embedding, too.
- A network whose time input is constant has constant modulations: the norm gets weights and bias, and the gate
  multiplies the last layer of its branch.
- The mask becomes the last token; rows that no token has are left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import silu

from ..models.dit import DiT, TimeInput
from ..models.empty_network import without_weights
from ..models.sizes import Size
from ..models.transformer import FREQUENCIES, Transformer
from ..runs.weights import name_list
from .embedding_rows import EmbeddingRows
from .layouts import COMPILED, OTHER_PARTS, Layout, head_width
from .tensor_files import StoredTensors

IMPOSSIBLE = -1e6
"""Logit of a data token that is never drawn: a mask in the middle of the vocabulary. MDLM uses this number."""
HEAD_WIDTH = 64
"""Of all published networks, for files that do not store it."""
Weights = dict[str, Tensor]
N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class NetworkWeights:
    """The parameters of a network under the names of its layout, with its shape."""

    layout: Layout
    parameters: Mapping[str, Tensor]
    layers: int
    width: int
    condition: int
    head: int | None
    """Width of an attention head, if the file contains it."""

    @property
    def rows(self) -> int:
        """Rows of the token embedding: tokens, mask and padding."""
        return len(self.parameters[self.layout.embedding])

    @classmethod
    def of(cls, layout: Layout, stored: StoredTensors, *, averages: bool) -> "NetworkWeights":
        """Select and check the parameters in a file; `averages` takes the averaged ones."""
        named, others = network_part(layout, stored)
        sizes = _sizes(layout, named, stored.file)
        expected = layout.shapes(*sizes)
        _check_names(
            layout, stored.file, set(expected) - set(named), set(named) - {*expected, *layout.buffers} | others
        )
        ordered = {name: value for name, value in named.items() if name in expected}
        ordered = _averaged(stored, ordered) if averages else ordered
        for name, value in ordered.items():
            if tuple(value.shape) != expected[name]:
                shape = list(value.shape)
                raise ValueError(f"{stored.file}: {name} has shape {shape}, expected {list(expected[name])}")
            if not value.is_floating_point() or not bool(torch.isfinite(value.float()).all()):
                raise ValueError(f"{stored.file}: {name} contains values that are not finite numbers")
        _, width, condition, layers = sizes
        head = _head_width(stored.file, {name: named[name] for name in layout.buffers if name in named})
        return cls(layout, ordered, layers, width, condition, head)

    def size(self, heads: int | None) -> Size:
        """Layers, width and number of heads: as typed, as in the file, or with heads of 64 numbers."""
        stored_heads = None if self.head is None else self.width // self.head
        if heads is not None and stored_heads not in (None, heads):
            raise ValueError(f"heads={heads}, but the rotary embedding in the file is that of {stored_heads} heads")
        count = heads or stored_heads or self.width // HEAD_WIDTH
        if count < 1 or self.width % count:
            raise ValueError(f"the width {self.width} is not a multiple of {count or HEAD_WIDTH}: set heads=NUMBER")
        return Size(self.layers, self.width, count)

    def timed(self, tokens: EmbeddingRows, size: Size, time_input: TimeInput) -> DiT:
        """The network, conditioned on the time."""
        state = self._shared(tokens)
        for ours, theirs in (("inner", "0"), ("outer", "2")):
            for part in ("weight", "bias"):
                state[f"clock.{ours}.{part}"] = self.parameters[f"{self.layout.clock}.{theirs}.{part}"]
        for branch, norm, rows in self._branches():
            state |= _modulation(f"{branch}.modulation", *self._modulation_rows(branch, rows), self._get(norm))
        state |= _modulation("norm.modulation", *self._final_rows(), self._get("output_layer.norm_final.weight"))
        with without_weights():
            network = DiT(tokens.vocab, size, time_input=time_input, condition_width=self.condition)
        return _filled(network, state)

    def timeless(self, tokens: EmbeddingRows, size: Size) -> Transformer:
        """The network with the constant time input 0."""
        state = self._shared(tokens)
        clock = self._clock_at_zero()
        for branch, norm, rows in self._branches():
            weight, bias = self._modulation_rows(branch, rows)
            shift, scale, gate = (weight @ clock + bias).chunk(3)
            state[f"{branch}.norm.weight"] = self._get(norm) * (1 + scale)
            state[f"{branch}.norm.bias"] = shift
            state[f"{branch}.inner.out.weight"] = (gate[:, None] * state[f"{branch}.inner.out.weight"]).float()
            if f"{branch}.inner.out.bias" in state:
                state[f"{branch}.inner.out.bias"] = gate * state[f"{branch}.inner.out.bias"]
        weight, bias = self._final_rows()
        shift, scale = (weight @ clock + bias).chunk(2)
        state["norm.weight"] = self._get("output_layer.norm_final.weight") * (1 + scale)
        state["norm.bias"] = shift
        with without_weights():
            network = Transformer(tokens.vocab, size, time=False)
        return _filled(network, state)

    def _get(self, name: str) -> Float[Tensor, "..."]:
        """A parameter in float64, in which weights are multiplied."""
        return self.parameters[name].double()

    def _shared(self, tokens: EmbeddingRows) -> Weights:
        """What does not depend on the time: embedding, head, attention and MLP."""
        weights = self.parameters
        state: Weights = {
            "embedding.weight": weights[self.layout.embedding][tokens.embedded],
            "head.weight": weights["output_layer.linear.weight"][tokens.predicted],
            "head.bias": weights["output_layer.linear.bias"][tokens.predicted],
        }
        if tokens.never is not None:
            state["head.weight"][tokens.never] = 0
            state["head.bias"][tokens.never] = IMPOSSIBLE
        for i in range(self.layers):
            theirs, attention, perceptron = f"blocks.{i}", f"blocks.{i}.attention.inner", f"blocks.{i}.perceptron.inner"
            state[f"{attention}.qkv.weight"] = torch.cat(
                [weights[f"{theirs}.{name}.weight"] for name in self.layout.qkv]
            )
            state[f"{attention}.out.weight"] = weights[f"{theirs}.attn_out.weight"]
            for ours, layer in (("inner", "mlp.0"), ("out", "mlp.2")):
                for part in ("weight", "bias"):
                    state[f"{perceptron}.{ours}.{part}"] = weights[f"{theirs}.{layer}.{part}"]
        return state

    def _branches(self) -> list[tuple[str, str, slice]]:
        """Each branch: hopflow's name, the name of its norm, and its rows of the modulation of the block."""
        half = 3 * self.width
        parts = (("attention", "norm1", slice(0, half)), ("perceptron", "norm2", slice(half, 2 * half)))
        return [
            (f"blocks.{i}.{ours}", f"blocks.{i}.{norm}.weight", rows)
            for i in range(self.layers)
            for ours, norm, rows in parts
        ]

    def _modulation_rows(self, branch: str, rows: slice) -> tuple[Tensor, Tensor]:
        """Weight and bias of shift, scale and gate of a branch."""
        theirs = f"{branch.rpartition('.')[0]}.adaLN_modulation"
        return self._get(f"{theirs}.weight")[rows], self._get(f"{theirs}.bias")[rows]

    def _final_rows(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of shift and scale before the head."""
        theirs = "output_layer.adaLN_modulation"
        return self._get(f"{theirs}.weight"), self._get(f"{theirs}.bias")

    def _clock_at_zero(self) -> Float[Tensor, " C"]:
        """The time embedding of 0: all cosines are 1 and all sines 0."""
        waves = torch.cat([torch.ones(FREQUENCIES), torch.zeros(FREQUENCIES)]).double()
        for layer in (f"{self.layout.clock}.0", f"{self.layout.clock}.2"):
            waves = silu(self._get(f"{layer}.weight") @ waves + self._get(f"{layer}.bias"))
        return waves


def network_part(layout: Layout, stored: StoredTensors) -> tuple[dict[str, Tensor], set[str]]:
    """The tensors of the network under the layout's names, in their order, and the names of unknown other tensors.

    Wrappers (compilation, data-parallel training, trainers) put a prefix before every name. Other parts of a trainer,
    such as its noise schedule, are left out.
    """
    known = {name: value for name, value in stored.tensors.items() if not OTHER_PARTS & set(name.split("."))}
    named = {name.replace(COMPILED, ""): value for name, value in known.items()}
    if len(named) < len(known):
        raise ValueError(f"{stored.file} has names that differ only in {COMPILED}: save one network alone")
    prefixes = [name.removesuffix(layout.embedding) for name in named if f".{name}".endswith(f".{layout.embedding}")]
    if len(prefixes) != 1:
        what = f"{len(prefixes)} networks" if prefixes else f"no {layout.embedding}"
        raise ValueError(
            f"{stored.file} does not have the layout of {layout.name} ({layout.about}): it has {what}\n"
            f"its names are {name_list(set(stored.tensors))}"
        )
    found = {name.removeprefix(prefixes[0]): value for name, value in named.items() if name.startswith(prefixes[0])}
    return found, {name for name in named if not name.startswith(prefixes[0])}


def _sizes(layout: Layout, named: Mapping[str, Tensor], file: Path) -> tuple[int, int, int, int]:
    """Rows, width, width of the time embedding, and layers."""
    clock = f"{layout.clock}.2.bias"
    if clock not in named:
        raise ValueError(f"{file} does not have the layout of {layout.name} ({layout.about}): missing {clock}")
    if named[layout.embedding].ndim != 2 or named[clock].ndim != 1:
        raise ValueError(f"{file}: {layout.embedding} must have 2 dimensions and {clock} 1")
    layers = len({name.split(".")[1] for name in named if name.startswith("blocks.")})
    rows, width = named[layout.embedding].shape
    return rows, width, len(named[clock]), layers


def _check_names(layout: Layout, file: Path, missing: set[str], extra: set[str]) -> None:
    """Raise a ValueError unless the names are those of the layout."""
    if missing or extra:
        lines = [f"{file} does not have the layout of {layout.name} ({layout.about}):"]
        lines += [f"missing {name_list(missing)}"] if missing else []
        lines += [f"unexpected {name_list(extra)}"] if extra else []
        raise ValueError("\n".join(lines))


def _head_width(file: Path, buffers: Mapping[str, Tensor]) -> int | None:
    """The width of an attention head by the constants in a file; None without them."""
    try:
        widths = {head_width(name, buffer) for name, buffer in buffers.items()} - {None}
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    if len(widths) > 1:
        raise ValueError(f"{file}: its rotary embeddings have different widths")
    return widths.pop() if widths else None


def _averaged(stored: StoredTensors, ordered: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averaged parameters under the names of the network's, whose order they have."""
    found, rest = stored.averages[: len(ordered)], stored.averages[len(ordered) :]
    same = len(found) == len(ordered) and all(
        average.shape == value.shape for average, value in zip(found, ordered.values(), strict=True)
    )
    if not same or any(average.ndim for average in rest):  # a noise schedule may add a number
        raise ValueError(
            f"{stored.file}: its averaged parameters do not have the shapes of the network's: set weights=raw to "
            f"import those of the last step"
        )
    return dict(zip(ordered, found, strict=True))


def _modulation(name: str, weight: Tensor, bias: Tensor, norm: Tensor) -> Weights:
    """A modulation with the weights of its norm multiplied into the scale, the second part of its rows."""
    width = len(norm)
    scale = slice(width, 2 * width)
    weight, bias = weight.clone(), bias.clone()
    weight[scale] *= norm[:, None]
    bias[scale] = norm * (1 + bias[scale]) - 1
    return {f"{name}.weight": weight.float(), f"{name}.bias": bias.float()}


def _filled(network: N, state: Weights) -> N:
    """A network on the meta device with these weights, in float32 and evaluation mode."""
    network.to_empty(device="cpu").load_state_dict({name: value.float() for name, value in state.items()})
    return network.eval()
