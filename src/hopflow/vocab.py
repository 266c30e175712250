"""Vocab: the token ids of a flow, data tokens first, then masks."""

from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IDS = (torch.int64, torch.int32)
"""The integer types of token ids; torch accepts no others as indices."""


@dataclass(frozen=True)
class Vocab:
    """Numbers of tokens: ids 0 … data-1 are data tokens, ids data … data+masks-1 are masks.

    A network embeds all tokens but predicts data tokens only, so that a mask is never generated.

    >>> Vocab(data=27, masks=1).size
    28
    """

    data: int
    masks: int = 0

    def __post_init__(self) -> None:
        counts = all(isinstance(count, Integral) for count in (self.data, self.masks))
        if not counts or self.data < 1 or self.masks < 0:
            raise ValueError(
                f"data must be an integer ≥ 1 and masks an integer ≥ 0, got data={self.data!r}, masks={self.masks!r}."
            )

    @property
    def size(self) -> int:
        """V, the number of data tokens and masks."""
        return self.data + self.masks

    def is_data(self, x: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Which tokens are data tokens."""
        return x < self.data

    def position_counts(self, rows: Int[Tensor, "n L"]) -> Int[Tensor, "L Vd"]:
        """How often each data token occurs at each position of these rows."""
        place = rows.cpu().long() + self.data * torch.arange(rows.shape[1])
        return place.flatten().bincount(minlength=rows.shape[1] * self.data).view(-1, self.data)

    def normalized(self, p0: Tensor, owner: str) -> Float[Tensor, "*#L V"]:
        """Token probabilities (V,) or (L, V), divided by their sum, in float64 on the CPU.

        ValueError names their `owner` unless they are ≥ 0 and their sum is 1, but for rounding errors.
        """
        if p0.shape[-1:] != (self.size,) or p0.ndim > 2 or not p0.numel():
            raise ValueError(
                f"{owner}.token_probs() must return one probability per token, shape ({self.size},), "
                f"got {tuple(p0.shape)}; for a distribution per position, shape (L, {self.size})."
            )
        p0 = p0.double().cpu()
        total = p0.sum(-1, keepdim=True)
        if not bool((p0 >= 0).all()) or float((total - 1).abs().max()) > 1e-6:
            worst = int((total[..., 0] - 1).abs().argmax())
            where = "" if p0.ndim == 1 else f" at position {worst}"
            raise ValueError(
                f"the token probabilities of {owner} must be ≥ 0 and sum to 1; their sum{where} is "
                f"{float(total.flatten()[worst]):.6g} and their minimum {float(p0.min()):.3g}. Divide counts by their "
                f"sum."
            )
        return p0 / total

    @staticmethod
    def check_ids(x: object, shape: str) -> None:
        """Raise ValueError unless x is a tensor of token ids with this shape, e.g. "(n, L)"."""
        if not isinstance(x, Tensor) or x.dtype not in IDS or x.ndim != shape.count(",") + 1:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"token ids must be an int64 or int32 tensor of shape {shape}, got {got}.")

    def check_data(self, x1: Int[Tensor, "..."]) -> None:
        """Raise ValueError unless all tokens are data tokens."""
        if x1.numel() == 0:
            return
        low, high = int(x1.min()), int(x1.max())
        if low < 0 or high >= self.data:
            raise ValueError(
                f"token id {low if low < 0 else high} is out of range: data tokens are 0 … {self.data - 1}. "
                f"Was the text tokenized with another tokenizer?"
            )

    def check_logits(self, logits: Float[Tensor, "... W"]) -> None:
        """Raise ValueError unless the logits are over data tokens."""
        if logits.shape[-1] != self.data:
            raise ValueError(
                f"the last dimension of the logits must be {self.data}, the number of data tokens, "
                f"got shape {tuple(logits.shape)}."
            )

    def check_outputs(self, count: int) -> None:
        """The same for a head with this number of outputs."""
        if count != self.data:
            raise ValueError(f"the head must have {self.data} outputs, one per data token, got {count}.")


def require_vocab(vocab: object) -> None:
    """Raise ValueError unless the argument is a Vocab."""
    if not isinstance(vocab, Vocab):
        raise ValueError(f"vocab must be a Vocab, e.g. Vocab(27, masks=1), got {vocab!r}.")
