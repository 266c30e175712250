"""Bounds on coupled pairs: x0 and x1 paired by a coupling, as in training.  theory.md §4"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..couplings import Coupling
from ..flow import Flow
from ..network.network import Network
from .control_variates import subtract_controls
from .estimate import Estimate
from .estimator import BoundEstimator, choose_draws, only_first_redraws_count, repeat_rows
from .integrands import Rates


def coupled_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    coupling: Coupling,
    *,
    minibatch: int = 64,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    embedding: Float[Tensor, "V D"] | None = None,
    characters: float | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """`coupled_info`: B_0 on pairs of a coupling, plus the information of the pairing, which makes it a bound.

    `minibatch` is the number of rows that are paired with each other, `embedding` the table for costs that need it.
    With labels, rows are paired within their label only, as in training: the information is that of these groups.
    The other arguments are those of `nll_bound`.  theory.md §4
    """
    estimator = BoundEstimator(model, flow, draws, seed, batch, precision=precision)
    return _estimate(
        estimator, x1, coupling, minibatch, embedding, labels, with_information=True, characters=characters
    )


def coupled_number(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    coupling: Coupling,
    *,
    minibatch: int = 64,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    embedding: Float[Tensor, "V D"] | None = None,
    characters: float | None = None,
    precision: str = "auto",
    labels: Int[Tensor, " n"] | None = None,
) -> Estimate:
    """`coupled`: the paper's number for models trained with OT, Alg. 2 [alg1] on coupled pairs. It is *not* a bound.

    The arguments are those of `coupled_bound`.
    """
    estimator = BoundEstimator(model, flow, draws, seed, batch, precision=precision)
    return _estimate(
        estimator, x1, coupling, minibatch, embedding, labels, with_information=False, characters=characters
    )


def _estimate(
    estimator: BoundEstimator,
    x1: Int[Tensor, "n L"],
    coupling: Coupling,
    minibatch: int,
    embedding: Tensor | None,
    labels: Int[Tensor, " n"] | None,
    with_information: bool,
    **what: object,
) -> Estimate:
    """B_0 on coupled pairs; the rows of a minibatch depend on each other, so the error is that of minibatches."""
    flow = estimator.flow
    x1 = _checked(estimator, x1, minibatch, labels)
    by = choose_draws(None, only_first_redraws_count(flow))
    batches = x1.split(minibatch)
    groups = [None] * len(batches) if labels is None else labels.to(x1.device).split(minibatch)
    replicates, strata = estimator.layout(len(batches))
    generator = torch.Generator().manual_seed(estimator.seed)
    rates, tables, information = Rates(flow.schedule, 0.0), [], []
    with estimator.evaluation_mode():
        for rows, group in zip(batches, groups, strict=True):
            for _ in range(replicates):  # fresh source rows each time
                x0 = flow.source.sample(*rows.shape, generator=generator, device=x1.device)
                pairs = coupling.pair(x0, rows, generator, embedding=embedding, network=estimator.model, group=group)
                paired, own = repeat_rows(strata, pairs.x1, group)
                x0, shape = pairs.x0.repeat_interleave(strata, 0), (minibatch, 1, strata)
                tables.append(estimator.integrate(rates, by, x0, paired, shape, generator, own))
                information.append(with_information * pairs.information)
    values, columns = (torch.stack(table).flatten(1, 3) for table in zip(*tables, strict=True))
    units = len(batches), replicates, minibatch * strata
    table = subtract_controls(values.view(units), columns.view(*units, -1)).mean(2)
    table = table + torch.tensor(information, dtype=table.dtype).view(units[:2])
    is_bound = with_information or coupling.is_identity
    name = "coupled_info" if with_information else "coupled"
    what |= {"quantity": name, "eta": 0.0, "is_bound": is_bound, "coupling": type(coupling).__name__}
    return estimator.result(table, x1, replicates * (strata + estimator.needs_end_correction(rates)), **what)


def _checked(
    estimator: BoundEstimator, x1: Int[Tensor, "n L"], minibatch: int, labels: Int[Tensor, " n"] | None
) -> Int[Tensor, "n L"]:
    x1 = estimator.checked(x1, labels)
    flow = estimator.flow
    if not flow.prediction.has_finite_bounds(flow.source):
        raise ValueError(f"the coupled bound is infinite with {type(flow.prediction).__name__}. Use Evidence().")
    if not 1 <= minibatch <= len(x1):
        raise ValueError(f"minibatch must be an integer from 1 to {len(x1)}, the number of sequences, got {minibatch}.")
    if len(x1) % minibatch:
        raise ValueError(
            f"{len(x1)} sequences do not split into minibatches of {minibatch}, and a smaller minibatch would be a "
            f"different coupling: pass x1[:{len(x1) // minibatch * minibatch}] or another minibatch."
        )
    return x1
