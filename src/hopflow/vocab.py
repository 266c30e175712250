"""Vocab: the token ids of a flow, data tokens first, then masks; and distributions over them."""

from copy import copy
from dataclasses import dataclass
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .network.precision import widest_float

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
        got = repr(vocab) if isinstance(vocab, int | str | None) else type(vocab).__name__
        raise ValueError(f"vocab must be a Vocab, e.g. Vocab(27, masks=1), got {got}.")


class TokenDistribution:
    """Probabilities over tokens (V,), or for each position (L, V), with a copy on each device that asks for them.

    The last dimension of tokens is their position, except in what `at_positions` returns.
    """

    def __init__(self, probs: Float[Tensor, "*#L V"], owner: str) -> None:
        self.probs, self.owner = probs, owner
        self.shared = probs.ndim == 1
        self._positions: Tensor | None = None
        self._copies: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._none_below: dict[tuple[int, str], Tensor] = {}

    def at_positions(self, positions: Int[Tensor, " n"]) -> "TokenDistribution":
        """These probabilities for n tokens at these positions; copies on devices are shared."""
        found = copy(self)
        found._positions = positions
        return found

    def check_length(self, length: int) -> None:
        """Raise ValueError, which names the owner, if these are the probabilities of another number of positions."""
        if not self.shared and length != len(self.probs):
            raise ValueError(
                f"{self.owner} has a distribution for each of {len(self.probs)} positions, got sequences of "
                f"{length} tokens: use sequences of {len(self.probs)}, or a source for this length."
            )

    def at(self, u: Float[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Tokens by inversion at uniform numbers u in [0, 1), on the device of u."""
        # right=True, so that u = 0 never draws a token of probability 0
        _, cumulative, last = self._on(u.device)
        if self.shared:
            return torch.searchsorted(cumulative, u.contiguous(), right=True).clamp(max=last)
        positions = self.positions_of(u)
        if self._positions is not None:
            found = torch.searchsorted(cumulative[positions], u[:, None], right=True)[:, 0]
            return found.clamp(max=last[positions])
        found = torch.searchsorted(cumulative, u.reshape(-1, u.shape[-1]).T.contiguous(), right=True)
        return found.T.reshape(u.shape).clamp(max=last)

    def of(self, x: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The probability of each token, on the device of x."""
        probs = self._on(x.device)[0]
        return probs[x] if self.shared else probs[self.positions_of(x), x]

    def on(self, device: torch.device) -> Float[Tensor, "*#L V"]:
        """All probabilities on a device; a row for each token of `at_positions`."""
        probs = self._on(device)[0]
        return probs if self._positions is None else probs[self._positions.to(device)]

    def none_below(self, count: int, device: torch.device) -> Bool[Tensor, " #L"]:
        """For each position, or once, whether all tokens below `count` have probability 0; copied once per device."""
        key = count, str(device)  # a copy in every call would make the host wait for a GPU
        if key not in self._none_below:
            self._none_below[key] = (self.probs[..., :count] == 0).all(-1).view(-1).to(device)
        return self._none_below[key]

    def positions_of(self, x: Tensor) -> Int[Tensor, " n"]:
        """The position of each token: those of `at_positions`, or the last dimension of x."""
        if self._positions is not None:
            return self._positions.to(x.device)
        self.check_length(x.shape[-1] if x.ndim else 1)
        return torch.arange(x.shape[-1], device=x.device)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """The probabilities, their cumulative sum and the last possible token on a device; copied once per device."""
        key = str(device)
        if key not in self._copies:
            dtype = widest_float(device)
            last = torch.where(self.probs > 0, torch.arange(self.probs.shape[-1]), 0).amax(-1)
            copies = self.probs.to(device, dtype), self.probs.cumsum(-1).to(device, dtype), last.to(device)
            self._copies[key] = copies
        return self._copies[key]
