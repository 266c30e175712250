"""One vocabulary, every source on it, and points of their paths, for the tests of single modules."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from toys import generator

from hopflow import sources
from hopflow.paths import ConvexPath, PathSample
from hopflow.predictions import Prediction
from hopflow.schedules import Linear, Schedule
from hopflow.sources import Source
from hopflow.vocab import Vocab

VOCAB = Vocab(data=3, masks=2)
LINEAR = Linear()


@dataclass(frozen=True)
class Ramp(Source):
    """A source with `token_probs` only: data tokens and masks, with increasing probabilities from 0 on."""

    def token_probs(self):
        weights = torch.arange(self.vocab.size, dtype=torch.float64)
        return weights / weights.sum()


*SHARED, BY_POSITION = sources.examples(VOCAB)
SOURCES: tuple[Source, ...] = (*SHARED, Ramp(VOCAB))
"""Sources for sequences of every length; BY_POSITION is for sequences of 4 tokens."""


def name(component: object) -> str:
    """What a parametrised test calls a component."""
    return type(component).__name__


def sample_at(
    source: Source,
    t: Tensor,
    length: int = 2,
    seed: int = 0,
    schedule: Schedule = LINEAR,
) -> PathSample:
    """Random pairs of this source at these times."""
    x1 = torch.randint(source.vocab.data, (len(t), length), generator=generator(seed))
    x0 = source.sample(len(t), length, generator=generator(seed + 1))
    return ConvexPath(schedule).sample(x0, x1, t, generator(seed + 2))


def random_logits(sample: PathSample, source: Source, seed: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*sample.xt.shape, source.vocab.data, generator=generator(seed), dtype=torch.float64).to(dtype)


def whole_rows(logits: Tensor, sample: PathSample, prediction: Prediction, source: Source) -> Tensor:
    """P over the whole vocabulary in float64, masks with probability 0."""
    rest = sample.rest.double().expand(sample.xt.shape)
    p = prediction.log_probs(logits.double(), sample.xt, rest, source).exp()
    return torch.cat([p, p.new_zeros(*p.shape[:-1], source.vocab.masks)], -1)


class Allocations(TorchDispatchMode):
    """Records the size of every tensor made inside; views of what was there before do not count."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.made: dict[int, int] = {}
        self._kept: list[Tensor] = []  # alive, so that no storage is counted as another one

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in self.known:
                self._kept.append(value)
                storage = value.untyped_storage()
                self.made[storage.data_ptr()] = storage.nbytes() // value.element_size()
        return out

    @property
    def largest(self) -> int:
        return max(self.made.values())
