"""The convex path from source to data."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from .schedules import Linear, Schedule, check_time


@dataclass(frozen=True)
class PathSample:
    """A point of the path: xt at time t between x0 and x1.

    `rest` is 1 - k(t) and `dk` its speed k̇(t), (B, 1) for a shared schedule and (B, L) for a position-specific one;
    1 - k is carried along because it cannot be had back from a k that was rounded near 1.
    """

    x0: Int[Tensor, "B L"]
    x1: Int[Tensor, "B L"]
    xt: Int[Tensor, "B L"]
    t: Float[Tensor, " B"]
    rest: Float[Tensor, "B #L"]
    dk: Float[Tensor, "B #L"]
    keep: Bool[Tensor, "B L"] | None = None
    """Where the loss counts: everywhere, but for sequences that were padded."""

    def total(self, terms: Float[Tensor, "B L"]) -> Float[Tensor, " B"]:
        """The sum over the positions that count."""
        return (terms if self.keep is None else torch.where(self.keep, terms, 0.0)).sum(1)


@dataclass(frozen=True)
class ConvexPath:
    """xt^i = x1^i with probability k, else x0^i, each position by itself. Eq. (4) [convex_cond_flow]"""

    schedule: Schedule = Linear()

    def sample(
        self,
        x0: Int[Tensor, "B L"],
        x1: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        generator: torch.Generator | None = None,
    ) -> PathSample:
        check_time(t)
        return self.at(x0, x1, t, uniform(x1, generator))

    def at(
        self,
        x0: Int[Tensor, "B L"],
        x1: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        u: Float[Tensor, "B L"],
        keep: Bool[Tensor, "B L"] | None = None,
    ) -> PathSample:
        """The sample that these uniform numbers decide; `keep` says where its loss counts."""
        self.schedule.check_length(x1.shape[1])
        rest = self.schedule.rest(t[:, None])  # (B, 1) or (B, L)
        return PathSample(x0, x1, torch.where(u < rest, x0, x1), t, rest, self.schedule.dk(t[:, None]), keep)


def uniform(like: Shaped[Tensor, "*shape"], generator: torch.Generator | None) -> Float[Tensor, "*shape"]:
    """Uniform numbers of this shape, drawn on the generator's device, whatever the device they go to.

    In float64 where there is one: a float32 uniform knows chances below 6e-8 not at all, and 1e-5 to half a percent.
    """
    device = generator.device if generator is not None else like.device
    dtype = torch.float32 if "mps" in (device.type, like.device.type) else torch.float64
    return torch.rand(like.shape, generator=generator, device=device, dtype=dtype).to(like.device)
