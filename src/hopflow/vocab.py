"""The token ids of a flow: data tokens first, then masks."""

from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

IDS = (torch.int64, torch.int32)
"""What token ids are of: torch looks nothing up by other integers."""


@dataclass(frozen=True)
class Vocab:
    """Ids 0 … data-1 are data tokens, data … data+masks-1 are masks.

    A network predicts data tokens only and embeds all of them, so a mask can never be generated.
    """

    data: int
    masks: int = 0

    def __post_init__(self) -> None:
        counts = all(isinstance(count, Integral) for count in (self.data, self.masks))
        if not counts or self.data < 1 or self.masks < 0:
            raise ValueError(
                f"a vocabulary needs at least one data token and no negative count, in whole numbers; "
                f"got data={self.data!r}, masks={self.masks!r}"
            )

    @property
    def size(self) -> int:
        """V, the number of data and mask tokens together."""
        return self.data + self.masks

    def is_data(self, x: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        return x < self.data

    @staticmethod
    def check_ids(x: object, shape: str) -> None:
        """Refuse what is no tensor of token ids of this shape, such as "(n, L)"."""
        if not isinstance(x, Tensor) or x.dtype not in IDS or x.ndim != shape.count(",") + 1:
            got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"token ids are a tensor of int64 or int32, {shape}; got {got}")

    def check_data(self, x1: Int[Tensor, "..."]) -> None:
        """Refuse tokens that no data sequence can hold."""
        if x1.numel() == 0:
            return
        low, high = int(x1.min()), int(x1.max())
        if low < 0 or high >= self.data:
            raise ValueError(
                f"token id {low if low < 0 else high} is out of range: this vocabulary's data tokens are "
                f"0 … {self.data - 1}. Was the text tokenised with another tokenizer?"
            )

    def check_logits(self, logits: Float[Tensor, "... W"]) -> None:
        """Refuse a network that predicts anything but data tokens."""
        if logits.shape[-1] != self.data:
            raise ValueError(
                f"a network predicts data tokens only: its logits must end in {self.data} columns; "
                f"got {tuple(logits.shape)}"
            )

    def check_outputs(self, count: int) -> None:
        """The same of a head that is known by its number of outputs."""
        if count != self.data:
            raise ValueError(
                f"a network predicts data tokens only: its head must have {self.data} outputs; got {count}"
            )
