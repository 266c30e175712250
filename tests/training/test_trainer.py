"""One update after another, against AdamW, clipping and the average of the weights written down by hand."""

import math
from dataclasses import dataclass

import pytest
import torch
from texts import Letters
from torch import nn

import hopflow as hf
from hopflow.runs.checkpoint import latest
from hopflow.runs.ot_batch import Share
from hopflow.training import trainer as trainers
from hopflow.training.settings import Settings
from hopflow.training.tasks import Batch, FlowTask, HeldOutEvaluation, Task
from hopflow.training.train import train
from hopflow.training.trainer import Trainer

CPU, ALONE = torch.device("cpu"), Share()
AWAY = {"lr": 0.1, "warmup": 3, "beta1": 0.8, "beta2": 0.95, "adam_eps": 0.3, "weight_decay": 0.2, "clip": 0.5}
"""Every setting of the optimizer, away from its default and large enough to matter within a few steps."""


class Line(nn.Module):
    """Nats that are (w · x - y)² of each row, after dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.model = nn.Linear(4, 1, bias=False, dtype=torch.float64)
        self.dropout, self.seen = nn.Dropout(dropout), []
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, 0.5]]))

    def forward(self, batch):
        x = self.dropout(batch.x)
        self.seen.append(x.detach().clone())
        return (self.model(x)[:, 0] - batch.y) ** 2


@dataclass(frozen=True)
class PointBatch(Batch):
    x: torch.Tensor
    y: torch.Tensor

    def parts(self, count):
        return [PointBatch(x, y) for x, y in zip(self.x.chunk(count), self.y.chunk(count), strict=True)]

    def map(self, function):
        return PointBatch(function(self.x), function(self.y))


class Lines(Task):
    def __init__(self, settings, share=ALONE, dropout=0.0):
        super().__init__(Letters(), settings, share)
        self.loss = Line(dropout)

    def batch(self, step, table=None):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(self.settings.batch, 5, generator=generator, dtype=torch.float64)
        return PointBatch(x[:, :4], x[:, 4])

    def tokens(self, step):
        return self.settings.batch

    def evaluate(self, step, device):
        return HeldOutEvaluation()


def trained(steps, share=ALONE, dropout=0.0, **keys):
    settings = Settings(batch=8, **keys)
    task = Lines(settings, share, dropout)
    trainer = Trainer(task.loss.model, task, settings, CPU, share)
    history = [task.loss.model.weight.detach().clone()]
    for step in range(steps):
        trainer.update(step)
        history.append(task.loss.model.weight.detach().clone())
    return trainer, history


def by_hand(start, batch, steps, *, lr, warmup, beta1, beta2, adam_eps, weight_decay, clip):
    w, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(steps):
        points = batch(step)
        x, y = points.x, points.y
        gradient = (2 * ((x @ w.T)[:, 0] - y)[:, None] * x).mean(0, keepdim=True)
        gradient = gradient * min(1.0, clip / (float(gradient.norm()) + 1e-6))
        rate = lr * min(1.0, (step + 1) / warmup)
        w = w * (1 - rate * weight_decay)
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * gradient**2
        root = (v / (1 - beta2 ** (step + 1))).sqrt() + adam_eps
        w = w - rate * m / (1 - beta1 ** (step + 1)) / root
    return w


def test_a_step_equals_adamw_by_hand_with_every_setting():
    trainer, history = trained(6, **AWAY)
    expected = by_hand(history[0], trainer.task.batch, 6, **AWAY)
    torch.testing.assert_close(history[-1], expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("key", ["beta1", "beta2", "adam_eps", "weight_decay", "clip"])
def test_every_optimizer_setting_changes_the_weights(key):
    """What the test above relies on: each of these settings matters in it."""
    trainer, history = trained(6, **AWAY)
    expected = by_hand(history[0], trainer.task.batch, 6, **{**AWAY, key: getattr(Settings(), key)})
    assert not torch.allclose(history[-1], expected, rtol=1e-6, atol=0)


def test_the_norm_that_is_reported_is_the_one_before_clipping():
    trainer, history = trained(1, **AWAY)
    points = trainer.task.batch(0)
    x, y = points.x, points.y
    gradient = (2 * ((x @ history[0].T)[:, 0] - y)[:, None] * x).mean(0)
    assert float(gradient.norm()) > AWAY["clip"]
    assert trainer.grad_norm == pytest.approx(float(gradient.norm()), rel=1e-6)


def test_the_weight_average_equals_its_closed_form_with_the_ramp():
    trainer, history = trained(5, weight_ema=0.25, **AWAY)
    betas = [min(0.25, (1 + t) / (10 + t)) for t in range(5)]
    assert betas[0] < 0.25 == betas[-1]  # the ramp, and what follows it
    expected = history[0] * math.prod(betas)
    for step, weights in enumerate(history[1:]):
        expected = expected + (1 - betas[step]) * math.prod(betas[step + 1 :]) * weights
    torch.testing.assert_close(trainer.average.weights["weight"].double(), expected, rtol=1e-5, atol=1e-6)


def test_evaluation_during_training_reads_the_averaged_weights(tmp_path, monkeypatch):
    seen = {}

    def evaluate(self, step, device):
        seen[step + 1] = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        return HeldOutEvaluation()

    monkeypatch.setattr(FlowTask, "evaluate", evaluate)
    corpus = Letters()
    flow = hf.Flow(hf.Mask.fit(corpus.counts))
    model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=32, heads=2))
    train(model, flow, corpus, out=tmp_path, steps=4, batch=8, eval_every=2, workers=0, threads=1, weight_ema=0.9)
    saved = latest(tmp_path / "checkpoints").groups
    assert seen.keys() == {2, 4}
    for name, weights in seen[4].items():
        assert torch.equal(weights, saved["model"][name])
        assert torch.equal(dict(model.named_parameters())[name], saved["train"][name])  # its own again afterwards
    assert not torch.equal(saved["model"]["head.weight"], saved["train"]["head.weight"])


class Alone(nn.Module):
    """In place of DistributedDataParallel: the loss of one process, without the others."""

    def __init__(self, loss, device_ids):
        super().__init__()
        self.forward = loss.forward


def masks(monkeypatch, rank, world):
    """What dropout leaves of each step's batch on one process of several."""
    monkeypatch.setattr(trainers, "DistributedDataParallel", Alone)
    monkeypatch.setattr(trainers.dist, "all_reduce", lambda tensor: None)
    trainer, _ = trained(2, Share(rank, world), dropout=0.5)
    return [seen == 0 for seen in trainer.task.loss.seen]


def test_dropout_differs_between_processes_and_between_steps(monkeypatch):
    first, second = masks(monkeypatch, 0, 2), masks(monkeypatch, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(first, masks(monkeypatch, 0, 2), strict=True))
    assert not torch.equal(first[0], second[0])
    assert not torch.equal(first[0], first[1])
