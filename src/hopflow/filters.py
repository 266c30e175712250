"""Filter: temperature, top-k, top-p and min-p on the logits of a network."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Filter:
    """Sharpen by temperature first, then keep the likeliest tokens only; by default it changes nothing.

    It acts on what a network says of the context, before a prediction adds the evidence of xt: after it, temperature
    would sharpen "this token stays" as well, and keep source noise.  theory.md §6

    `top_k` keeps so many; `top_p` as few as have this probability together; `min_p` those with at least this part of
    the likeliest one's probability. At temperature 0 the likeliest token is left, the first one of equals.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"temperature must be ≥ 0 and finite (0 takes the likeliest token); got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is a number of tokens to keep, at least 1; got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability in (0, 1]; got {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p is a part of the largest probability, in [0, 1]; got {self.min_p}")

    def __call__(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """Logits to normalised log-probabilities, at least in float32; what is left out gets -inf.

        The default filter returns the logits as they are. A row with NaN becomes NaN.
        """
        if self == Filter():
            return logits
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = logits.amax(1, keepdim=True)
        if self.temperature == 0:
            only = torch.full_like(logits, -torch.inf).scatter(1, logits.argmax(1, keepdim=True), 0.0)
            return torch.where(largest.isnan(), torch.nan, only)
        # from the largest down: divided by 1e-39 even its logarithm would be infinite
        log_p = ((logits - largest) / self.temperature).log_softmax(1)
        for keep in (self._ranked, self._massive, self._near):
            kept = keep(log_p)
            log_p = log_p if kept is None else log_p.masked_fill(~kept, -torch.inf).log_softmax(1)
        return log_p

    def _ranked(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if self.top_k is None or self.top_k >= log_p.shape[1]:
            return None
        return torch.zeros_like(log_p, dtype=torch.bool).scatter(1, log_p.topk(self.top_k, 1).indices, True)

    def _massive(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if self.top_p is None or self.top_p == 1:
            return None
        ordered, order = log_p.sort(stable=True, dim=1, descending=True)
        p = ordered.exp()
        above = p.cumsum(1) - p  # the probability of all likelier tokens
        return torch.zeros_like(log_p, dtype=torch.bool).scatter(1, order, above < self.top_p)

    def _near(self, log_p: Float[Tensor, "n V"]) -> Bool[Tensor, "n V"] | None:
        if not self.min_p:
            return None
        return log_p >= log_p.amax(1, keepdim=True) + math.log(self.min_p)
