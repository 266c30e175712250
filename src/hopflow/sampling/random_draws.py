"""Random draws: a stream of uniform numbers per sequence, and tokens from one uniform number each.

A stream belongs to a sequence, so that results do not depend on the batch size. Tokens are drawn with float64 accuracy:
float32 noise over 50,000 tokens cuts off the tail of their distribution. So the token is found where the cumulative
probability exceeds a 53-bit uniform number, in two stages: among blocks of tokens, then within one block. Only the sums
of the blocks and one block per row are held in float64.
"""

from collections.abc import Sequence
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..network.precision import widest_float

LIKELIHOOD = 1
"""The family of streams for the noise of likelihoods; samples have family 0."""
BLOCK = 256
"""Tokens per block, about the square root of a large vocabulary, so that both stages are short."""


class RandomStreams:
    """One stream of uniform numbers for each of several sequences, by (seed, index of the sequence).

    The streams are parts of one counter-based generator (Philox), at least 2^128 numbers apart. They do not overlap,
    are equal on every machine, and take no memory.

    Samples and their likelihood use different `family` numbers: a bound holds for noise that is independent of x1, even
    if x1 was drawn with the same seed.
    """

    def __init__(self, seed: int, rows: Sequence[int], family: int = 0) -> None:
        if not (isinstance(seed, Integral) and 0 <= seed < 1 << 64):
            raise ValueError(f"seed must be an integer from 0 to 2^64 - 1, got {seed!r}.")
        counters = ([0, 0, family, row] for row in rows)
        self._streams: list[np.random.Philox] = [np.random.Philox(key=seed, counter=counter) for counter in counters]

    def __len__(self) -> int:
        return len(self._streams)

    def uniform(self, *shape: int, rows: Sequence[int] | None = None) -> Float[Tensor, "..."]:
        """The next numbers in [0, 1) of all sequences, or of those at the places `rows`: (rows, *shape) in float64."""
        chosen = range(len(self)) if rows is None else rows
        raw = np.empty((len(chosen), int(np.prod(shape, dtype=np.int64))), dtype=np.uint64)
        for into, row in zip(raw, chosen, strict=True):
            into[:] = self._streams[row].random_raw(into.size)
        return torch.from_numpy((raw >> np.uint64(11)) * 2.0**-53).view(len(chosen), *shape)


def categorical(log_p: Float[Tensor, "n V"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """One token per row by inversion at u, uniform in [0, 1). Rows need not be normalized; -inf is never drawn.

    >>> categorical(torch.tensor([[0.25, 0.75]]).log().expand(2, 2), torch.tensor([0.2, 0.3]))
    tensor([0, 1])
    """
    p = (log_p - log_p.amax(1, keepdim=True)).exp()
    full = p.shape[1] // BLOCK * BLOCK
    parts = [p[:, :full].unflatten(1, (-1, BLOCK)).sum(2)] if full else []
    parts += [p[:, full:].sum(1, keepdim=True)] if full < p.shape[1] else []
    block, left = inverted(_to_float64(torch.cat(parts, 1)), _to_float64(u))
    column = BLOCK * block[:, None].to(p.device) + torch.arange(min(BLOCK, p.shape[1]), device=p.device)
    inside = p.gather(1, column.clamp(max=p.shape[1] - 1)).masked_fill(column >= p.shape[1], 0)
    place, _ = inverted(_to_float64(inside), left)
    # a row of NaN must not end in a token that does not exist
    return (BLOCK * block.to(p.device) + place.to(p.device)).clamp(max=p.shape[1] - 1)


def gumbel32(log_p: Float[Tensor, "n V"], u: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The usual method, argmax of log p plus float32 Gumbel noise, for comparison: it truncates the tail.

    The noise of each token is a hash of u, so that the result depends on the row only.
    """
    key = (_to_float64(u) * 2.0**53).long().to(log_p.device)[:, None]
    key = key + torch.arange(log_p.shape[1], device=log_p.device) * -7046029254386353131  # splitmix64, from here
    key = (key ^ (key >> 30 & 0x3FFFFFFFF)) * -4658895280553007687
    key = (key ^ (key >> 27 & 0x1FFFFFFFFF)) * -7723592293110705685
    noise = (key >> 40 & 0xFFFFFF).float() / 2**24
    return (log_p - torch.log(-torch.log(noise))).argmax(1)


def inverted(mass: Float[Tensor, "n m"], u: Float[Tensor, " n"]) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The entry at which the cumulative mass exceeds u times the total, and the fraction of that entry below it."""
    sums = mass.cumsum(1)
    target = torch.minimum(u * sums[:, -1], sums[:, -1].nextafter(sums.new_zeros(())))[:, None]  # rounded up to 1
    at = torch.searchsorted(sums, target, right=True).clamp(max=mass.shape[1] - 1)  # never an entry with mass 0
    here = mass.gather(1, at)
    share = 1 - (sums.gather(1, at) - target) / here
    return at[:, 0], share[:, 0].clamp(0, 1)


def _to_float64(x: Tensor) -> Tensor:
    """In float64, on the CPU if the device has no float64: a few hundred numbers per row."""
    return x.double() if widest_float(x.device) == torch.float64 else x.cpu().double()
