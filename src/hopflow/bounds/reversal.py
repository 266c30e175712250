"""The reversal bound: a tight bound on the negative log-likelihood of the N-step sampler.  theory.md §7

Paths are drawn backwards from x1 by the time reversal of the flow, with importance weights. The mean weight is the
probability of x1 under the sampler; minus the log of a mean of K weights is an upper bound for every K.
"""

from collections.abc import Callable
from numbers import Integral, Real
from typing import TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..flow import Flow, check_network
from ..network.network import Network, check_labels, device_of, to_device_of
from ..sampling.generate import SamplingOptions, generate
from ..sampling.random_draws import LIKELIHOOD, RandomStreams
from ..system.hints import did_you_mean
from ..velocities import Eta, eta_at
from .reversal_estimate import ReversalEstimate
from .reversal_paths import ReversedPaths

__all__ = ["ReversalEstimate", "ReversalOptions", "is_consistent", "reversal_bound", "reversal_certificate"]


class ReversalOptions(TypedDict, total=False):
    """Keywords of `reversal_bound` and `reversal_certificate`; `DEFAULTS` contains the default values."""

    steps: int
    """Number of steps of the sampler (default 32)."""
    paths: int
    """Number of reversed paths per sequence (default 8)."""
    eta: Eta
    """Strength of the sampler's corrector (default 0)."""
    gamma: float
    """Exponent of the reversal in [0, 1] (default 1, the reversal itself); lower values help inaccurate networks. Tune
    it on other data."""
    x0: Network | None
    """Network (xt, t) -> logits (B, L, V) for p_{0|t}, from which tokens are redrawn; at η = 0 only (default None)."""
    seed: int
    """Seed of the random numbers (default 0)."""
    batch: int | None
    """Paths per network call; a value that suits the device by default."""
    precision: str
    """Float type of the network up to its head: auto, float32 or bf16 (default auto)."""


DEFAULTS: ReversalOptions = {
    "steps": 32,
    "paths": 8,
    "eta": 0.0,
    "gamma": 1.0,
    "x0": None,
    "seed": 0,
    "batch": None,
    "precision": "auto",
}


def reversal_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    characters: float | None = None,
    labels: Int[Tensor, " n"] | None = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
    **options: Unpack[ReversalOptions],
) -> ReversalEstimate:
    """`br`: an upper bound on -log p_θ(x1) of the sampler with `steps` steps and this η.  theory.md (B_R)

    For each sequence `paths` paths are drawn backwards from x1 by the time reversal of the flow. The bound holds for
    every number of paths, decreases with it, and converges to the exact value. It costs `steps` network calls per path;
    for masks with Carry or Evidence only the steps that unmask a position.

    Tokens are redrawn from the source, which is the exact reversal for a perfect network and independent pairs. For a
    flow with a coupling and η = 0 they are redrawn from p_{0|t}: that of the network's x0_head (`predict_x0=True`), or
    that of `x0`. `ReversalOptions` lists the keywords; `characters` is the mean number of characters of a sequence.
    `labels` are those of the sequences, for a network with labels.

    The random numbers of a path depend on (seed, sequence, path) only, not on `batch` or `paths`.
    """
    check_network(model, flow)
    chosen = _with_defaults(options)
    _check(flow, x1, chosen)
    check_labels(model, labels, len(x1))
    x1 = to_device_of(model, x1)
    reversed_paths = _reversed_paths(model, flow, chosen, x1.device)
    with reversed_paths.scores.caller.evaluation_mode():
        log_w = _log_weights(reversed_paths, x1, labels, chosen, progress)
    facts = _facts(reversed_paths, chosen["eta"], x1, characters)
    return ReversalEstimate.of_weights(log_w, quantity="br", is_bound=True, **facts)


def reversal_certificate(
    model: Network,
    flow: Flow,
    *,
    n: int,
    length: int,
    labels: Int[Tensor, " n"] | None = None,
    **options: Unpack[ReversalOptions],
) -> tuple[ReversalEstimate, ReversalEstimate]:
    """`br` and `br_lower` on n samples of the model: upper and lower bound on -log p_θ of its samples, in expectation.

    The path that created a sample is a draw from the exact distribution of paths given the sample. If it replaces one
    of the `paths` reversed paths, minus the log of the mean weight is a lower bound in expectation. So `br` exceeds
    the exact value by at most the difference of the two, in expectation over samples. `ReversalOptions` lists the
    keywords.
    """
    check_network(model, flow)
    if not is_consistent(flow):
        raise ValueError(
            f"{type(flow.prediction).__name__} with {type(flow.source).__name__} reaches states that the reversal "
            f"cannot propose: there is no lower bound. Use prediction=Evidence()."
        )
    chosen = _with_defaults(options)
    steps, eta, seed = chosen["steps"], chosen["eta"], chosen["seed"]
    drawing: SamplingOptions = {"steps": steps, "eta": eta, "seed": seed, "precision": chosen["precision"]}
    drawing |= {"labels": labels, "trajectory": True}
    drawn = generate(model, flow, n=n, length=length, **drawing)
    independent: ReversalOptions = {**chosen, "seed": seed + 1}
    upper = reversal_bound(model, flow, drawn.tokens, labels=labels, **independent)
    reversed_paths = _reversed_paths(model, flow, chosen, device_of(model))
    states = [drawn.at(k / steps) for k in range(steps)] + [drawn.tokens]
    rows = chosen["batch"] or reversed_paths.batch(length)
    with reversed_paths.scores.caller.evaluation_mode():
        pieces = list(zip(*(x.split(rows) for x in states), strict=True))
        given = [None] * len(pieces) if labels is None else labels.split(rows)
        own = torch.cat([reversed_paths.log_weights_of(*both) for both in zip(pieces, given, strict=True)]).cpu()
    log_w = torch.cat([own[:, None], upper.log_weights[:, 1:]], 1)
    facts = _facts(reversed_paths, eta, drawn.tokens, None) | {"calls": upper.calls}
    return upper, ReversalEstimate.of_weights(log_w, quantity="br_lower", is_bound=False, **facts)


def is_consistent(flow: Flow) -> bool:
    """Whether reversed paths reach all paths of the sampler, so that the mean weight is the exact probability.

    No token is redrawn to a token with p0 = 0, and a prediction such as Plain may leave such tokens in a path.
    """
    possible = flow.source.token_probs()[..., : flow.vocab.data] > 0
    return flow.prediction.has_finite_bounds(flow.source) or bool(possible.all())


def _with_defaults(options: ReversalOptions) -> ReversalOptions:
    if "refresh" in options:
        raise ValueError(
            "reversal_bound has no option refresh: br does not exist for a sampler with refresh. Use "
            "nll_bound(steps=N, refresh=R)."
        )
    for key in options:
        if key not in DEFAULTS:
            hint = did_you_mean(key, DEFAULTS) or f"options are {', '.join(DEFAULTS)}"
            raise TypeError(f"{key!r} is not an option of the reversal bound; {hint}")
    return {**DEFAULTS, **options}


def _reversed_paths(model: Network, flow: Flow, chosen: ReversalOptions, device: torch.device) -> ReversedPaths:
    return ReversedPaths(
        model,
        flow,
        chosen["steps"],
        chosen["eta"],
        gamma=chosen["gamma"],
        x0=chosen["x0"],
        precision=chosen["precision"],
        device=device,
    )


def _log_weights(
    reversed_paths: ReversedPaths,
    x1: Int[Tensor, "n L"],
    labels: Int[Tensor, " n"] | None,
    chosen: ReversalOptions,
    progress: Callable[[int, int], None],
) -> Float[Tensor, "n K"]:
    """log w of each sequence and path; a batch contains (sequence, path) pairs."""
    paths = chosen["paths"]
    found = []
    for some in torch.arange(len(x1) * paths).split(chosen["batch"] or reversed_paths.batch(x1.shape[1])):
        row, path = some // paths, some % paths
        streams = RandomStreams(chosen["seed"], ((path << 32) + row).tolist(), LIKELIHOOD)
        own = None if labels is None else labels[row.to(labels.device)]
        found.append(reversed_paths.log_weights(x1[row.to(x1.device)], streams, own).cpu())
        if bool(torch.isnan(found[-1]).any()):
            raise ValueError("the network returned NaN: check its weights and its inputs.")
        progress(int(some[-1] + 1) // paths, len(x1))
    return torch.cat(found).view(len(x1), paths)


def _facts(
    reversed_paths: ReversedPaths, eta: Eta, x1: Int[Tensor, "n L"], characters: float | None
) -> dict[str, object]:
    """The fields of an estimate that do not depend on the weights."""
    return {
        "steps": reversed_paths.steps,
        "length": x1.shape[1],
        "eta": eta,
        "calls": round(reversed_paths.calls / len(x1)),
        "dtype": reversed_paths.scores.dtype,
        "characters": characters,
        "consistent": is_consistent(reversed_paths.flow),
    }


def _check(flow: Flow, x1: Int[Tensor, "n L"], chosen: ReversalOptions) -> None:
    eta_at(chosen["eta"], torch.zeros(1))
    for name, value in (("steps", chosen["steps"]), ("paths", chosen["paths"]), ("batch", chosen["batch"])):
        if not (isinstance(value, Integral) and value >= 1) and not (name == "batch" and value is None):
            raise ValueError(f"{name} must be an integer ≥ 1, got {value!r}.")
    gamma = chosen["gamma"]
    if not (isinstance(gamma, Real) and 0 <= gamma <= 1):
        raise ValueError(f"gamma must lie in [0, 1] (1 = the reversal, 0 = the proposal of bk), got {gamma!r}.")
    flow.vocab.check_ids(x1, "(n, L)")
    if x1.numel() == 0:
        raise ValueError(f"x1 must contain at least one sequence of at least one token, got {tuple(x1.shape)}.")
    flow.vocab.check_data(x1)
    flow.check_length(x1.shape[1])
