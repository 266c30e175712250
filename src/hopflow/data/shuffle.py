"""The order in which the rows of a corpus are visited, as a function of (seed, epoch, index)."""

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8


def shuffled(index: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The images of `index` under this epoch's permutation of 0 … size-1, which is never stored.

    A Feistel network permutes the next power of two; it is applied again to an image outside the range until the
    image is inside (cycle walking), which makes the map a bijection of the range.
    """
    if size < 1:
        raise ValueError(f"size must be an integer ≥ 1, got {size}")
    if index.size and (int(index.min()) < 0 or int(index.max()) >= size):
        raise ValueError(f"index must be from 0 to {size - 1}, got {int(index.min())} … {int(index.max())}")
    keys, bits = _keys(seed, epoch), (size - 1).bit_length()
    image = _feistel(index.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(image >= size)
    while outside.size:
        image[outside] = _feistel(image[outside], bits, keys)
        outside = outside[image[outside] >= size]
    return image.astype(np.int64)


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    digest = hashlib.blake2b(f"order/{int(seed)}/{int(epoch)}".encode(), digest_size=8 * ROUNDS).digest()
    return [np.uint64(int.from_bytes(digest[8 * i : 8 * i + 8], "big")) for i in range(ROUNDS)]


def _feistel(x: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 0 … 2^bits - 1: the halves are alternately xored with a hash of the other."""
    low = bits - bits // 2
    low_mask, high_mask = np.uint64((1 << low) - 1), np.uint64((1 << (bits - low)) - 1)
    left, right = x >> np.uint64(low), x & low_mask
    for turn, key in enumerate(keys):
        if turn % 2 == 0:
            right = right ^ (_mix(left ^ key) & low_mask)
        else:
            left = left ^ (_mix(right ^ key) & high_mask)
    return (left << np.uint64(low)) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A 64-bit finaliser (multiply and shift); uint64 arithmetic wraps around, as it should."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
