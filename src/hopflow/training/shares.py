"""Shares: which rows of a global batch a process holds."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """Of every flow batch, the `rank`-th of `world` equal parts.

    An OT batch is several flow batches one after another, so a share of it is that part of each of them.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"a share is one of {self.world} parts, counted from 0; got {self.rank}")

    @classmethod
    def here(cls) -> "Share":
        """Of this process under torch.distributed; everything where that does not run."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def take(self, rows: Shaped[Tensor, "n L"], batch: int) -> Shaped[Tensor, "m L"]:
        """This share's rows of `rows`, flow batches of `batch` rows one after another."""
        return self._parts(rows, batch)[:, self.rank].flatten(0, 1)

    def split(self, rows: Int[Tensor, "n L"], batch: int) -> list[Int[Tensor, "m L"]]:
        """Every process's share."""
        return [part.flatten(0, 1) for part in self._parts(rows, batch).unbind(1)]

    def join(self, parts: list[Int[Tensor, "m L"]], batch: int) -> Int[Tensor, "n L"]:
        """The inverse of `split`."""
        each = batch // self.world
        return torch.stack([part.unflatten(0, (-1, each)) for part in parts], 1).flatten(0, 2)

    def _parts(self, rows: Shaped[Tensor, "n L"], batch: int) -> Shaped[Tensor, "k w b L"]:
        return rows.unflatten(0, (-1, self.world, batch // self.world))
