"""Filter: temperature, top-k, top-p and min-p on the logits of a network."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Filter:
    """Divides the logits by a temperature, then keeps the most probable tokens; by default it changes nothing.

    It is applied to the logits of the network, before the prediction adds the evidence of xt. Applied afterwards, a low
    temperature would favor the current token and keep source noise.  theory.md §6

    `top_k` keeps the k most probable tokens, `top_p` the fewest tokens whose probabilities sum to at least p, `min_p`
    the tokens with at least this fraction of the largest probability. Temperature 0 keeps the most probable token, the
    first one in case of a tie.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.temperature, Real) and 0 <= self.temperature < math.inf):
            raise ValueError(
                f"temperature must be ≥ 0 and finite (0 = the most probable token), got {self.temperature!r}."
            )
        if self.top_k is not None and not (isinstance(self.top_k, Integral) and self.top_k >= 1):
            raise ValueError(f"top_k must be an integer ≥ 1, got {self.top_k!r}.")
        if self.top_p is not None and not (isinstance(self.top_p, Real) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be a number > 0 and ≤ 1, got {self.top_p!r}.")
        if self.min_p is not None and not (isinstance(self.min_p, Real) and 0 <= self.min_p <= 1):
            raise ValueError(f"min_p must be a number from 0 to 1, got {self.min_p!r}.")

    def __call__(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """Normalized log-probabilities in float32 or float64, with -inf for removed tokens.

        The default filter returns the logits unchanged. A row that is no distribution, because it contains NaN or its
        largest logit is infinite, becomes NaN.
        """
        if self == Filter():
            return logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = logits.amax(1, keepdim=True)
        if self.temperature == 0:
            only = torch.full_like(logits, -torch.inf).scatter(1, logits.argmax(1, keepdim=True), 0.0)
            return torch.where(largest.isfinite(), only, torch.nan)
        # the largest is subtracted first: logits divided by 1e-39 would be infinite
        log_p = ((logits - largest) / max(self.temperature, _smallest(logits))).log_softmax(1)
        for keep in (self._top_k, self._top_p, self._min_p):
            kept = keep(log_p)
            log_p = log_p if kept is None else log_p.masked_fill(~kept, -torch.inf).log_softmax(1)
        return log_p

    def _top_k(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if self.top_k is None or self.top_k >= log_p.shape[1]:
            return None
        return torch.zeros_like(log_p, dtype=torch.bool).scatter(1, log_p.topk(self.top_k, 1).indices, True)

    def _top_p(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if self.top_p is None or self.top_p == 1:
            return None
        ordered, order = log_p.sort(stable=True, dim=1, descending=True)
        p = ordered.exp()
        above = p.cumsum(1) - p  # the probability of all more probable tokens
        return torch.zeros_like(log_p, dtype=torch.bool).scatter(1, order, above < max(self.top_p, _smallest(p)))

    def _min_p(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if not self.min_p:
            return None
        return log_p >= log_p.amax(1, keepdim=True) + math.log(self.min_p)


def _smallest(numbers: Tensor) -> float:
    """The smallest normal number of a dtype: a smaller one may be rounded to 0."""
    return torch.finfo(numbers.dtype).smallest_normal
