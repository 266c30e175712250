"""Every device gives the numbers of the CPU: losses, gradients, bounds, and laws of samples."""

import os

import pytest
import torch
import toys
from scipy.stats import chisquare
from torch import Tensor, nn

from hopflow import costs
from hopflow.bounds.coupled import coupled_bound
from hopflow.bounds.nll import kappa_bound, nll_bound
from hopflow.costs import OneStepLikelihood
from hopflow.couplings import ExactOT
from hopflow.flow import Flow
from hopflow.objectives import Bound, CrossEntropy, NoisyCrossEntropy
from hopflow.paths import PathSample
from hopflow.predictions import Carry, Evidence, Plain
from hopflow.runs.devices import cores
from hopflow.sampling.generate import generate
from hopflow.sampling.random_draws import categorical
from hopflow.scores import Scores
from hopflow.sources import examples
from hopflow.training.pairing.pairs import Pairing
from hopflow.transport import cost_matrix
from hopflow.vocab import Vocab

DEVICES = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device here")),
    "cpu",
]
VOCAB = Vocab(31, 7)


class Small(nn.Module):
    """A network of one's own: an embedding, a mixing layer, a head; it offers features and a head apart."""

    def __init__(self, vocab: Vocab, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab.size, width)
        self.mix = nn.Linear(2 * width + 1, width)
        self.head = nn.Linear(width, vocab.data)

    def features(self, xt: Tensor, t: Tensor) -> Tensor:
        e = self.embedding(xt)
        around = e.mean(1, keepdim=True).expand_as(e)
        return torch.tanh(self.mix(torch.cat([e, around, t[:, None, None].expand(*xt.shape, 1)], -1)))

    def forward(self, xt: Tensor, t: Tensor) -> Tensor:
        return self.head(self.features(xt, t))


def network() -> Small:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small(VOCAB)


def moved(sample: PathSample, device: str) -> PathSample:
    return PathSample(*(getattr(sample, name).to(device) for name in ("x0", "x1", "xt", "t", "rest", "dk")))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("prediction", [Plain(), Carry(), Evidence()], ids=str)
@pytest.mark.parametrize("index", range(len(toys.SOURCES)), ids=toys.SOURCES)
def test_losses_and_gradients_are_those_of_the_cpu(device, prediction, index):
    source = examples(VOCAB)[index]
    g = toys.generator(1)
    x1 = torch.randint(0, VOCAB.data, (8, 12), generator=g)
    for objective in (CrossEntropy(), Bound(0.0), Bound(1.0), *([NoisyCrossEntropy()] if source.disjoint else [])):
        flow = Flow(source, prediction=prediction, objective=objective)
        sample = flow.path.sample(source.sample(8, 12, generator=g), x1, torch.rand(8, generator=g), g)
        results = []
        for where in ("cpu", device):
            model, here = network().to(where), moved(sample, where)
            logits = model(here.xt, here.t)
            loss = flow.loss(logits, here)
            loss.mean().backward()
            chunked = Scores.from_head(model.features(here.xt, here.t), model.head, here, prediction, source)
            torch.testing.assert_close(objective(chunked, here), loss, rtol=1e-4, atol=1e-4)
            results.append([loss.detach().cpu(), *(p.grad.cpu() for p in model.parameters())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(b, a, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(len(toys.SOURCES)), ids=toys.SOURCES)
def test_bounds_are_those_of_the_cpu_with_the_same_seed(device, index):
    flow = Flow(examples(VOCAB)[index])
    x1 = torch.randint(0, VOCAB.data, (32, 12), generator=toys.generator(2))
    unigram = torch.full((VOCAB.data,), 1 / VOCAB.data)

    def all_bounds(where: str) -> list[float]:
        model, data = network().to(where), x1.to(where)
        found = [nll_bound(model, flow, data, eta=eta, precision="float32") for eta in (0.0, 1.0)]
        found += [
            nll_bound(model, flow, data, eta=1.0, steps=16, precision="float32"),
            nll_bound(model, flow, data, eta=1.0, unigram=unigram, precision="float32"),
        ]
        found += [coupled_bound(model, flow, data, ExactOT(), minibatch=8, precision="float32")]
        if flow.source.full:
            found.append(kappa_bound(model, flow, data, precision="float32"))
        return [estimate.nats for estimate in found]

    assert all_bounds(device) == pytest.approx(all_bounds("cpu"), rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_costs_and_pairs_are_those_of_the_cpu_and_pairs_come_back_to_it(device):
    g = toys.generator(3)
    x0, x1 = torch.randint(0, VOCAB.data, (2, 16, 12), generator=g)
    table = network().embedding.weight.detach()
    for cost in costs.EXAMPLES[:2]:
        there = table.to(device)
        found = cost.matrix(x0.to(device), x1.to(device), there).cpu()
        # a GPU may round the table to bfloat16, by 2^-9 of a coordinate, and is then exact for the rounded one
        rounded = (there - there.mean(0)).bfloat16().float().cpu() if cost_matrix.rounds(there) else table
        torch.testing.assert_close(found, cost.matrix(x0, x1, rounded), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found, cost.matrix(x0, x1, table), rtol=5e-3, atol=1e-4)
    flow, labels = Flow(examples(VOCAB)[0], coupling=ExactOT(OneStepLikelihood())), torch.arange(16) % 2
    reports = []
    for where in ("cpu", device):
        with Pairing(flow, lambda b: x1, length=12, batch=8, ot_batch=16, groups=lambda b: labels) as pairing:
            x0, same = pairing.ot_pairs(0, network=network().to(where))
            assert x0.device.type == "cpu"
            assert torch.equal(same, x1)
            reports.append(pairing.report(0))
    assert reports[0].cost == pytest.approx(reports[1].cost, rel=1e-4)
    assert reports[0].independent_cost == pytest.approx(reports[1].independent_cost, rel=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_samples_follow_the_exact_law(device, name, eta):
    flow = toys.oracle(name)

    def model(xt: Tensor, t: Tensor) -> Tensor:
        return flow.model(xt.cpu(), t.cpu()).float().to(xt.device)

    out = generate(model, flow.flow, n=20_000, length=2, steps=4, eta=eta, device=device, seed=3)
    assert out.tokens.device.type == device
    counts = torch.bincount(out.tokens.cpu()[:, 0] * 3 + out.tokens.cpu()[:, 1], minlength=9).numpy()
    expected = 20_000 * flow.law(eta=eta, steps=4).numpy()
    assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 0.001 / (8 * len(DEVICES))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(len(toys.SOURCES)), ids=toys.SOURCES)
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_seed_means_the_same_events_and_random_numbers_on_every_device(device, index, eta):
    flow = Flow(examples(VOCAB)[index])
    wide = torch.float32 if device == "mps" else torch.float64
    runs = []
    for where in ("cpu", device):
        model = network().to(wide).to(where)
        runs.append(generate(model, flow, n=50, length=12, steps=64, eta=eta, seed=3, trajectory=True))
    for field in ("x0", "calls") + (() if device == "mps" else ("redraws", "changes", "tokens")):
        assert torch.equal(getattr(runs[0], field), getattr(runs[1], field).cpu()), field
    if device != "mps":
        assert torch.equal(runs[0].hops.after, runs[1].hops.after.cpu())


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_with_tiny_equal_probabilities_are_drawn_at_the_right_index(device):
    row = torch.full((50_001,), 2e-8).log()
    row[0] = torch.tensor(0.999).log()
    place = torch.randint(50_000, (200,), generator=toys.generator(0))
    u = 0.999 + 2e-8 * (place.double() + 0.5)
    found = categorical(row.to(device).expand(200, -1), u if device == "mps" else u.to(device))
    assert (found.cpu() - place - 1).abs().max() <= 1  # a device's exp may differ in the last digit


@pytest.mark.parametrize(("affinity", "count", "expected"), [({2, 5, 7}, 8, 3), (None, 6, 6), (None, None, 1)])
def test_the_cores_are_those_of_this_process_or_else_of_the_machine(monkeypatch, tmp_path, affinity, count, expected):
    if affinity is None:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    else:
        own = {0: affinity}  # 0 is this process
        monkeypatch.setattr(os, "sched_getaffinity", own.__getitem__, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert cores(tmp_path) == expected
