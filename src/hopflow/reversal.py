"""The reversal bound: a tight bound on the negative log-likelihood of the N-step sampler.  theory.md §7

Paths are drawn backwards from x1 by the flow's own time reversal, and weighed by the sampler. The mean of the weights
is the probability of x1 under the sampler; minus the log of a mean of K weights is an upper bound for every K.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .estimate import Estimate
from .flow import Flow
from .network import Network, home, resting
from .noise import Noise
from .reversed_paths import ReversedPaths
from .sampling import generate
from .velocities import Eta, eta_at

LIGHT_TAILED = 0.5
"""Share of the paths that must count for the weights to be called light-tailed."""


@dataclass(frozen=True)
class ReversalEstimate(Estimate):
    """An estimate from K weights per sequence; it holds them, so that fewer paths need no second run."""

    steps: int = 0
    """Steps of the sampler that this number bounds."""
    paths: int = 0
    """K, the weights per sequence."""
    log_weights: Float[Tensor, "n K"] = field(default_factory=lambda: torch.empty(0, 0), repr=False, compare=False)
    consistent: bool = True
    """Whether the bound falls to the exact value as K grows."""

    @classmethod
    def of_weights(cls, log_weights: Float[Tensor, "n K"], **what: object) -> "ReversalEstimate":
        """-log of the mean of the K weights of each sequence; the error of the draws by the jackknife over paths."""
        n, paths = log_weights.shape
        each = -_log_mean(log_weights)
        draw_variance = _jackknife(log_weights) / n
        if n > 1:
            variance, freedom = float(each.var()) / n, n - 1
        else:
            variance, freedom = draw_variance, paths - 1
        return cls(
            nats=float(each.mean()),
            stderr=math.sqrt(variance),
            draw_stderr=math.sqrt(draw_variance),
            n=n,
            freedom=freedom,
            each=tuple(each.tolist()),
            paths=paths,
            log_weights=log_weights,
            **what,  # type: ignore[arg-type]
        )

    def with_paths(self, paths: int) -> "ReversalEstimate":
        """The bound with fewer paths, from the same weights: the mean over disjoint groups of so many."""
        if not 1 <= paths <= self.paths:
            raise ValueError(f"paths must lie between 1 and {self.paths}, the weights at hand; got {paths}")
        groups = self.paths // paths
        values = -_log_mean(self.log_weights[:, : groups * paths].unflatten(1, (groups, paths)))  # (n, groups)
        what = {name: getattr(self, name) for name in ("quantity", "length", "eta", "is_bound", "coupling", "dtype")}
        what |= {name: getattr(self, name) for name in ("characters", "steps", "consistent")}
        what["calls"] = round(self.calls * paths / self.paths)
        if groups == 1:
            return ReversalEstimate.of_weights(self.log_weights[:, :paths], **what)
        weights = self.log_weights[:, : groups * paths]
        return ReversalEstimate.of(values, paths=paths, log_weights=weights, **what)  # type: ignore[return-value]

    @property
    def by_paths(self) -> dict[int, Estimate]:
        """The bound with 1, 2, 4, … paths, and with all of them."""
        counts = [2**power for power in range(self.paths.bit_length())]
        return {count: self.with_paths(count) for count in dict.fromkeys([*counts, self.paths])}

    @property
    def log_weight_sd(self) -> float:
        """The standard deviation of log w within a sequence; NaN with one path."""
        return math.sqrt(float(self.log_weights.var(1).mean())) if self.log_weights.shape[1] > 1 else math.nan

    @property
    def effective_paths(self) -> float:
        """(Σw)²/Σw², the number of paths that count, on average over sequences."""
        groups = self.log_weights.unflatten(1, (-1, self.paths))
        finite = groups - groups.amax(2, keepdim=True)
        return float((2 * finite.logsumexp(2) - (2 * finite).logsumexp(2)).exp().mean())

    @property
    def plain(self) -> Estimate:
        """Without the weights, with what they say as `diagnostics`."""
        own = {f.name: getattr(self, f.name) for f in fields(Estimate) if f.name != "diagnostics"}
        return Estimate(**own, diagnostics=self._tails)

    @property
    def _tails(self) -> dict[str, float]:
        return {"effective_paths": self.effective_paths, "log_weight_sd": self.log_weight_sd}

    @property
    def remark(self) -> str | None:
        """What to know before the number is taken for the exact value; it is a bound in any case."""
        if not self.is_bound:
            return None
        if not self.consistent:
            return "some paths of this sampler cannot be proposed: the bound does not converge to the exact value"
        if self.paths == 1:
            return "one path does not show whether the bound has converged: pass paths=8"
        if self.effective_paths < LIGHT_TAILED * self.paths:
            return (
                f"the weights are heavy-tailed: {self.paths} paths count as {self.effective_paths:.1f}. "
                f"The bound has not converged and falls with more paths."
            )
        return None


def reversal_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    steps: int = 32,
    paths: int = 8,
    eta: Eta = 0.0,
    gamma: float = 1.0,
    x0: Network | None = None,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
    progress: Callable[[int, int], None] = lambda done, count: None,
) -> ReversalEstimate:
    """`br`: an upper bound on -log p_θ(x1) of the sampler with `steps` steps and this η.  theory.md (B_R)

    For each sequence `paths` paths are drawn backwards from x1, by the time reversal of the flow, and weighed. The
    bound holds for every number of paths, falls with it, and converges to the exact value. It costs `steps` network
    calls per path; from masks under Carry or Evidence only the steps that unmask a position.

    Without `x0` tokens are renoised from the source by what the network says of the context, which is the exact
    reversal for a perfect network and independent pairs. For a flow with a coupling and η = 0 they are renoised from
    p_{0|t}: by the network's x0_head (`predict_x0=True`), or by `x0`, a network (xt, t) -> (B, L, V) for its logits
    over all tokens. `gamma` between 1 and 0 tempers the reversal, for rough
    networks; tune it on other data.

    The random numbers of a path depend on (seed, sequence, path) only: not on `batch`, and not on `paths`.
    """
    _check(flow, x1, steps, paths, eta, gamma, batch)
    walk = ReversedPaths(model, flow, steps, eta, gamma=gamma, x0=x0, precision=precision, device=x1.device)
    with resting(model):
        log_w = _weights(walk, x1, paths, seed, batch or walk.batch(x1.shape[1]), progress)
    what = _what(walk, eta, x1, characters)
    return ReversalEstimate.of_weights(log_w, quantity="br", is_bound=True, **what)


def reversal_certificate(
    model: Network,
    flow: Flow,
    *,
    n: int,
    length: int,
    steps: int = 32,
    paths: int = 8,
    eta: Eta = 0.0,
    gamma: float = 1.0,
    x0: Network | None = None,
    seed: int = 0,
    batch: int | None = None,
    precision: str = "auto",
) -> tuple[ReversalEstimate, ReversalEstimate]:
    """`br` and `br_lower` on n samples of the model: both sides of -log p_θ of its own samples, in expectation.

    For a sample the path that made it is a draw from the exact law of paths given the sample. With it in place of one
    of the `paths` reversed ones, minus the log of the mean weight is a lower bound in expectation. In expectation
    `br` is above the exact value by at most their distance, on samples of the model.
    """
    if not consistent(flow):
        raise ValueError(
            f"{type(flow.prediction).__name__} with {type(flow.source).__name__} reaches states that the reversal "
            f"cannot propose: there is no lower bound. Use prediction=Evidence()."
        )
    device = home(model)
    drawn = generate(
        model, flow, n=n, length=length, steps=steps, eta=eta, seed=seed, precision=precision, trajectory=True
    )
    upper = reversal_bound(
        model, flow, drawn.tokens, steps=steps, paths=paths, eta=eta, gamma=gamma, x0=x0, seed=seed + 1, batch=batch,
        precision=precision,
    )  # fmt: skip
    walk = ReversedPaths(model, flow, steps, eta, gamma=gamma, x0=x0, precision=precision, device=device)
    states = [drawn.at(k / steps) for k in range(steps)] + [drawn.tokens]
    rows = batch or walk.batch(length)
    with resting(model):
        pieces = zip(*(x.split(rows) for x in states), strict=True)
        own = torch.cat([walk.log_weights_of(piece) for piece in pieces]).cpu()
    log_w = torch.cat([own[:, None], upper.log_weights[:, 1:]], 1)
    what = _what(walk, eta, drawn.tokens, None) | {"calls": upper.calls}
    return upper, ReversalEstimate.of_weights(log_w, quantity="br_lower", is_bound=False, **what)


def consistent(flow: Flow) -> bool:
    """Whether reversed paths reach all paths of the sampler, so that the mean weight is the exact probability.

    A token that the source does not draw cannot be renoised to; a prediction without certainty leaves such tokens.
    """
    possible = flow.source.token_probs()[: flow.vocab.data] > 0
    return flow.prediction.settles(flow.source) or bool(possible.all())


def _weights(
    walk: ReversedPaths,
    x1: Int[Tensor, "n L"],
    paths: int,
    seed: int,
    batch: int,
    progress: Callable[[int, int], None],
) -> Float[Tensor, "n K"]:
    """log w of each sequence and path; rows of a batch are (sequence, path) pairs."""
    count = len(x1) * paths
    found = []
    for some in torch.arange(count).split(batch):
        row, path = some // paths, some % paths
        noise = Noise(seed, ((path << 32) + row).tolist())
        found.append(walk.log_weights(x1[row.to(x1.device)], noise).cpu())
        if bool(torch.isnan(found[-1]).any()):
            raise ValueError("the network returned NaN: check its weights and its inputs")
        progress(int(some[-1] + 1) // paths, len(x1))
    return torch.cat(found).view(len(x1), paths)


def _what(walk: ReversedPaths, eta: Eta, x1: Int[Tensor, "n L"], characters: float | None) -> dict[str, object]:
    return {
        "steps": walk.steps,
        "length": x1.shape[1],
        "eta": eta,
        "calls": round(walk.calls / len(x1)),
        "dtype": walk.scores.dtype,
        "characters": characters,
        "consistent": consistent(walk.flow),
    }


def _log_mean(log_weights: Float[Tensor, "*rows K"]) -> Float[Tensor, "*rows"]:
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def _jackknife(log_weights: Float[Tensor, "n K"]) -> float:
    """The variance of the log of a mean weight, on average over sequences; NaN with one path."""
    paths = log_weights.shape[1]
    if paths < 2:
        return math.nan
    left_out = torch.eye(paths, dtype=torch.bool)
    without = _log_mean_of(log_weights[:, None].masked_fill(left_out, -torch.inf), paths - 1)  # (n, K)
    return float((paths - 1) / paths * (without - without.mean(1, keepdim=True)).square().sum(1).mean())


def _log_mean_of(log_weights: Float[Tensor, "n K K"], count: int) -> Float[Tensor, "n K"]:
    return log_weights.logsumexp(-1) - math.log(count)


def _check(
    flow: Flow, x1: Int[Tensor, "n L"], steps: int, paths: int, eta: Eta, gamma: float, batch: int | None
) -> None:
    eta_at(eta, torch.zeros(1))
    for name, value in {"steps": steps, "paths": paths, "batch": batch}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {value}")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1] (1 = the reversal, 0 = the proposal of bk), got {gamma}")
    flow.vocab.check_ids(x1, "(n, L)")
    if x1.numel() == 0:
        raise ValueError(f"x1 must contain at least one sequence of at least one token, got {tuple(x1.shape)}")
    flow.vocab.check_data(x1)
    flow.schedule.check_length(x1.shape[1])
