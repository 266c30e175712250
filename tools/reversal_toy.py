"""The reversal bound of trained networks on a law that can be enumerated: three tokens, five positions.

The data follow a Markov chain, the source is uniform, the pairs come from OT batches of 64. The best loss that a
network can reach follows from a table of pi(x0, x1), counted over many OT batches. `reversal_study.py trained` prints
the numbers.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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
MOMENTS = 64
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

    def tabulated(self, batches: int) -> Oracle:
        """The oracle of the pairs, counted over so many OT batches; exact for independent pairs."""
        if not self.flow.couples:
            return Oracle(self.flow, self.law, LENGTH)
        counts = torch.zeros(len(SPACE.states), len(SPACE.data), dtype=torch.float64)
        one = torch.ones(OT_BATCH, dtype=torch.float64)
        for _, (x0, x1) in zip(range(batches), self.pairs(self.seed + 1), strict=False):
            counts.index_put_((SPACE.ids(x0), SPACE.ids(x1)), one, accumulate=True)
        pi = counts / counts.sum()
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


def losses(true: Oracle, model: hf.Transformer) -> dict[str, float]:
    """Cross-entropies of x1 and x0 by the network, and the lowest possible ones, in nats per sequence."""
    network, law0 = Oracle(true.flow, true.q, LENGTH, model), head_law(model, true.flow)
    found = dict.fromkeys(("x1", "x1_best", "x0", "x0_best"), 0.0)
    for number in range(MOMENTS):
        moment = true.at((number + 0.5) / MOMENTS)
        best1, weight = true.predictive(moment)
        best0, weight = predictive_x0(true, moment)[0], weight[0][:, None, None] / MOMENTS
        for name, best, law in (("x1", best1[0], network.probs(moment)[0]), ("x0", best0, law0(moment)[0])):
            found[name] -= float(torch.where(best > 0, weight * best * law.log(), 0.0).sum())
            found[f"{name}_best"] += float((weight * torch.special.entr(best)).sum())
    return found


def drawn_excess(model: hf.Transformer, flow: hf.Flow, nll: Tensor, law: Tensor, options: Any) -> Iterator[Any]:
    """br minus the exact value for each number of paths, with its standard error.

    With W the mean weight divided by its exact mean, E[-log W] is estimated by -log W + W - 1, whose mean is the same
    and whose variance is much lower.
    """
    generator = torch.Generator().manual_seed(options.seed)
    ids = torch.multinomial(law, options.rows, True, generator=generator)
    found = hf.reversal_bound(model, flow, SPACE.data[ids], steps=options.steps, paths=options.paths, seed=3)
    log_w = found.log_weights + nll[ids][:, None]
    for paths in (1, 8, 64):
        if paths <= options.paths:
            groups = log_w[:, : options.paths // paths * paths].unflatten(1, (-1, paths))
            log_mean = groups.logsumexp(2) - math.log(paths)
            each = (log_mean.exp() - 1 - log_mean).mean(1)
            yield paths, float(each.mean()), float(each.std() / math.sqrt(len(each)))


def measure(name: str, options: Any) -> Iterator[dict[str, Any]]:
    """One line of numbers after another: losses, exact values, excesses."""
    start, toy = time.perf_counter(), Toy(name, options.seed)
    model, true = trained(toy, options.train_steps), toy.tabulated(options.tables)
    found = losses(true, model)
    above = {part: round(100 * (found[part] / found[f"{part}_best"] - 1), 3) for part in ("x1", "x0")}
    yield {"run": name, "what": "losses", **found, "percent_above": above}
    oracle = Oracle(toy.flow, toy.law, LENGTH, model)
    nll = oracle.nll(steps=options.steps)
    one = {
        "source": Reversal(oracle, options.steps),
        "head": Reversal(oracle, options.steps, x0=head_law(model, toy.flow)),
    }
    if toy.flow.couples:
        one["true x0"] = Reversal(oracle, options.steps, x0=lambda moment: predictive_x0(true, moment))
    excess = {"bn": oracle.mean(bound(oracle, steps=options.steps) - nll)}
    excess |= {f"br 1, {what}": oracle.mean(reversal.bound() - nll) for what, reversal in one.items()}
    yield {"run": name, "what": "enumerated excess", "nll": oracle.mean(nll), **excess}
    for paths, value, error in drawn_excess(model, toy.flow, nll, toy.law, options):
        yield {
            "run": name,
            "what": "drawn excess",
            "paths": paths,
            "excess": round(value, 5),
            "stderr": round(error, 5),
        }
    yield {"run": name, "what": "seconds", "seconds": round(time.perf_counter() - start)}
