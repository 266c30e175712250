"""The path from source to data: random states xt between x0 and x1."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from .schedules import Linear, Schedule, check_time


@dataclass(frozen=True)
class PathSample:
    """A batch of states xt at times t between x0 and x1.

    `rest` is 1 - k(t) and `dk` is k̇(t): (B, 1) for a shared schedule, (B, L) for a position-specific one. 1 - k is
    stored because it cannot be computed from a k that was rounded near 1.
    """

    x0: Int[Tensor, "B L"]
    x1: Int[Tensor, "B L"]
    xt: Int[Tensor, "B L"]
    t: Float[Tensor, " B"]
    rest: Float[Tensor, "B #L"]
    dk: Float[Tensor, "B #L"]
    keep: Bool[Tensor, "B L"] | None = None
    """Positions that count in the loss; None means all. False for padding."""
    labels: Int[Tensor, " B"] | None = None
    """The label of each sequence, -1 for none; None for a network without labels."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arguments of the network: xt and t, and the labels if there are any."""
        return (self.xt, self.t) if self.labels is None else (self.xt, self.t, self.labels)

    def map(self, function: Callable[[Tensor], Tensor]) -> "PathSample":
        """The sample with `function` applied to each of its tensors, such as `lambda x: x.to(device)`."""
        present = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return PathSample(**{name: function(value) for name, value in present.items()})

    def chunk(self, count: int) -> list["PathSample"]:
        """The sample in `count` parts of consecutive sequences."""

        def part(index: int) -> "PathSample":
            return self.map(lambda x: x.chunk(count)[index])

        return [part(index) for index in range(count)]

    def total(self, terms: Float[Tensor, "B L"]) -> Float[Tensor, " B"]:
        """The sum over the positions that count."""
        return (terms if self.keep is None else torch.where(self.keep, terms, 0.0)).sum(1)


@dataclass(frozen=True)
class ConvexPath:
    """xt^i = x1^i with probability k, else x0^i, independently for each position. Eq. (4) [convex_cond_flow]"""

    schedule: Schedule = Linear()

    def sample(
        self,
        x0: Int[Tensor, "B L"],
        x1: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        generator: torch.Generator | None = None,
    ) -> PathSample:
        """Random states at times t."""
        check_time(t)
        return self.at(x0, x1, t, uniform(x1, generator))

    def at(
        self,
        x0: Int[Tensor, "B L"],
        x1: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        u: Float[Tensor, "B L"],
        keep: Bool[Tensor, "B L"] | None = None,
        labels: Int[Tensor, " B"] | None = None,
    ) -> PathSample:
        """The states for uniform numbers u; `keep` marks the positions that count in the loss."""
        self.schedule.check_length(x1.shape[1])
        rest = self.schedule.rest(t[:, None])  # (B, 1) or (B, L)
        return PathSample(x0, x1, torch.where(u < rest, x0, x1), t, rest, self.schedule.dk(t[:, None]), keep, labels)


def uniform(like: Shaped[Tensor, "*shape"], generator: torch.Generator | None) -> Float[Tensor, "*shape"]:
    """Uniform numbers with the shape and device of `like`, drawn on the device of the generator.

    They are float64 where possible: float32 numbers cannot resolve probabilities below 6e-8, and 1e-5 only to 0.5 %.
    """
    device = generator.device if generator is not None else like.device
    dtype = torch.float32 if "mps" in (device.type, like.device.type) else torch.float64
    return torch.rand(like.shape, generator=generator, device=device, dtype=dtype).to(like.device)


def stratified(
    rows: int, strata: int, generator: torch.Generator | None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "rows strata"]:
    """One uniform number per row in each of `strata` equal parts of (0, 1]."""
    u = 1 - torch.rand(rows, strata, generator=generator, dtype=dtype)
    return (u + torch.arange(strata, dtype=dtype)) / strata
