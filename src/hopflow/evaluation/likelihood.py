"""Bounds on the likelihood of a test set, each with the sampler that it bounds; the exact value of a causal network.

b0, b1 and bk bound sampling in continuous time, bn and br sampling in N Euler steps; each at the η of its row and at
temperature 1. `planned` is the exact value of a planner, the sampler that chooses positions by the network's
prediction. br is measured with one path and with `paths` of them: both are bounds, and their distance shows what
more paths would gain. Where data tokens stay (from masks), one bound holds for all η and is measured once. `coupled` is
the number that the paper prints for models trained with optimal transport; it is not a bound.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds.coupled import coupled_bound, coupled_number
from ..bounds.estimate import Estimate, known, plus_minus
from ..bounds.nll import kappa_bound, nll_bound
from ..bounds.reversal import reversal_bound
from ..costs import Hamming
from ..couplings import Coupling, ExactOT, SinkhornOT
from ..flow import Flow
from ..network.network import device_of, embedding_table
from ..runs.rng import stream_seed
from ..sampling.planners import Planner
from ..sampling.samplers import Sampler
from ..system.progress import ProgressCallback
from .by_label import Labels, by_label, with_labels
from .evaluated_model import EvaluatedModel
from .exact_nll import causal_nll, planner_nll
from .measurement import Measurement
from .references import References
from .rows import Row
from .sample_rows import sampler_facts, samplers_of
from .sets import TextSet
from .stopping import StoppedEstimates, StoppingRule, estimate_in_blocks

CONTINUOUS = "continuous time"
BATCH = 64
"""Sequences per call of a causal network, which returns full logits in the dtype of its weights."""
OT_N = 64
"""Default minibatch of a test-time coupling."""


@dataclass(frozen=True, eq=False)
class BoundRequest:
    """How to estimate one or more bounds from the same draws, and the facts that their rows store."""

    name: str
    eta: float | None
    estimate: Callable[[Int[Tensor, "m L"], int, Labels], list[Estimate]]
    facts: dict[str, Any]
    each_facts: tuple[dict[str, Any], ...] = ({},)
    """Further facts of each bound; a single entry holds for all of them."""
    unit: int = 1
    """Number of sequences that belong together."""
    equal_etas: tuple[float, ...] = ()
    """Other η with the same bound: where data tokens stay, the samples have one law for all η."""


@dataclass(frozen=True)
class LikelihoodEvaluation:
    """Which bounds to measure, and when to stop: the seconds of the rule are shared by the bounds of one set."""

    eta: tuple[float, ...] = (0.0, 1.0)
    steps: tuple[int, ...] = (32,)
    sampler: Sampler | Callable[[int], Sampler] | None = None
    """The sampler of the samples: if it refreshes positions, bn is measured for it, too; `planned` for a planner."""
    coupling: Coupling | str = "own"
    """For `coupled`: a Coupling, "own" (that of the training, if it was optimal transport; rectified pairs have no
    coupled bound), exact, sinkhorn or none."""
    ot_n: int | None = None
    eps: float | None = None
    draws: int = 8
    paths: int = 8
    """Reversed paths per sequence of br, ≥ 2; 0 leaves br out."""
    batch: int | None = None
    """Sequences per network call; None chooses by the device."""
    seed: int = 0
    stopping: StoppingRule = StoppingRule()
    precision: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.coupling, str) and self.coupling not in ("own", "exact", "sinkhorn", "none"):
            raise ValueError(f"coupling must be own, exact, sinkhorn or none, got {self.coupling!r}")
        if self.paths < 0 or self.paths == 1:
            raise ValueError(f"paths must be an integer ≥ 2, or 0 to leave br out, got {self.paths}")
        if self.ot_n is not None and self.ot_n < 1:
            raise ValueError(f"ot_n, the number of sequences per OT batch, must be ≥ 1, got {self.ot_n}")

    def rows(self, evaluated: EvaluatedModel, texts: TextSet, say: ProgressCallback) -> Iterator[Row]:
        """All bounds on one set, with its sequences in random order."""
        texts = texts.shuffled(stream_seed(self.seed, "eval order"))
        estimators = self.estimators(evaluated, len(texts.x1))
        x1, left = texts.x1.to(device_of(evaluated.model)), self.stopping.seconds
        references = References.of(texts.x1, evaluated.vocab, texts.counts)
        for place, one in enumerate(estimators):
            rule = replace(self.stopping, seconds=left / (len(estimators) - place))
            clock = _ProgressClock(say, f"{one.name} on {texts.name}", len(x1))
            found = estimate_in_blocks(*with_labels(one.estimate, x1, texts.labels), rule, unit=one.unit, report=clock)
            left = max(0.0, left - clock.seconds)
            own = one.each_facts * (len(found.estimates) // len(one.each_facts))
            for estimate, facts in zip(found.estimates, own, strict=True):
                row = self._row(evaluated, texts, one, found, estimate, {**references.facts(found.rows), **facts})
                yield row
                yield from (_copy_for_eta(row, eta) for eta in one.equal_etas)
                for own_texts, part in by_label(evaluated, texts, estimate, found.rows):
                    yield self._row(evaluated, own_texts, one, replace(found, rows=part.n), part, facts)

    def estimators(self, evaluated: EvaluatedModel, rows: int) -> list[BoundRequest]:
        """The bounds that exist for this model; `rows` is the number of sequences."""
        flow = evaluated.flow
        if flow is None:
            exact = causal_nll(evaluated.causal, self.batch or BATCH)
            return [BoundRequest("nll", None, exact, {"sampler": "left to right", "exact": True})]
        finite = flow.prediction.has_finite_bounds(flow.source)
        found = []
        several = not flow.prediction.keeps_data_tokens(flow.source)  # otherwise the corrector changes no number
        etas, equal = (self.eta, ()) if several else (self.eta[:1], self.eta[1:])
        for eta in etas if finite else ():
            # control variate: a network that knows only the source's frequencies has a known b1 and similar noise
            control = {"unigram": flow.source.mean_probs[: flow.vocab.data]} if eta == 1 and flow.source.full else {}
            found.append(self._bound(evaluated, f"b{eta:g}", (nll_bound,), eta, equal, eta=eta, **control))
        for steps in self.steps:
            for eta in etas:
                found.append(self._bound(evaluated, "bn", (nll_bound,), eta, equal, steps=steps, eta=eta))
        found += self._of_refresh(evaluated, etas, equal) + self._planned(evaluated)
        if several and self.paths:
            found += [self._reversal(evaluated, steps, eta) for steps in self.steps for eta in etas]
        if finite and flow.source.full and 0.0 in self.eta:
            found.append(self._bound(evaluated, "bk", (kappa_bound,), 0.0))
        if finite and (coupling := self.test_coupling(flow)):
            found.append(self._coupled(evaluated, coupling, min(rows, self.stopping.rows or rows)))
        return found

    def _bound(
        self,
        evaluated: EvaluatedModel,
        name: str,
        bounds: tuple[Callable[..., Estimate], ...],
        of: float,
        equal_etas: tuple[float, ...] = (),
        **keys: Any,
    ) -> BoundRequest:
        """Bounds with the same arguments and draws, for the sampler with this η."""

        def estimate(x1: Int[Tensor, "m L"], turn: int, labels: Labels = None) -> list[Estimate]:
            keyed = {**keys, "draws": self.draws, "batch": self.batch, "seed": stream_seed(self.seed, name, turn)}
            keyed |= {"precision": self.precision, "labels": labels}
            return [bound(evaluated.model, evaluated.flow, x1, **keyed) for bound in bounds]

        steps = keys.get("steps")
        facts = {"sampler": _sampler(of, steps), "steps": steps}
        return BoundRequest(name, of, estimate, facts, equal_etas=equal_etas)

    def _of_refresh(
        self, evaluated: EvaluatedModel, etas: tuple[float, ...], equal: tuple[float, ...]
    ) -> list[BoundRequest]:
        """bn of the sampler, if it refreshes positions."""
        found = []
        for sampler in samplers_of(self.sampler, self.steps):
            if not sampler.refresh or sampler.bounded_steps is None:
                continue
            for eta in etas:
                keys = {"steps": sampler.bounded_steps, "eta": eta, "refresh": sampler.refresh}
                request = self._bound(evaluated, "bn", (nll_bound,), eta, equal, **keys)
                facts = sampler_facts(sampler, eta)
                found.append(replace(request, facts={key: value for key, value in facts.items() if key != "eta"}))
        return found

    def _planned(self, evaluated: EvaluatedModel) -> list[BoundRequest]:
        """The likelihood of the sampler, if it is a planner: exact from one mask, a bound from several."""
        assert evaluated.flow is not None
        draws, exact = max(2, self.draws), evaluated.flow.source.constant
        keys: dict[str, Any] = {"draws": draws, "batch": self.batch, "precision": self.precision, "seed": self.seed}
        found = []
        for sampler in samplers_of(self.sampler, self.steps):
            if sampler.chooses_positions:
                estimate = planner_nll(evaluated.model, evaluated.flow, cast(Planner, sampler), **keys)
                facts = {key: value for key, value in sampler_facts(sampler, 0.0).items() if key != "eta"}
                facts |= {"exact": exact, "draws": None if exact else draws}
                found.append(BoundRequest("planned", 0.0, estimate, facts))
        return found

    def _reversal(self, evaluated: EvaluatedModel, steps: int, eta: float) -> BoundRequest:
        """br with one path and with all paths, from the same draws."""
        model, flow, counts = evaluated.model, evaluated.flow, (1, self.paths)
        assert flow is not None

        def estimate(x1: Int[Tensor, "m L"], turn: int, labels: Labels = None) -> list[Estimate]:
            found = reversal_bound(
                model,
                flow,
                x1,
                steps=steps,
                paths=self.paths,
                eta=eta,
                seed=stream_seed(self.seed, "br", turn),
                batch=self.batch,
                precision=self.precision,
                labels=labels,
            )
            return [found.with_paths(count).plain for count in counts]

        facts = {"sampler": _sampler(eta, steps), "steps": steps, "draws": None}
        return BoundRequest("br", eta, estimate, facts, tuple({"paths": count} for count in counts))

    def _coupled(self, evaluated: EvaluatedModel, coupling: Coupling, rows: int) -> BoundRequest:
        most = max(1, rows // 2)  # at least two minibatches, if there are two sequences
        n = self.ot_n or min(OT_N, evaluated.recipe.get("ot_batch") or evaluated.recipe.get("batch") or OT_N, most)
        if not 1 <= n <= rows:
            raise ValueError(f"ot_n must be at most {rows}, the number of sequences, got {n}")
        table = embedding_table(evaluated.model) if isinstance(evaluated.model, torch.nn.Module) else None
        keys: dict[str, Any] = {"coupling": coupling, "minibatch": n, "embedding": table}
        found = self._bound(evaluated, "coupled", (coupled_number, coupled_bound), 0.0, **keys)
        facts = {**found.facts, "coupling": coupling.facts["coupling"], "ot_n": n, **coupling.facts}
        return replace(found, facts=facts, unit=n)

    def test_coupling(self, flow: Flow) -> Coupling | None:
        """The coupling of x0 and x1 in `coupled`; None where nothing is coupled."""
        if isinstance(self.coupling, Coupling):
            return self.coupling
        own = flow.coupling
        cost = getattr(own, "cost", Hamming())
        if self.coupling == "own":
            # rectified pairs carry nats of information per token: `coupled` would say nothing
            found: Coupling | None = None if own.is_identity or own.pair_store is not None else own
        elif self.coupling == "none":
            found = None
        else:
            found = ExactOT(cost) if self.coupling == "exact" else SinkhornOT(cost)
        if self.eps is None:
            return found
        if found is None or "eps" not in found.facts:
            raise ValueError("eps is a setting of coupling=sinkhorn: pass that, too, or leave eps out")
        changed: Coupling = replace(found, eps=self.eps)  # type: ignore[type-var]  # a dataclass with eps
        return changed

    def _bits(self, estimate: Estimate, characters: Float[Tensor, " m"]) -> Measurement:
        """Bits per character: a ratio of two sums that both vary between sequences (or minibatches)."""
        units = characters.double().view(estimate.n, -1).mean(1)
        nats = Measurement.ratio("bits_per_char", torch.tensor(estimate.each, dtype=torch.float64), units, "nats")
        return nats.times(1 / math.log(2), "bits_per_char", "bits per character")

    def _row(
        self,
        evaluated: EvaluatedModel,
        texts: TextSet,
        estimator: BoundRequest,
        found: StoppedEstimates,
        estimate: Estimate,
        further: dict[str, Any],
    ) -> Row:
        facts = {"draws": self.draws, **texts.facts, **estimator.facts, **further}
        if texts.characters is not None and (characters := float(texts.characters[: found.rows].mean())):
            bits = self._bits(estimate, texts.characters[: found.rows])
            facts |= {"characters": characters, "bits_per_char": bits.value, "bits_per_char_stderr": known(bits.stderr)}
        return estimate_row(
            evaluated,
            texts.name,
            estimate,
            estimator.eta,
            sequences=found.rows,
            of=len(texts.x1),
            stopped=found.reason,
            seed=self.seed,
            **facts,
        )


def estimate_row(evaluated: EvaluatedModel, set: str, estimate: Estimate, eta: float | None, **facts: Any) -> Row:
    """The row of an estimate: its perplexity, the nats, and the parts of their error."""
    return evaluated.row(
        set,
        Measurement(estimate.quantity, estimate.ppl, estimate.ppl_stderr, estimate.n, "ppl"),
        eta=eta,
        is_bound=estimate.is_bound,
        each=estimate.each,
        dtype=estimate.dtype,
        nats=estimate.nats,
        nats_stderr=known(estimate.stderr),
        nats_draw_stderr=known(estimate.draw_stderr),
        nats_sequence_stderr=known(estimate.sequence_stderr),
        length=estimate.length,
        freedom=estimate.freedom,
        calls=estimate.calls,
        **({"infinite": estimate.infinite} if math.isinf(estimate.ppl) else {}),
        **{name: known(value) for name, value in estimate.diagnostics.items()},
        **facts,
    )


def _sampler(eta: float, steps: int | None) -> str:
    return f"η = {eta:g}, {CONTINUOUS if steps is None else f'{steps} steps'}"


def _copy_for_eta(row: Row, eta: float) -> Row:
    """The row of another η with the same bound; `equal_to_eta` is the η that it was measured for."""
    sampler = str(row.more["sampler"]).replace(f"η = {row.eta:g}", f"η = {eta:g}", 1)
    facts = {**row.more, "sampler": sampler, "equal_to_eta": row.eta}
    return replace(row, quantity=f"b{eta:g}" if row.more["steps"] is None else row.quantity, eta=eta, more=facts)


def missing_bounds(flow: Flow | None) -> list[str]:
    """Why some bounds are not measured, a line each."""
    if flow is None:
        return []
    prediction, source = type(flow.prediction).__name__, type(flow.source).__name__
    if not flow.prediction.has_finite_bounds(flow.source):
        return [
            f"no bounds in continuous time (b0, b1, bk, coupled): under {prediction} with {source} they are infinite, "
            f"because tokens are redrawn infinitely often near t = 1; bn and br bound samplers in steps"
        ]
    if not flow.source.full and not flow.source.disjoint:
        return [f"no bk: it needs a source whose support is exactly the data tokens, and {source}'s is not"]
    if flow.prediction.keeps_data_tokens(flow.source):
        return ["no br: data tokens stay, so b0 and bn are already tight"]
    return []


class _ProgressClock:
    """Reports the progress of an estimate, and measures its time."""

    def __init__(self, say: ProgressCallback, what: str, rows: int) -> None:
        self._say, self._what, self._rows, self._start = say, what, rows, time.monotonic()
        say(f"{what}: {rows:,} sequences")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def __call__(self, estimates: Sequence[Estimate], rows: int) -> None:
        estimate = estimates[-1]
        self._say(
            f"{self._what}: {rows:,} of {self._rows:,} sequences, ppl "
            f"{plus_minus(estimate.ppl, estimate.ppl_stderr)}, {self.seconds:.0f} s"
        )
