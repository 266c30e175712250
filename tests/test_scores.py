import pytest
import torch
from cases import SOURCES, VOCAB, Allocations, name, random_logits, sample_at, whole_rows
from torch.nn.functional import linear
from toys import generator

from hopflow import scores as scores_module
from hopflow.flow import Flow
from hopflow.objectives import Bound, CrossEntropy
from hopflow.paths import PathSample
from hopflow.predictions import EXAMPLES, Evidence
from hopflow.scores import Scores, open_positions
from hopflow.sources import Uniform
from hopflow.vocab import Vocab

each_source = pytest.mark.parametrize("source", SOURCES, ids=name)
each_prediction = pytest.mark.parametrize("prediction", EXAMPLES, ids=name)
each_objective = pytest.mark.parametrize("objective", [CrossEntropy(), Bound(0.0), Bound(1.0)], ids=repr)
TIMES = torch.tensor([0.05, 0.3, 0.5, 0.8, 0.95], dtype=torch.float64)


def head_of(vocab: Vocab, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of a batch of TIMES and the weights of a head."""
    features = torch.randn(len(TIMES), 2, width, generator=generator(7), dtype=torch.float64)
    weights = torch.randn(vocab.data, width, generator=generator(8), dtype=torch.float64)
    return features.requires_grad_(), weights.requires_grad_()


def numbers(scores: Scores) -> torch.Tensor:
    return torch.stack([scores.log_p1, scores.log_pt, scores.log_other])


@each_source
@each_prediction
def test_the_three_numbers_are_those_of_whole_rows(source, prediction):
    sample = sample_at(source, TIMES, length=4)
    logits = random_logits(sample, source)
    p = whole_rows(logits, sample, prediction, source)
    p1, pt = (p.gather(-1, x[..., None])[..., 0] for x in (sample.x1, sample.xt))
    other = p.scatter(-1, sample.xt[..., None], 0.0).sum(-1)
    found = Scores.from_logits(logits, sample, prediction, source)
    torch.testing.assert_close(numbers(found), torch.stack([p1, pt, other]).log(), rtol=1e-10, atol=1e-10)


@each_source
@each_prediction
def test_logits_and_a_chunked_head_give_the_same_numbers(source, prediction, monkeypatch):
    monkeypatch.setattr(scores_module, "CHUNK", 2 * VOCAB.data)  # two rows at a time
    sample = sample_at(source, TIMES)
    features, weights = head_of(VOCAB)
    by_logits = Scores.from_logits(linear(features, weights), sample, prediction, source)
    by_head = Scores.from_head(features, lambda f: linear(f, weights), sample, prediction, source)
    torch.testing.assert_close(numbers(by_head), numbers(by_logits), rtol=1e-12, atol=1e-12)


@each_source
@each_prediction
@each_objective
def test_logits_a_head_and_whole_rows_give_the_same_gradients(source, prediction, objective, monkeypatch):
    monkeypatch.setattr(scores_module, "CHUNK", 2 * VOCAB.data)
    sample = sample_at(source, TIMES)
    features, weights = head_of(VOCAB)

    def gradients(scores):
        return torch.autograd.grad(objective(scores, sample).sum(), [features, weights])

    by_logits = gradients(Scores.from_logits(linear(features, weights), sample, prediction, source))
    by_head = gradients(Scores.from_head(features, lambda f: linear(f, weights), sample, prediction, source))
    torch.testing.assert_close(by_head, by_logits, rtol=1e-10, atol=1e-12)
    if isinstance(objective, CrossEntropy):
        rest = sample.rest.expand(sample.xt.shape)
        rows = prediction.log_probs(linear(features, weights), sample.xt, rest, source)
        plain = -rows.gather(-1, sample.x1[..., None]).sum()
        torch.testing.assert_close(torch.autograd.grad(plain, [features, weights]), by_logits, rtol=1e-10, atol=1e-12)


@each_source
@each_prediction
@each_objective
def test_the_gradient_of_a_loss_is_its_derivative(source, prediction, objective):
    flow = Flow(source, prediction=prediction, objective=objective)
    sample = sample_at(source, TIMES[[1, 3]], seed=11)
    logits = random_logits(sample, source).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: flow.loss(x, sample), (logits,))


def near_the_end() -> tuple[torch.Tensor, PathSample, Uniform]:
    """A data token of a uniform source at 1 - k = 1e-7; the others are .732 times as likely by context."""
    source = Uniform(Vocab(3))
    xt = torch.zeros(1, 1, dtype=torch.long)
    rest = torch.full((1, 1), 1e-7)
    logits = torch.tensor([[[1.0, 0.366, 0.366]]]).log()
    return logits, PathSample(xt, xt, xt, 1 - rest[0], rest, torch.ones(1, 1)), source


def test_one_minus_p_keeps_its_digits_where_p_rounds_to_one():
    logits, sample, source = near_the_end()
    scores = Scores.from_logits(logits, sample, Evidence(), source)
    exact = 1e-7 / 3 * 0.732  # (1-k)·p0(xt)·(others by context) over k, to first order
    assert float(scores.log_other.exp()) == pytest.approx(exact, rel=1e-5)
    leaves = scores.log_other.exp() / sample.rest
    assert float(leaves) == pytest.approx(0.244, rel=1e-5)
    naive = (1 - scores.log_pt.exp()) / sample.rest
    assert float(naive) == 0.0  # what 1 - exp(log P) says of .244


@each_source
def test_one_minus_p_keeps_its_digits_for_every_source(source):
    sample = sample_at(source, 1 - torch.full((64,), 2.0**-23))
    logits = random_logits(sample, source, dtype=torch.float32)
    found = Scores.from_logits(logits, sample, Evidence(), source).log_other
    wide = PathSample(sample.x0, sample.x1, sample.xt, sample.t.double(), sample.rest.double(), sample.dk.double())
    exact = Scores.from_logits(logits.double(), wide, Evidence(), source).log_other
    torch.testing.assert_close(found.exp().double(), exact.exp(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_objective
def test_no_second_tensor_of_the_logits_size_is_made(objective, dtype, monkeypatch):
    monkeypatch.setattr(scores_module, "CHUNK", 4 * 128)  # four rows at a time
    source = Uniform(Vocab(128))
    sample = sample_at(source, torch.rand(8, generator=generator(0)), length=16)
    logits = random_logits(sample, source, dtype=dtype).requires_grad_()
    with Allocations(logits) as forward:
        loss = objective(Scores.from_logits(logits, sample, Evidence(), source), sample).sum()
    assert forward.largest <= 4 * 128
    with Allocations(logits) as backward:
        torch.autograd.grad(loss, logits)
    large = [size for size in backward.made.values() if size > 4 * 128]
    assert large == [logits.numel()]  # the gradient itself


@each_objective
def test_with_a_head_full_logits_never_exist(objective, monkeypatch):
    monkeypatch.setattr(scores_module, "CHUNK", 4 * 128)
    source = Uniform(Vocab(128))
    sample = sample_at(source, torch.rand(8, generator=generator(0)), length=16)
    features = torch.randn(8, 16, 3, generator=generator(1), requires_grad=True)
    weights = torch.randn(128, 3, generator=generator(2), requires_grad=True)
    with Allocations(features, weights) as all_of_it:
        scores = Scores.from_head(features, lambda f: linear(f, weights), sample, Evidence(), source)
        torch.autograd.grad(objective(scores, sample).sum(), [features, weights])
    assert all_of_it.largest <= 4 * 128


def test_rows_in_one_chunk_or_in_many_give_the_same_loss(monkeypatch):
    flow = Flow(Uniform(VOCAB), objective=Bound(1.0))
    sample = sample_at(flow.source, TIMES)
    logits = random_logits(sample, flow.source)
    losses = []
    for chunk in (1, 7, 1 << 22):
        monkeypatch.setattr(scores_module, "CHUNK", chunk)
        losses.append(flow.loss(logits, sample))
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])


@pytest.mark.parametrize("width", [2, 5])
def test_logits_over_anything_but_the_data_tokens_are_refused(width):
    sample = sample_at(SOURCES[0], TIMES)
    with pytest.raises(
        ValueError, match=r"last dimension of the logits must be 3, the number of data tokens, got shape \(5, 2, "
    ):
        Scores.from_logits(torch.zeros(5, 2, width), sample, Evidence(), SOURCES[0])


@pytest.mark.parametrize("width", [2, 5])
def test_a_head_over_anything_but_the_data_tokens_is_refused(width):
    sample = sample_at(Uniform(VOCAB), TIMES)
    features = torch.zeros(5, 2, 4)
    with pytest.raises(ValueError, match="the number of data tokens"):
        _ = Scores.from_head(features, lambda f: torch.zeros(len(f), width), sample, Evidence(), Uniform(VOCAB)).log_p1


class Headed(torch.nn.Module):
    """Given features, and a head that counts the rows it is asked for."""

    def __init__(self, features: torch.Tensor, weights: torch.Tensor) -> None:
        super().__init__()
        self.given, self.weights, self.rows = features, weights, 0

    def features(self, xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.given

    def head(self, features: torch.Tensor) -> torch.Tensor:
        self.rows += features[..., 0].numel()
        return linear(features, self.weights)

    def forward(self, xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return linear(self.given, self.weights)


@each_source
@each_prediction
@each_objective
@pytest.mark.parametrize("counted", [False, True])
def test_a_network_asked_only_where_tokens_may_move_has_the_loss_and_gradients_of_its_full_logits(
    source, prediction, objective, counted
):
    sample = sample_at(source, TIMES)
    features, weights = head_of(VOCAB)
    model, flow = Headed(features, weights), Flow(source, prediction=prediction, objective=objective)
    places = open_positions(sample, prediction, source)
    asked = flow.ask(model, sample, count=int(places.sum()) if counted else None)
    found, whole = objective(asked, sample), flow.loss(model(sample.xt, sample.t), sample)
    torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(*(torch.autograd.grad(x.sum(), (features, weights)) for x in (found, whole)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
    if prediction.keeps_data_tokens(source):
        assert model.rows == int(places.sum()) < places.numel()


def test_a_network_without_a_head_is_asked_for_its_logits():
    source = SOURCES[0]
    sample = sample_at(source, TIMES)
    logits = random_logits(sample, source)
    found = Flow(source).ask(lambda xt, t: logits, sample)
    assert torch.equal(found.log_p1, Scores.from_logits(logits, sample, Evidence(), source).log_p1)
