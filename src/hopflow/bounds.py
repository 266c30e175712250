"""Bounds on the negative log-likelihood of sequences under a flow's samplers, estimated by Monte Carlo.

Each bound speaks of one sampler: nll_bound(eta=η) of samples drawn with that η, and with N steps if steps=N;
kappa_bound of samples drawn with η = 0. x0 is drawn independently of x1 whatever the training coupling was;
coupled_bound is the exception.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .controls import bends, coverage, hardness, trends, without
from .couplings import Coupling, Independent
from .draws import Count, Draw, Draws, Forced
from .estimate import Estimate
from .flow import Flow
from .integrals import Ending, Integral, LastStep, LiteralSecond, Precise, Proposal, Rates, Steps
from .network import Network, clock_dtype, resting
from .network_scores import NetworkScores
from .paths import PathSample
from .predictions import Evidence
from .reader import batch_size
from .schedules import Positional
from .scores import Scores
from .sources import Source
from .velocities import Eta, eta_at

BLOCK = 1 << 18
"""Tokens whose random numbers are drawn at once; fixed, so that results do not depend on `batch`."""


def nll_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    eta: Eta = 0.0,
    steps: int | None = None,
    end: float = 0.0,
    draws: int = 16,
    by: Draws | None = None,
    unigram: Float[Tensor, " Vd"] | None = None,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
) -> Estimate:
    """An upper bound on -log p_θ(x1), where p_θ is the law of samples drawn with this η.

    `eta=0` gives b0 and `eta=1` gives b1, theory.md (B). With `steps=N` it is bn, for samples of N steps, (B_N).
    `end=δ` stops the continuous sampler at 1-k = δ, where it redraws every position once.

    `draws` is the number of points per sequence, in two or more replicates that the error comes from; there are 16
    replicates in all, so that one sequence alone gets 16. `by` is how points are drawn. `unigram`, the token counts or
    frequencies, is one more control variate for b1. `characters` of a sequence, on average, give bits per character.

    `batch` is the number of sequences per network call, as many as suit the device unless given; it changes nothing
    else. `precision` is what the network computes in, up to its head, which runs in float32: `auto` is bf16 on a GPU
    that has it, as in `generate`. The estimate's `dtype` says which it was.
    """
    eta_at(eta, torch.zeros(1))
    if not 0 <= end < 1:
        raise ValueError(f"end is the 1-k at which the sampler stops, in [0, 1); got {end}")
    if steps is not None and steps < 1:
        raise ValueError(f"steps counts the sampler's steps and must be at least 1; got {steps}")
    if steps is None and end == 0 and not flow.prediction.settles(flow.source):
        raise ValueError(
            f"the continuous-time bound is infinite under {type(flow.prediction).__name__} with "
            f"{type(flow.source).__name__}: near t = 1 such a network goes on redrawing. Pass steps=N for the bound "
            f"of the N-step sampler, or end=1e-3 for one that stops there and redraws once; or use Evidence()."
        )
    if steps is not None and end > 0:
        raise ValueError("steps=N and end=δ are two samplers, each with its own last step: pass one of them")
    if end > 0 and isinstance(flow.schedule, Positional):
        raise ValueError("end=δ needs one 1-k for all positions; with position-specific schedules pass steps=N")
    if unigram is not None and (eta != 1 or steps is not None or end > 0):
        raise ValueError(
            "the unigram control variate has a known mean only for eta=1 in continuous time (no steps, no end)"
        )
    by = _chosen(by, flow, countable=steps is None and end == 0 and _countable(flow))
    integral: Integral = Rates(flow.schedule, eta, end) if steps is None else Steps(flow.schedule, steps, eta)
    parts = [(integral, by)]
    if end > 0:
        parts.append((LastStep(flow.schedule, end), Forced(noise=0.0, grade=1.0)))
    name = "bn" if steps is not None else "b_eta" if callable(eta) else f"b{eta:g}"
    run = _Run(model, flow, draws, seed, batch, unigram, precision)
    return run.estimate(x1, parts, quantity=name, eta=eta, is_bound=True, characters=characters)


def kappa_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
) -> Estimate:
    """`bk`: another bound for the few-hops sampler (η = 0), for a full-support source.  theory.md (B_κ)

    Near-tight where the source is like the data, token by token; on data far from that it can be looser than b0.
    """
    if not flow.source.full:
        raise ValueError(
            f"B_κ needs a source whose support is exactly the data tokens; {type(flow.source).__name__}'s is not. "
            f"For a disjoint source nll_bound(eta=0) is tight already; for bag-of-words, smooth the frequencies."
        )
    if not flow.prediction.settles(flow.source):
        raise ValueError(f"B_κ is infinite under {type(flow.prediction).__name__}; it needs prediction=Evidence().")
    run = _Run(model, flow, draws, seed, batch, precision=precision)
    parts: list[tuple[Integral, Draws]] = [(Proposal(flow.schedule), Forced())]
    start = proposal_start(flow.source, x1).sum(1)
    return run.estimate(x1, parts, start, quantity="bk", eta=0.0, is_bound=True, characters=characters)


def proposal_start(source: Source, x1: Int[Tensor, "n L"]) -> Float[Tensor, "n L"]:
    """KL(κ_0δ_x1 + (1-κ_0)p0 ‖ p0) at κ_0 = 1/e, position by position.  theory.md (B_κ)"""
    p0, kappa = source.probs(x1, torch.float64 if x1.device.type != "mps" else torch.float32), math.exp(-1)
    hit = kappa + (1 - kappa) * p0
    return hit * torch.log(hit / p0) + (1 - p0) * (1 - kappa) * math.log(1 - kappa)


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
) -> Estimate:
    """`coupled_info`: B_0 with x0 paired by a coupling, plus the information of the pairing, which makes it a bound.

    theory.md §4
    """
    run = _Run(model, flow, draws, seed, batch, precision=precision)
    return run.coupled(x1, coupling, minibatch, embedding, with_information=True, characters=characters)


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
) -> Estimate:
    """`coupled`: the paper's number for models trained with OT, Alg. 2 [alg1] on coupled pairs. It is *not* a bound."""
    run = _Run(model, flow, draws, seed, batch, precision=precision)
    return run.coupled(x1, coupling, minibatch, embedding, with_information=False, characters=characters)


def literal_second_bound(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    seed: int = 0,
    batch: int | None = None,
    precision: str = "auto",
) -> Estimate:
    """The paper's second bound to the letter, Alg. 3 [alg2], for the single mask: there its mean is the first's."""
    if not (flow.source.disjoint and float(flow.source.token_probs().max()) == 1):
        raise ValueError(
            f"the literal second bound needs a single-mask source (its backward rate assumes p0 = δ_m); "
            f"got {type(flow.source).__name__}. Use nll_bound(eta=1), the bound B_1 it was meant to be."
        )
    if not flow.prediction.settles(flow.source):
        raise ValueError(
            f"the second bound is infinite under {type(flow.prediction).__name__}; use Carry() or Evidence()."
        )
    run = _Run(model, flow, draws, seed, batch, precision=precision)
    parts: list[tuple[Integral, Draws]] = [(LiteralSecond(flow.schedule), Forced(noise=0.4, data=0.4, grade=1.0))]
    return run.estimate(x1, parts, quantity="literal_second", eta=0.0, is_bound=True)


def precise_perplexity(
    model: Network,
    flow: Flow,
    x1: Int[Tensor, "n L"],
    *,
    draws: int = 16,
    by: Draws | None = None,
    unigram: Float[Tensor, " Vd"] | None = None,
    seed: int = 0,
    batch: int | None = None,
    characters: float | None = None,
    precision: str = "auto",
) -> Estimate:
    """`precise`: -log p_θ(x1) at η = 0, with the ratios of p_θ that the network implies in place of the true ones.

    Theorem A.2 [precise-perplexity-theorem], given x1 alone; theory.md (P). Exact for a network whose logits ignore
    the context or know the truth; otherwise an approximation on neither side of the truth, *not* a bound. With a
    disjoint source it is b0, draw by draw.
    """
    if not flow.prediction.settles(flow.source):
        raise ValueError(
            f"the precise perplexity is infinite under {type(flow.prediction).__name__} with "
            f"{type(flow.source).__name__}, as b0 is; it needs prediction=Evidence()."
        )
    run = _Run(model, flow, draws, seed, batch, unigram, precision)
    parts: list[tuple[Integral, Draws]] = [(Precise(flow.schedule), _chosen(by, flow, countable=_countable(flow)))]
    return run.estimate(x1, parts, quantity="precise", eta=0.0, is_bound=False, characters=characters)


def _countable(flow: Flow) -> bool:
    """Only first redraws count, and all positions share a clock: the count estimator is right, and the best."""
    return flow.prediction.stays(flow.source) and not isinstance(flow.schedule, Positional)


def _chosen(by: Draws | None, flow: Flow, countable: bool) -> Draws:
    """The draws asked for, or the best there are."""
    if isinstance(by, Count) and not countable:
        raise ValueError(
            "Count needs a disjoint source under Carry or Evidence, one schedule for all positions, and continuous "
            "time to its end (no steps, no end); use Forced()"
        )
    return by or (Count() if countable else Forced())


@dataclass
class _Run:
    """One estimation: the network, and how many points are drawn from which seed."""

    model: Network
    flow: Flow
    draws: int
    seed: int
    batch: int | None
    unigram: Tensor | None = None
    precision: str = "auto"

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"an error needs at least draws=2 points per sequence; got {self.draws}")
        if self.batch is not None and self.batch < 1:
            raise ValueError(f"batch is the number of sequences per network call, at least 1; got {self.batch}")
        if self.unigram is not None and not bool((self.unigram > 0).all()):
            raise ValueError("the unigram control variate needs positive frequencies; add 1 to every count")

    def estimate(
        self, x1: Int[Tensor, "n L"], parts: list[tuple[Integral, Draws]], start: Tensor | float = 0.0, **what: object
    ) -> Estimate:
        """Sum the parts for every sequence, each from draws of its own."""
        self._check(x1)
        replicates, strata = self._layout(len(x1))
        generator = torch.Generator().manual_seed(self.seed)
        rows = max(1, BLOCK // (replicates * strata * x1.shape[1]))
        tables = []
        with resting(self.model):
            for block in x1.split(rows):
                many = block.repeat_interleave(replicates * strata, 0)
                x0 = self.flow.source.sample(*many.shape, generator=generator)
                tables.append(self._sum(parts, x0, many, (len(block), replicates, strata), generator))
        values, columns = (torch.cat(table) for table in zip(*tables, strict=True))
        if self.unigram is not None:
            columns[..., 0] += self._log_unigram()[x1.cpu()].sum(1)[:, None, None]  # less its known mean
        left = without(values, columns).mean(2) + torch.as_tensor(start).cpu().double().view(-1, 1)
        calls = sum(replicates * strata + self._ends(integral) for integral, _ in parts)
        return self._of(left, x1, calls, **what)

    def coupled(
        self,
        x1: Int[Tensor, "n L"],
        coupling: Coupling,
        minibatch: int,
        embedding: Tensor | None,
        with_information: bool,
        **what: object,
    ) -> Estimate:
        """B_0 on coupled pairs.

        The rows of a minibatch depend on each other, so a minibatch is the unit of the error.
        """
        self._check(x1)
        if not self.flow.prediction.settles(self.flow.source):
            raise ValueError(
                f"the coupled bound is infinite under {type(self.flow.prediction).__name__}; use Evidence()."
            )
        if not 1 <= minibatch <= len(x1):
            raise ValueError(f"minibatch must lie between 1 and the number of sequences, {len(x1)}; got {minibatch}")
        if len(x1) % minibatch:
            raise ValueError(
                f"{len(x1)} sequences do not split into minibatches of {minibatch}, and a smaller one would be another "
                f"coupling: pass x1[:{len(x1) // minibatch * minibatch}] or another minibatch."
            )
        by: Draws = Count() if _countable(self.flow) else Forced()
        batches = x1.split(minibatch)
        replicates, strata = self._layout(len(batches))
        generator = torch.Generator().manual_seed(self.seed)
        rates, tables, information = Rates(self.flow.schedule, 0.0), [], []
        with resting(self.model):
            for rows in batches:
                for _ in range(replicates):  # fresh source rows each time
                    x0 = self.flow.source.sample(*rows.shape, generator=generator, device=x1.device)
                    pairs = coupling.pair(x0, rows, generator, embedding=embedding, network=self.model)
                    x0, paired = (x.repeat_interleave(strata, 0) for x in (pairs.x0, pairs.x1))
                    tables.append(self._integrate(rates, by, x0, paired, (minibatch, 1, strata), generator))
                    information.append(with_information * pairs.information)
        values, columns = (torch.stack(table).flatten(1, 3) for table in zip(*tables, strict=True))
        shape = len(batches), replicates, minibatch * strata
        table = without(values.view(shape), columns.view(*shape, -1)).mean(2)
        table = table + torch.tensor(information, dtype=table.dtype).view(shape[:2])
        is_bound = with_information or isinstance(coupling, Independent)
        name = "coupled_info" if with_information else "coupled"
        what |= {"quantity": name, "eta": 0.0, "is_bound": is_bound, "coupling": type(coupling).__name__}
        return self._of(table, x1, replicates * (strata + self._ends(rates)), **what)

    def _sum(
        self,
        parts: list[tuple[Integral, Draws]],
        x0: Int[Tensor, "N L"],
        x1: Int[Tensor, "N L"],
        shape: tuple[int, int, int],
        generator: torch.Generator,
    ) -> tuple[Float[Tensor, "n R S"], Float[Tensor, "n R S C"]]:
        """Draws of the sum, whose mean over the strata is that of a replicate, and the columns that explain them."""
        tables = [self._integrate(integral, by, x0, x1, shape, generator) for integral, by in parts]
        return torch.stack([values for values, _ in tables]).sum(0), torch.cat([columns for _, columns in tables], -1)

    def _integrate(
        self,
        integral: Integral,
        by: Draws,
        x0: Int[Tensor, "N L"],
        x1: Int[Tensor, "N L"],
        shape: tuple[int, int, int],
        generator: torch.Generator,
    ) -> tuple[Float[Tensor, "n R S"], Float[Tensor, "n R S C"]]:
        n, replicates, strata = shape
        batch = self._rows_per_call(x1)
        at = by.strata(n * replicates, strata, generator)
        draw = by.draw(integral.clock, at.u.flatten(), x1.shape[1], generator).counted(at.weight.repeat(n * replicates))
        pieces = [
            self._values(integral, draw.rows(piece), x0[piece].to(x1.device), x1[piece])
            for piece in (slice(i, i + batch) for i in range(0, len(x1), batch))
        ]
        nats, *unigram = (torch.cat(column).view(*shape, -1) for column in zip(*pieces, strict=True))
        rows = x1.view(*shape, -1)[:, 0, 0]
        hard = hardness(coverage(draw).view(*shape, -1), nats, rows.cpu())
        if self._ends(integral):
            ending = self._ending(integral, rows)
            prices = draw.weight[:, None] * ending.repeated(replicates * strata).prices(draw)
            nats = nats - prices.view_as(nats) + ending.total[:, None, None]
        return nats.sum(3), torch.cat([*unigram, hard, trends(at).view(*shape, -1), bends(at).view(*shape, -1)], -1)

    def _ends(self, integral: Integral) -> bool:
        """Whether arrived positions are priced at the end: the masks of a disjoint source never return there."""
        return integral.ends and not self.flow.source.disjoint

    def _ending(self, integral: Integral, x1: Int[Tensor, "n L"]) -> Ending:
        """From one network call at xt = x1 for each sequence."""
        found = []
        for rows in x1.split(self._rows_per_call(x1)):
            t = torch.ones(len(rows), dtype=clock_dtype(self.model), device=rows.device)
            sample = PathSample(rows, rows, rows, t, torch.zeros_like(t)[:, None], torch.ones_like(t)[:, None])
            found.append(integral.ending(self._scores(sample)))
        return Ending.joined(found)

    def _values(
        self, integral: Integral, draw: Draw, x0: Int[Tensor, "N L"], x1: Int[Tensor, "N L"]
    ) -> list[Float[Tensor, "N _"]]:
        """The weighted integrand at each draw and position, and the sum of the unigram network's; one network call."""
        xt = torch.where(draw.noisy.to(x1.device), x0, x1)
        t = draw.point.t.to(clock_dtype(self.model)).to(x1.device)
        point = draw.point.to(x1.device)
        sample = PathSample(x0, x1, xt, t, point.rest, point.speed)
        scores = self._scores(sample)
        sample = scores.sample
        nats = integral.terms(scores, point)
        if bool(torch.isnan(nats).any()):
            raise ValueError("the network gave NaN: no number can be reported; look at its weights and its inputs")
        columns = [nats]
        if self.unigram is not None:  # the network that knows the frequencies only, on the same xt
            law = self._log_unigram().to(sample.rest.dtype).to(xt.device)
            nothing = torch.zeros(*xt.shape, 1, device=xt.device)
            control = Scores.from_head(nothing, lambda f: law.expand(len(f), -1), sample, Evidence(), self.flow.source)
            columns.append(integral.terms(control, point).sum(1, keepdim=True))
        return [column.cpu().double() * draw.weight[:, None] for column in columns]

    @cached_property
    def _scores(self) -> NetworkScores:
        return NetworkScores(self.model, self.flow, self.precision)

    def _rows_per_call(self, x1: Int[Tensor, "N L"]) -> int:
        return self.batch or batch_size(self.model, self.flow.vocab, x1.shape[1], x1.device)

    def _layout(self, units: int) -> tuple[int, int]:
        """Replicates and strata: an error under stratified times needs replicates, in all at least 16."""
        replicates = max(2, math.ceil(16 / units))
        return replicates, max(1, self.draws // replicates)

    def _check(self, x1: Int[Tensor, "n L"]) -> None:
        self.flow.vocab.check_ids(x1, "(n, L)")
        if x1.numel() == 0:
            raise ValueError(f"there is nothing to evaluate: x1 must be (sequences, length); got {tuple(x1.shape)}")
        self.flow.vocab.check_data(x1)
        self.flow.schedule.check_length(x1.shape[1])

    def _of(self, table: Float[Tensor, "units R"], x1: Int[Tensor, "n L"], calls: int, **what: object) -> Estimate:
        return Estimate.of(table, length=x1.shape[1], calls=calls, dtype=self._scores.dtype, **what)

    def _log_unigram(self) -> Float[Tensor, " Vd"]:
        assert self.unigram is not None
        frequencies = self.unigram.cpu().double()
        return (frequencies / frequencies.sum()).log()
