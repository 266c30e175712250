"""The law of a planner's samples, by recursion over the partially filled states."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from ..sampling.planners import Planner, check_planner
from .oracle import CHUNK, Oracle, outer


def planned_law(oracle: Oracle, sampler: Planner) -> Float[Tensor, " D"]:
    """p over data sequences: the result of a planner that starts from the source of this flow.

    States are processed in the order of their filled positions; each passes its probability on to the states that the
    planner's next call can lead to.

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Mask(hf.Vocab(2, masks=1)))
    >>> oracle = hf.exact.Oracle(flow, torch.tensor([0.5, 0.0, 0.0, 0.5]), length=2)  # 00 or 11
    >>> hf.exact.planned_law(oracle, hf.LeftToRight(1)), hf.exact.planned_law(oracle, hf.LeftToRight(2))
    (tensor([0.5000, 0.0000, 0.0000, 0.5000], dtype=torch.float64),
     tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64))
    """
    check_planner(sampler, oracle.flow)
    space, law = oracle.space, oracle.source_law
    noisy = ~oracle.flow.vocab.is_data(space.states)
    for filled in range(oracle.length):
        here = noisy.sum(1) == oracle.length - filled
        p = oracle.probs(oracle.at(filled / oracle.length))[0][here]  # (n, L, V)
        chosen = sampler.choose(p[..., : oracle.flow.vocab.data].log(), noisy[here])
        kernels = torch.where(chosen[..., None], p, one_hot(space.states[here], oracle.flow.vocab.size).to(p))
        mass, law = law[here], torch.where(here, 0.0, law)
        size = max(1, CHUNK // len(space.states))
        for rows, weight in zip(kernels.split(size), mass.split(size), strict=True):
            law = law + weight @ outer(rows)
    return law[space.ids(space.data)]
