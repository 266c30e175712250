"""Sharding: which rows of a global batch each process of a run holds."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Share:
    """The `rank`-th of `world` equal parts of every flow batch.

    An OT batch consists of several consecutive flow batches. A share of it is that part of each of them.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be between 0 and world - 1 = {self.world - 1}, got {self.rank}.")

    @classmethod
    def here(cls) -> "Share":
        """The share of this process under torch.distributed; the complete batch if that is not initialized."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def take(self, rows: Shaped[Tensor, "n L"], batch: int) -> Shaped[Tensor, "m L"]:
        """The rows of this share; `rows` holds consecutive flow batches of `batch` rows."""
        return self._parts(rows, batch)[:, self.rank].flatten(0, 1)

    def split(self, rows: Int[Tensor, "n L"], batch: int) -> list[Int[Tensor, "m L"]]:
        """The rows of every process, by rank."""
        return [part.flatten(0, 1) for part in self._parts(rows, batch).unbind(1)]

    def join(self, parts: list[Int[Tensor, "m L"]], batch: int) -> Int[Tensor, "n L"]:
        """The inverse of `split`."""
        each = batch // self.world
        return torch.stack([part.unflatten(0, (-1, each)) for part in parts], 1).flatten(0, 2)

    def _parts(self, rows: Shaped[Tensor, "n L"], batch: int) -> Shaped[Tensor, "k w b L"]:
        return rows.unflatten(0, (-1, self.world, batch // self.world))
