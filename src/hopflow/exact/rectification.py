"""Rectification: the pairs (x0, x1) that a flow makes of its source, as a coupling for the next flow."""

from numbers import Integral

import torch
from jaxtyping import Float
from torch import Tensor

from ..velocities import Eta
from . import kolmogorov
from .oracle import CHUNK, EDGE, Oracle, outer
from .space import Joint


def rectify(oracle: Oracle, steps: int | None = None, eta: Eta = 0.0) -> Joint:
    """The distribution of (x0, x1), where x1 is what the sampler of this flow makes of the source sequence x0.

    steps=None is the continuous sampler. `Oracle(flow, q, length, joint=rectify(oracle))` is the rectified flow with a
    perfect network: in continuous time its law is that of `oracle`, and its jumps are at most as many.

    >>> import torch, hopflow as hf
    >>> flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    >>> first = hf.exact.Oracle(flow, torch.full((9,), 1 / 9), length=2)
    >>> second = hf.exact.Oracle(flow, first.q, 2, joint=hf.exact.rectify(first))
    >>> f"{first.jumps():.4f} {second.jumps():.4f}"  # 1/e fewer for product data that is like the noise
    '1.3333 0.8428'
    """
    if steps is not None and not (isinstance(steps, Integral) and steps >= 1):
        raise ValueError(f"steps must be an integer ≥ 1, or None for continuous time, got {steps!r}.")
    pairs = _after_flow(oracle, eta) if steps is None else _after_steps(oracle, eta, steps)
    on_data = pairs[:, oracle.space.ids(oracle.space.data)].clamp(min=0.0)  # rounding: -1e-17
    return Joint.of(oracle.space, on_data / on_data.sum())


def _after_flow(oracle: Oracle, eta: Eta) -> Float[Tensor, "S S"]:
    return kolmogorov.terminal_pairs(oracle.space, oracle.rates(eta), oracle.source_law, -EDGE, EDGE)


def _after_steps(oracle: Oracle, eta: Eta, steps: int) -> Float[Tensor, "S S"]:
    pairs = torch.diag(oracle.source_law)
    for now, gain, eta_now in oracle.steps(eta, steps):
        kernels = oracle.kernels(oracle.probs(now), now, gain, eta_now)[0]  # (S, L, V)
        after = torch.zeros_like(pairs)
        size = max(1, CHUNK // len(pairs))
        for rows, mass in zip(kernels.split(size), pairs.split(size, 1), strict=True):
            after += mass @ outer(rows)
        pairs = after
    return pairs
