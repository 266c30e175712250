"""Diversity: how varied each sequence is in itself.

A judge likes a text that repeats itself: a generative perplexity means little without these numbers beside it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .measured import Measured

GRAMS = (1, 2, 3, 4)
REACHES = (16, 32, 128)
"""Tokens back that `recent` looks."""


@dataclass(frozen=True)
class Diversity:
    """Means over sequences, with their standard errors.

    `entropy_bits` is that of the token frequencies within a sequence: log2 L where all tokens differ, 0 where all are
    the same (Table 12 [tab:entropy_results_multiline]). `distinct[n]` is the share of distinct ones among the n-grams
    of a sequence, `repeated[n]` the rest: those that occurred before in it. `recent[l]` is the share of tokens that
    occurred among the l before them. n-grams longer than the sequences are left out.
    """

    entropy_bits: Measured
    entropy_nats: Measured
    distinct: dict[int, Measured]
    repeated: dict[int, Measured]
    recent: dict[int, Measured]

    def __iter__(self) -> Iterator[Measured]:
        yield from (self.entropy_bits, self.entropy_nats)
        for family in (self.distinct, self.repeated, self.recent):
            yield from family.values()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def diversity(tokens: Int[Tensor, "n L"]) -> Diversity:
    """Of sequences of one length, by their token ids."""
    if not tokens.numel():
        raise ValueError(f"diversity needs sequences with at least one token; got shape {tuple(tokens.shape)}")
    nats = Measured.mean("entropy_nats", entropy(tokens), "nats")
    shares = {n: distinct(tokens, n) for n in GRAMS if n <= tokens.shape[1]}
    return Diversity(
        nats.times(1 / math.log(2), "entropy_bits", "bits"),
        nats,
        {n: Measured.mean(f"distinct_{n}", share, f"of {n}-grams") for n, share in shares.items()},
        {n: Measured.mean(f"repeated_{n}", 1 - share, f"of {n}-grams") for n, share in shares.items()},
        {reach: Measured.mean(f"recent_{reach}", recent(tokens, reach), "of tokens") for reach in REACHES},
    )


def entropy(tokens: Int[Tensor, "n L"]) -> Float[Tensor, " n"]:
    """Nats of the token frequencies within each sequence."""
    rows, counts = _tally(tokens)
    share = counts.double() / tokens.shape[1]
    return torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device).index_add(
        0, rows, torch.special.entr(share)
    )


def distinct(tokens: Int[Tensor, "n L"], n: int) -> Float[Tensor, " n"]:
    """The share of distinct ones among the n-grams of each sequence."""
    if not 1 <= n <= tokens.shape[1]:
        raise ValueError(f"sequences of {tokens.shape[1]} tokens have no {n}-grams")
    grams = _grams(tokens, n)
    rows, _ = _tally(grams)
    return rows.bincount(minlength=len(grams)).double() / grams.shape[1]


def recent(tokens: Int[Tensor, "n L"], reach: int) -> Float[Tensor, " n"]:
    """The share of the tokens of each sequence that occurred among the `reach` tokens before them."""
    order = tokens.argsort(dim=1, stable=True)  # equal tokens side by side, in order of their places
    ordered = tokens.gather(1, order)
    near = (ordered[:, 1:] == ordered[:, :-1]) & (order.diff(dim=1) <= reach)
    return near.sum(1).double() / tokens.shape[1]


def _grams(tokens: Tensor, n: int) -> Tensor:
    """One number for each n-gram, equal where they are equal: grown token by token, so that no number overflows."""
    _, tokens = tokens.unique(return_inverse=True)
    kinds, grams = int(tokens.max()) + 1, tokens
    for i in range(1, n):
        _, grams = (grams[:, :-1] * kinds + tokens[:, i:]).unique(return_inverse=True)
    return grams


def _tally(ids: Tensor) -> tuple[Tensor, Tensor]:
    """For every distinct id of every sequence: which sequence, and how often."""
    _, ids = ids.unique(return_inverse=True)
    kinds = int(ids.max()) + 1
    rows = torch.arange(len(ids), device=ids.device)[:, None]
    found, counts = (rows * kinds + ids).unique(return_counts=True)
    return found // kinds, counts
