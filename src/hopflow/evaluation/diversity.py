"""Diversity within a sequence: entropy of its tokens, shares of distinct n-grams and of recently seen tokens.

Repetitive text has a low generative perplexity, so report these numbers with it. `metrics.METRICS` names them.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def entropy(tokens: Int[Tensor, "n L"]) -> Float[Tensor, " n"]:
    """Entropy of the token frequencies within each sequence, in nats: log L if all tokens differ, 0 if all are equal.

    Table 12 [tab:entropy_results_multiline]
    """
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
