"""Likelihood: every bound of a flow on a test set, each with the sampler it bounds; of a causal network the value.

b0, b1 and bk bound sampling in continuous time, bn and br sampling in a number of steps; each with the η in its row
and at temperature 1. br comes with one path and with `paths` of them: both are bounds, their distance shows how much
more paths would gain. Where data tokens stay (from masks), all η have one bound: it is measured once. `coupled` is
what the paper prints for models trained with optimal transport, and bounds nothing.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..bounds import coupled_bound, coupled_number, kappa_bound, nll_bound
from ..costs import Hamming
from ..couplings import Coupling, ExactOT, Independent, SinkhornOT
from ..data.pulse import Progress
from ..estimate import Estimate, known, mean_and_error, plus_minus
from ..flow import Flow
from ..models.causal import Causal
from ..network import home, resting
from ..reversal import reversal_bound
from ..training.streams import stream_seed
from ..training.tasks import embedding_table
from .measured import Measured
from .references import References
from .rows import Row
from .sets import TextSet
from .stopping import Stopped, Until, measure
from .subject import Subject

CONTINUOUS = "continuous time"
BATCH = 64
"""Sequences per call of a causal network, which gives full logits in the type of its weights."""
OT_N = 64
"""Source rows that a test-time coupling may choose from, unless said."""


@dataclass(frozen=True, eq=False)
class Question:
    """One or more numbers from the same draws: how to estimate them for sequences, and what is recorded with them."""

    name: str
    eta: float | None
    answer: Callable[[Int[Tensor, "m L"], int], list[Estimate]]
    facts: dict[str, Any]
    each_facts: tuple[dict[str, Any], ...] = ({},)
    """Further facts of each of the numbers, or of all if there is one entry."""
    unit: int = 1
    """Sequences that belong together."""
    alike: tuple[float, ...] = ()
    """Other η of which the answer holds as well: a source whose data tokens stay has one law for all of them."""


@dataclass(frozen=True)
class Likelihood:
    """Which bounds, and how long for: `until.seconds` are shared by the numbers of one set."""

    eta: tuple[float, ...] = (0.0, 1.0)
    steps: tuple[int, ...] = (32,)
    coupling: Coupling | str = "own"
    """For `coupled`: a coupling, "own" for the training's if that was optimal transport, exact, sinkhorn or none."""
    ot_n: int | None = None
    eps: float | None = None
    draws: int = 8
    paths: int = 8
    """Reversed paths per sequence of br, at least 2; 0 leaves it out."""
    batch: int | None = None
    """Sequences per network call, as many as suit the device unless given."""
    seed: int = 0
    until: Until = Until()
    precision: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.coupling, str) and self.coupling not in ("own", "exact", "sinkhorn", "none"):
            raise ValueError(f"coupling is own, exact, sinkhorn or none; got {self.coupling!r}")
        if self.paths < 0 or self.paths == 1:
            raise ValueError(f"paths must be an integer ≥ 2, or 0 to leave br out; got {self.paths}")
        if self.ot_n is not None and self.ot_n < 1:
            raise ValueError(f"ot_n counts the rows that are coupled at once, at least 1; got {self.ot_n}")

    def rows(self, subject: Subject, texts: TextSet, say: Progress) -> Iterator[Row]:
        """Every number on one set, in random order of its sequences."""
        texts = texts.shuffled(stream_seed(self.seed, "eval order"))
        questions = self.questions(subject, len(texts.x1))
        x1, left = texts.x1.to(home(subject.model)), self.until.seconds
        references = References.of(texts.x1, subject.vocab, texts.counts)
        for place, question in enumerate(questions):
            until = replace(self.until, seconds=left / (len(questions) - place))
            watch = _Watch(say, f"{question.name} on {texts.name}", len(x1))
            found = measure(question.answer, x1, until, unit=question.unit, told=watch)
            left = max(0.0, left - watch.seconds)
            own = question.each_facts * (len(found.estimates) // len(question.each_facts))
            for estimate, facts in zip(found.estimates, own, strict=True):
                row = self._row(subject, texts, question, found, estimate, {**references.facts(found.rows), **facts})
                yield row
                yield from (_alike(row, eta) for eta in question.alike)

    def questions(self, subject: Subject, rows: int) -> list[Question]:
        """What can be said of this subject, given so many sequences."""
        flow = subject.flow
        if flow is None:
            assert isinstance(subject.model, Causal)
            return [
                Question(
                    "nll", None, _exact(subject.model, self.batch or BATCH), {"sampler": "left to right", "exact": True}
                )
            ]
        finite = flow.prediction.settles(flow.source)
        asked = []
        several = not flow.prediction.stays(flow.source)  # otherwise the corrector changes no number
        etas, alike = (self.eta, ()) if several else (self.eta[:1], self.eta[1:])
        for eta in etas if finite else ():
            # a network that knows the source's frequencies only has a known b1, and noise much like that of this one
            control = {"unigram": flow.source.token_probs()[: flow.vocab.data]} if eta == 1 and flow.source.full else {}
            asked.append(self._ask(subject, f"b{eta:g}", (nll_bound,), eta, alike, eta=eta, **control))
        for steps in self.steps:
            for eta in etas:
                asked.append(self._ask(subject, "bn", (nll_bound,), eta, alike, steps=steps, eta=eta))
        if several and self.paths:
            asked += [self._reversal(subject, steps, eta) for steps in self.steps for eta in etas]
        if finite and flow.source.full and 0.0 in self.eta:
            asked.append(self._ask(subject, "bk", (kappa_bound,), 0.0))
        if finite and (coupling := self.test_coupling(flow)):
            asked.append(self._coupled(subject, coupling, min(rows, self.until.rows or rows)))
        return asked

    def _ask(
        self,
        subject: Subject,
        name: str,
        bounds: tuple[Callable[..., Estimate], ...],
        of: float,
        alike: tuple[float, ...] = (),
        **keys: Any,
    ) -> Question:
        """Bounds that are called alike, for the sampler with this η."""

        def answer(x1: Int[Tensor, "m L"], turn: int) -> list[Estimate]:
            keyed = {**keys, "draws": self.draws, "batch": self.batch, "seed": stream_seed(self.seed, name, turn)}
            keyed |= {"precision": self.precision}
            return [bound(subject.model, subject.flow, x1, **keyed) for bound in bounds]

        steps = keys.get("steps")
        return Question(name, of, answer, {"sampler": _sampler(of, steps), "steps": steps}, alike=alike)

    def _reversal(self, subject: Subject, steps: int, eta: float) -> Question:
        """br with one path and with all of them, from the same weights."""
        model, flow, counts = subject.model, subject.flow, (1, self.paths)
        assert flow is not None

        def answer(x1: Int[Tensor, "m L"], turn: int) -> list[Estimate]:
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
            )
            return [found.with_paths(count).plain for count in counts]

        facts = {"sampler": _sampler(eta, steps), "steps": steps, "draws": None}
        return Question("br", eta, answer, facts, tuple({"paths": count} for count in counts))

    def _coupled(self, subject: Subject, coupling: Coupling, rows: int) -> Question:
        n = self.ot_n or min(OT_N, subject.recipe.get("ot_batch") or subject.recipe.get("batch") or OT_N, rows // 2)
        if not 1 <= n <= rows:
            raise ValueError(f"ot_n={n} rows cannot be coupled: there are {rows} sequences; pass a smaller ot_n=")
        table = embedding_table(subject.model) if isinstance(subject.model, torch.nn.Module) else None
        keys: dict[str, Any] = {"coupling": coupling, "minibatch": n, "embedding": table}
        asked = self._ask(subject, "coupled", (coupled_number, coupled_bound), 0.0, **keys)
        facts = {**asked.facts, "coupling": type(coupling).__name__, "ot_n": n}
        facts |= {"cost": type(coupling.cost).__name__} if hasattr(coupling, "cost") else {}
        facts |= {"eps": coupling.eps} if isinstance(coupling, SinkhornOT) else {}
        return replace(asked, facts=facts, unit=n)

    def test_coupling(self, flow: Flow) -> Coupling | None:
        """Which x0 meets which x1 in `coupled`; None where nothing is coupled."""
        if isinstance(self.coupling, Coupling):
            return self.coupling
        own = flow.coupling
        cost = getattr(own, "cost", Hamming())
        if self.coupling == "own":
            found: Coupling | None = None if isinstance(own, Independent) else own
        elif self.coupling == "none":
            found = None
        else:
            found = ExactOT(cost) if self.coupling == "exact" else SinkhornOT(cost)
        if self.eps is None:
            return found
        if not isinstance(found, SinkhornOT):
            raise ValueError("eps belongs to coupling=sinkhorn: pass that too, or leave eps out")
        return replace(found, eps=self.eps)

    def _bits(self, estimate: Estimate, characters: Float[Tensor, " m"]) -> Measured:
        """Per character: a ratio, of which both sides vary from sequence to sequence, or minibatch to minibatch."""
        units = characters.double().view(estimate.n, -1).mean(1)
        nats = Measured.ratio("bits_per_char", torch.tensor(estimate.each, dtype=torch.float64), units, "nats")
        return nats.times(1 / math.log(2), "bits_per_char", "bits per character")

    def _row(
        self,
        subject: Subject,
        texts: TextSet,
        question: Question,
        found: Stopped,
        estimate: Estimate,
        further: dict[str, Any],
    ) -> Row:
        facts = {"draws": self.draws, **texts.facts, **question.facts, **further}
        if texts.characters is not None and (characters := float(texts.characters[: found.rows].mean())):
            bits = self._bits(estimate, texts.characters[: found.rows])
            facts |= {"characters": characters, "bits_per_char": bits.value, "bits_per_char_stderr": known(bits.stderr)}
        return estimated(
            subject,
            texts.name,
            estimate,
            question.eta,
            sequences=found.rows,
            of=len(texts.x1),
            stopped=found.why,
            seed=self.seed,
            **facts,
        )


def estimated(subject: Subject, set: str, estimate: Estimate, eta: float | None, **facts: Any) -> Row:
    """An estimate of nats as a row of perplexity, with the nats and the parts of their error beside it."""
    return subject.row(
        set,
        Measured(estimate.quantity, estimate.ppl, estimate.ppl_stderr, estimate.n, "ppl"),
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


def _alike(row: Row, eta: float) -> Row:
    """The row of another η whose bound is the same by theory; `equal_to_eta` says of which it is a copy."""
    steps = row.more["steps"]
    facts = {**row.more, "sampler": _sampler(eta, steps), "equal_to_eta": row.eta}
    return replace(row, quantity=f"b{eta:g}" if steps is None else row.quantity, eta=eta, more=facts)


def refusals(flow: Flow | None) -> list[str]:
    """Why some numbers are missing, a line each."""
    if flow is None:
        return []
    prediction, source = type(flow.prediction).__name__, type(flow.source).__name__
    if not flow.prediction.settles(flow.source):
        return [
            f"no bounds in continuous time (b0, b1, bk, coupled): under {prediction} with {source} they are infinite, "
            f"since the network goes on redrawing near t = 1; bn and br are of the steps that are drawn"
        ]
    if not flow.source.full and not flow.source.disjoint:
        return [f"no bk: it needs a source whose support is exactly the data tokens, and {source}'s is not"]
    if flow.prediction.stays(flow.source):
        return ["no br: data tokens stay, so that b0 and bn are already tight"]
    return []


def _exact(model: Causal, batch: int) -> Callable[[Int[Tensor, "m L"], int], list[Estimate]]:
    """-log p of a causal network: nothing is drawn, and nothing is bounded."""

    def answer(x1: Int[Tensor, "m L"], turn: int) -> list[Estimate]:
        with resting(model):
            nats = torch.cat([model.nll(rows) for rows in x1.split(batch)]).cpu().double()
        value, error = mean_and_error(nats)
        found: dict[str, Any] = {"quantity": "nll", "nats": value, "stderr": error, "draw_stderr": 0.0, "n": len(nats)}
        found["each"] = tuple(nats.tolist())
        found |= {"dtype": str(model.start.dtype).removeprefix("torch."), "freedom": len(nats) - 1}
        return [Estimate(**found, length=x1.shape[1], eta=0.0, is_bound=False, calls=1)]

    return answer


class _Watch:
    """Says how far a number has come, and knows how long that took."""

    def __init__(self, say: Progress, what: str, rows: int) -> None:
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
