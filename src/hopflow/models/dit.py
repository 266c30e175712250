"""DiT: the diffusion transformer of MDLM, Duo, SEDD, flow_matching and GIDD, for weights of these projects.

Its blocks are those of `Transformer`. The projects differ from it, and from each other, in the number that
the network embeds as its time: a `TimeInput`. `hopflow import` makes these networks (adapters/import_weights.py).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from ..vocab import Vocab
from .blocks import zero
from .sizes import Size
from .transformer import TIME_WIDTH, TimedBranch, TimedNorm, TimeEmbedding, Transformer

WIDEST = 1 << 16
"""Largest width of the time embedding: a damaged file must not allocate all memory."""


class TimeInput(ABC):
    """The number that a network embeds as its time, as a function of hopflow's t (0: source, 1: data)."""

    @abstractmethod
    def value(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """The number whose sines and cosines are embedded."""


@dataclass(frozen=True)
class TotalNoise(TimeInput):
    """σ = -log k, the total noise of MDLM, Duo and SEDD, for the linear schedule k = t.

    `smallest` is the smallest k in training; earlier states are embedded like it.
    """

    smallest: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.smallest < 1:
            raise ValueError(f"smallest must be > 0 and < 1, got {self.smallest}.")

    def value(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return -t.clamp(min=self.smallest).log()


@dataclass(frozen=True)
class DataTime(TimeInput):
    """t itself, as in flow_matching: 0 is the source, 1 the data."""

    def value(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return t


@dataclass(frozen=True)
class NoiseTime(TimeInput):
    """1 - t, as in GIDD: 0 is the data, 1 the noise. `margin` is the distance from both ends in training."""

    margin: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 0.5:
            raise ValueError(f"margin must be ≥ 0 and < 0.5, got {self.margin}.")

    def value(self, t: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        return (1 - t).clamp(self.margin, 1 - self.margin)


class DiT(Transformer):
    """A `Transformer` that embeds `time_input` of t, with frequencies from 1 down to 1e-4 radians per unit.

    `condition_width` is the width of the time embedding.
    """

    older_defaults: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        vocab: Vocab,
        size: str | Size = "small",
        *,
        time_input: TimeInput,
        condition_width: int = TIME_WIDTH,
        dropout: float = 0.1,
        recompute: bool = False,
    ) -> None:
        if not 1 <= condition_width <= WIDEST:
            raise ValueError(f"condition_width must be from 1 to {WIDEST}, got {condition_width}.")
        super().__init__(vocab, size, dropout=dropout, recompute=recompute)
        self.time_input, self.condition_width = time_input, condition_width
        self.clock = InputEmbedding(time_input, condition_width)
        for part in list(self.modules()):
            if isinstance(part, TimedBranch | TimedNorm):
                part.modulation = zero(nn.Linear(condition_width, part.modulation.out_features))


class InputEmbedding(TimeEmbedding):
    """The sines and cosines of a time input, through two linear layers."""

    def __init__(self, time_input: TimeInput, width: int) -> None:
        super().__init__(width, fastest=1.0)
        self.time_input = time_input

    def forward(self, t: Float[Tensor, " B"]) -> Float[Tensor, "B C"]:
        out: Tensor = super().forward(self.time_input.value(t))
        return out


EXAMPLES: tuple[TimeInput, ...] = (TotalNoise(), DataTime(), NoiseTime())
