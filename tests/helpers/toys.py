"""Small random flows for the tests: everything about them can be enumerated."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from hopflow import exact
from hopflow.exact import Joint, Oracle, Space
from hopflow.flow import Flow
from hopflow.predictions import Evidence, Prediction
from hopflow.schedules import Cosine, Linear, Polynomial, Schedule
from hopflow.sources import BagOfWords, Mask, Mixed, MultiMask, Source, Uniform
from hopflow.vocab import Vocab

SOURCES = ("mask", "multimask", "uniform", "bag_of_words", "mixed")
FEW_SOURCES = tuple(pytest.param(n, marks=() if n in ("mask", "uniform") else pytest.mark.slow) for n in SOURCES)
"""For tests that take seconds: the other sources are tested by `make test-slow`."""


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def awake(network: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """With random numbers where training starts from zero: every part takes part."""
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator(seed), dtype=torch.float64)
            parameter += noise * parameter.shape[-1] ** -0.5  # no larger than it will be in use
    return network


def dirichlet(*shape: int, seed: int, sharpness: float = 1.0) -> Tensor:
    """Random laws along the last axis."""
    return (sharpness * torch.randn(*shape, generator=generator(seed), dtype=torch.float64)).softmax(-1)


def source(name: str, data: int = 3, seed: int = 0) -> Source:
    if name == "mask":
        return Mask(Vocab(data, 1))
    if name == "multimask":
        return MultiMask(Vocab(data, 2))
    if name == "uniform":
        return Uniform(Vocab(data))
    if name == "mixed":
        return Mixed(Vocab(data, 1), uniform=0.3)
    return BagOfWords(Vocab(data), tuple(dirichlet(data, seed=seed).tolist()))


@dataclass(frozen=True, eq=False)
class Clocked:
    """A random network with bounded logits that depend on the state and, gently, on the time."""

    space: Space
    still: Tensor
    moving: Tensor

    @classmethod
    def random(cls, space: Space, seed: int, size: float = 1.0) -> "Clocked":
        shape = (2, len(space.states), space.length, space.vocab.data)
        still, moving = size * torch.randn(shape, generator=generator(seed), dtype=torch.float64)
        return cls(space, still, moving)

    def __call__(self, xt: Tensor, t: Tensor) -> Tensor:
        ids = self.space.ids(xt)
        return self.still[ids] + torch.sin(2 * t.double())[:, None, None] * self.moving[ids]


def oracle(
    name: str = "uniform",
    *,
    data: int = 3,
    length: int = 2,
    seed: int = 0,
    network: Callable[[Tensor, Tensor], Tensor] | str | None = "random",
    prediction: Prediction | None = None,
    schedule: Schedule | None = None,
    joint: Joint | None = None,
) -> Oracle:
    """A flow on data^length sequences, with a random network unless another is given; None is the perfect one."""
    flow = Flow(source(name, data, seed), schedule=schedule or Linear(), prediction=prediction or Evidence())
    q = dirichlet(data**length, seed=seed + 1) if joint is None else joint.matrix(Space(flow.vocab, length)).sum(0)
    if network == "random":
        network = Clocked.random(Space(flow.vocab, length), seed + 2)
    return exact.Oracle(flow, q, length, network, joint)  # type: ignore[arg-type]


def random_flows(count: int) -> list[Oracle]:
    """Flows of every source and schedule with random networks; small vocabularies and lengths in turn."""
    schedules = (Linear(), Polynomial(2.0), Cosine())
    sizes = dict.fromkeys(SOURCES, ((2, 2), (3, 2), (2, 3), (4, 1))) | {"multimask": ((2, 2), (3, 1), (2, 2), (4, 1))}
    flows = []
    for i in range(count):
        name = SOURCES[i % len(SOURCES)]
        data, length = sizes[name][i // len(SOURCES) % 4]
        flows.append(oracle(name, data=data, length=length, seed=i, schedule=schedules[i % 3]))
    return flows


def random_joint(space: Space, seed: int, source_law: Tensor | None = None) -> Joint:
    """A coupling with every pair possible; with given source law, that is its first marginal."""
    matrix = torch.rand(len(space.states), len(space.data), generator=generator(seed), dtype=torch.float64)
    if source_law is None:
        return Joint.of(space, matrix / matrix.sum())
    return Joint.of(space, matrix / matrix.sum(1, keepdim=True) * source_law[:, None])


def hamming(size: int) -> Tensor:
    return 1 - torch.eye(size, dtype=torch.float64)
