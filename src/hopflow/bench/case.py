"""SpeedCase: what a benchmark of a transformer runs, and helpers that the benchmarks share."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeVar

import torch

from ..models import Transformer
from ..recipes.components import kind_of
from ..sources import Source

Case = TypeVar("Case", bound="SpeedCase")


@dataclass(frozen=True)
class SpeedCase:
    """A new transformer on random tokens, which takes as long as a trained one on text."""

    length: int = 128
    tokens: int = 5_000
    size: str = "tiny"
    sources: tuple[str, ...] = ("mask", "uniform")
    seed: int = 0
    device: torch.device = torch.device("cpu")

    GPU_DEFAULTS: ClassVar[dict[str, Any]] = {"tokens": 50_257, "size": "small"}
    """Defaults on a GPU: the paper's size. The defaults of the fields suit a laptop."""

    def __post_init__(self) -> None:
        if self.tokens < 2:
            raise ValueError(f"tokens must be an integer ≥ 2, got {self.tokens}")

    @classmethod
    def on(cls: type[Case], device: torch.device, **settings: Any) -> Case:
        """A case with the defaults of this device."""
        defaults = {} if device.type == "cpu" else cls.GPU_DEFAULTS
        return cls(**{**defaults, **settings}, device=device)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "device": str(self.device)}


def source_by_name(name: str, tokens: int) -> Source:
    """The source of this name, fitted to token frequencies like those of words, 1/rank."""
    counts = (1e9 / torch.arange(1, tokens + 1)).long()
    source: Source = kind_of("source", name).fit(counts)
    return source


def new_transformer(case: SpeedCase, source: Source, initialize: Callable[[Transformer], object]) -> Transformer:
    """A transformer in evaluation mode, with weights that depend on the case's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        model = Transformer(source.vocab, case.size)
        initialize(model)
    return model.to(case.device).eval()


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds that the device needs for this work."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started
