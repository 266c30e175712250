"""Perfect: the exact posterior of a small flow as a network, for samplers and estimators."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow
from ..predictions import Evidence
from .space import Space


@dataclass(frozen=True, eq=False)
class Perfect:
    """A network whose prediction is the exact posterior for independent pairs, by a sum over all data sequences.

    The sum leaves position i out, as the logits of Evidence do; for a prediction that adds no evidence, the logits
    contain it.
    """

    flow: Flow
    q: Float[Tensor, " D"]
    length: int

    def __call__(self, xt: Int[Tensor, "B L"], t: Float[Tensor, " B"]) -> Float[Tensor, "B L Vd"]:
        data = Space(self.flow.vocab, self.length).data
        rest = self.flow.schedule.rest(t.double()[:, None])
        p0 = self.flow.source.probs(xt, torch.float64)
        # (B, D, L): p(xt^j | x1^j) for every data sequence
        seen = (rest * p0)[:, None] + (1 - rest)[:, None] * (xt[:, None] == data)
        logits = []
        for i in range(self.length):
            others = torch.cat([seen[..., :i], seen[..., i + 1 :]], -1).prod(-1) * self.q  # (B, D)
            out = torch.zeros(len(xt), self.flow.vocab.data, dtype=torch.float64)
            logits.append(out.index_add(1, data[:, i], others).log())
        context = torch.stack(logits, 1)
        context = torch.where(torch.isinf(context).all(-1, keepdim=True), 0.0, context)  # states of probability 0
        if self.flow.prediction.has_finite_bounds(self.flow.source):
            return context
        return Evidence().log_probs(context, xt, rest.expand(xt.shape), self.flow.source)
