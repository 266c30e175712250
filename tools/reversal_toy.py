"""The reversal bound of trained networks on a law that can be enumerated: three tokens, five positions.

The data follow a Markov chain, the source is uniform, the pairs come from OT batches of 64. The best loss that a
network can reach follows from a table of pi(x0, x1), counted over many OT batches. `reversal_study.py trained` prints
the numbers.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hopflow as hf
from hopflow.bounds.x0_posterior import X0Posterior
from hopflow.exact import Joint, Oracle, Reversal, Space, bound, predictive_x0
from hopflow.training.averages import WeightEma
from hopflow.training.tasks import LAST, FlowBatch, FlowLoss

VOCAB, LENGTH, OT_BATCH = hf.Vocab(3), 5, 64
SPACE = Space(VOCAB, LENGTH)
COUPLINGS = {"independent": hf.Independent(), "exact": hf.ExactOT(), "sinkhorn": hf.SinkhornOT(eps=0.1)}
MOMENTS = 32
"""Times at which the loss is enumerated."""


def markov(length: int = LENGTH) -> Tensor:
    """The law of the data over all sequences of this length."""
    data = Space(VOCAB, length).data
    steps = torch.tensor([[0.8, 0.15, 0.05], [0.05, 0.8, 0.15], [0.15, 0.05, 0.8]], dtype=torch.float64)
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)[data[:, 0]]
    for i in range(length - 1):
        law = law * steps[data[:, i], data[:, i + 1]]
    return law


@dataclass(frozen=True, eq=False)
class Toy:
    """A coupling of the law above, and its pairs."""

    name: str
    seed: int = 0

    @cached_property
    def flow(self) -> hf.Flow:
        return hf.Flow(hf.Uniform(VOCAB), coupling=COUPLINGS[self.name])

    @cached_property
    def law(self) -> Tensor:
        return markov()

    def pairs(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """OT batches without end."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            x1 = SPACE.data[torch.multinomial(self.law, OT_BATCH, True, generator=generator)]
            x0 = torch.randint(VOCAB.size, x1.shape, generator=generator)
            found = self.flow.coupling.pair(x0, x1, generator)
            yield found.x0, found.x1

    def tabulated(self, batches: int) -> list[Oracle]:
        """Oracles of the pairs: counted over all OT batches, and over each half. One for independent pairs, exact."""
        if not self.flow.couples:
            return [Oracle(self.flow, self.law, LENGTH)]
        halves = torch.zeros(2, len(SPACE.states), len(SPACE.data), dtype=torch.float64)
        one = torch.ones(OT_BATCH, dtype=torch.float64)
        for number, (x0, x1) in zip(range(batches), self.pairs(self.seed + 1), strict=False):
            halves[number % 2].index_put_((SPACE.ids(x0), SPACE.ids(x1)), one, accumulate=True)
        return [self.of_pairs(counts / counts.sum()) for counts in (halves.sum(0), *halves)]

    def of_pairs(self, pi: Tensor) -> Oracle:
        return Oracle(self.flow, pi.sum(0), LENGTH, None, Joint.of(SPACE, pi))


def trained(toy: Toy, steps: int, groups: int = 8, lr: float = 3e-3) -> hf.Transformer:
    """A small transformer with an x0 head, trained on `groups` OT batches a step; float64 with averaged weights."""
    torch.manual_seed(toy.seed)
    model = hf.Transformer(VOCAB, hf.Size(2, 48, 2), dropout=0.0, predict_x0=True)
    tokens = torch.stack([(toy.law[:, None] * (SPACE.data == token)).sum() for token in range(VOCAB.data)])
    model.x0_head.fit(tokens * 1e6, toy.flow.source.token_probs())
    loss, average = FlowLoss(model, toy.flow), WeightEma(model, 0.999)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / 100) * (1 + math.cos(math.pi * n / steps)) / 2
    )
    generator, pairs = torch.Generator().manual_seed(toy.seed), toy.pairs(toy.seed + 2)
    for step in range(steps):
        x0, x1 = (torch.cat(part) for part in zip(*(next(pairs) for _ in range(groups)), strict=True))
        t = (torch.randperm(len(x0), generator=generator) + torch.rand(len(x0), generator=generator)) / len(x0)
        sample = toy.flow.path.sample(x0, x1, t.clamp(max=LAST), generator)
        optimizer.zero_grad()
        loss(FlowBatch(sample)).mean().backward()
        optimizer.step()
        schedule.step()
        average.update(model, step)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(average.weights[name])
    return model.double().eval()


def head_law(model: hf.Transformer, flow: hf.Flow) -> Any:
    """p_{0|t} of the x0 head for every state, as the oracle asks for it."""
    row, position = torch.cartesian_prod(torch.arange(len(SPACE.states)), torch.arange(LENGTH)).unbind(1)

    @torch.no_grad()
    def law(moment: Any) -> Tensor:
        t = moment.t.expand(len(SPACE.states))
        features = model.x0_features(model.features(SPACE.states, t), SPACE.states, t)
        posterior = X0Posterior.from_head(model.x0_head, features, SPACE.states, moment.rest, flow.source)
        return posterior.rows(row, position).exp().view(1, len(SPACE.states), LENGTH, VOCAB.size)

    return law


def lowest(true: Oracle) -> tuple[float, float]:
    """The lowest possible cross-entropies of x1 and x0, in nats per sequence."""
    found = torch.zeros(2, dtype=torch.float64)
    for _, weight, *laws in moments(true):
        found += torch.stack([(weight * torch.special.entr(law)).sum() for law in laws])
    return float(found[0]), float(found[1])


def losses(true: Oracle, model: hf.Transformer) -> tuple[float, float]:
    """The cross-entropies of x1 and x0 by the network."""
    network, law0 = Oracle(true.flow, true.q, LENGTH, model), head_law(model, true.flow)
    found = torch.zeros(2, dtype=torch.float64)
    for moment, weight, *laws in moments(true):
        by_network = (network.probs(moment)[0], law0(moment)[0])
        pairs = zip(laws, by_network, strict=True)
        found -= torch.stack([torch.where(p > 0, weight * p * log.log(), 0.0).sum() for p, log in pairs])
    return float(found[0]), float(found[1])


def moments(true: Oracle) -> Iterator[tuple[Any, Tensor, Tensor, Tensor]]:
    """Times, the weight of each state at them, and the true laws of x1 and x0 given the state."""
    for number in range(MOMENTS):
        moment = true.at((number + 0.5) / MOMENTS)
        law, weight = true.predictive(moment)
        yield moment, weight[0][:, None, None] / MOMENTS, law[0], predictive_x0(true, moment)[0]


def drawn_excess(
    model: hf.Transformer, toy: Toy, nll: Tensor, steps: int, rows: int, paths: int
) -> Iterator[tuple[int, float, float]]:
    """br minus the exact value for each number of paths, with its standard error.

    With W the mean weight divided by its exact mean, W - 1 has mean 0: it is a control variate of -log W, with the
    coefficient of least squares.
    """
    ids = torch.multinomial(toy.law, rows, True, generator=torch.Generator().manual_seed(toy.seed))
    found = hf.reversal_bound(model, toy.flow, SPACE.data[ids], steps=steps, paths=paths, seed=3)
    log_w = found.log_weights + nll[ids][:, None]
    for count in (count for count in (1, 8, 64) if count <= paths):
        groups = log_w[:, : paths // count * count].unflatten(1, (-1, count))
        log_mean = groups.logsumexp(2) - math.log(count)
        value, control = -log_mean.mean(1), log_mean.exp().mean(1) - 1
        centred = control - control.mean()
        each = value - (value * centred).sum() / (centred**2).sum() * control
        yield count, float(each.mean()), float(each.std() / math.sqrt(len(each)))


def measure(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """One line of numbers after another: losses, and for each number of steps the excess over the exact value."""
    toy, folder = Toy(name, options.seed), Path(options.out) / f"toy_{name}"
    if not folder.exists():
        hf.save_pretrained(folder, trained(toy, options.train_steps), toy.flow)
    model = hf.from_pretrained(folder).model
    true, *halves = toy.tabulated(options.tables)
    found, best, by_half = losses(true, model), lowest(true), [lowest(half) for half in halves]
    for part, what in enumerate(("x1", "x0")):
        least = best[part]
        if by_half:  # a table has an entropy that is too low by a constant over its number of pairs
            least = 2 * least - sum(half[part] for half in by_half) / 2
        above = round(100 * (found[part] / least - 1), 3)
        yield {"run": name, "loss of": what, "network": found[part], "lowest": least, "percent above": above}
    for steps in options.toy_steps:
        yield from excesses(toy, model, true, steps, options)


def excesses(toy: Toy, model: hf.Transformer, true: Oracle, steps: int, options: Any) -> Iterator[dict[str, Any]]:
    """The excess of bn and of br over the exact value: enumerated for one path, drawn for more."""
    oracle, facts = Oracle(toy.flow, toy.law, LENGTH, model), {"run": toy.name, "steps": steps}
    nll = oracle.nll(steps=steps)
    found = {
        "bn": bound(oracle, steps=steps),
        "br 1, no head": Reversal(oracle, steps).bound(),
        "br 1, head": Reversal(oracle, steps, x0=head_law(model, toy.flow)).bound(),
        "br 1, true x0": Reversal(oracle, steps, x0=lambda moment: predictive_x0(true, moment)).bound(),
    }
    excess = {what: round(oracle.mean(value - nll), 4) for what, value in found.items()}
    # a table has empty cells, from which no step may start: mix in a few independent pairs
    pi = 0.999 * true.joint.matrix(SPACE) if true.joint else 0.0
    best = toy.of_pairs(pi + (0.001 if true.joint else 1.0) * true.source_law[:, None] * toy.law)
    perfect = Reversal(best, steps, x0=lambda moment: predictive_x0(best, moment)).bound() - best.nll(steps=steps)
    yield {**facts, "nll": round(oracle.mean(nll), 4), **excess, "br 1, perfect network": round(best.mean(perfect), 4)}
    for paths, value, error in drawn_excess(model, toy, nll, steps, options.rows, options.paths):
        yield {**facts, "drawn": paths, "excess": round(value, 5), "stderr": round(error, 5)}
