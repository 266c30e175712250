import pytest
import torch
from cases import SOURCES, VOCAB, name, random_logits, sample_at, whole_rows
from toys import generator

from hopflow.divergences import kernel_divergence, proposal_divergence, rate_divergence
from hopflow.paths import PathSample
from hopflow.predictions import EXAMPLES, Evidence, Plain
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.scores import Scores
from hopflow.sources import BagOfWords, Uniform
from hopflow.velocities import kernel, step_sizes, velocity

each_source = pytest.mark.parametrize("source", SOURCES, ids=name)
each_prediction = pytest.mark.parametrize("prediction", EXAMPLES, ids=name)
each_eta = pytest.mark.parametrize("eta", [0.0, 1.0, 2.0])
POSITIONAL = Positional((Linear(), Cosine(), Polynomial(2.0)))
TIMES = torch.tensor([0.02, 0.3, 0.5, 0.7, 0.98], dtype=torch.float64).repeat(8)


def difference(c, v):
    """c log(c/v) - c + v, as it is written, over the last axis."""
    return (torch.where(c > 0, c * (c / v).log(), 0.0) - c + v).sum(-1)


def clocks(sample: PathSample) -> tuple[torch.Tensor, torch.Tensor]:
    rest = sample.rest.double().expand(sample.xt.shape)
    return 1 - rest, rest


def arrow(sample: PathSample) -> torch.Tensor:
    return torch.eye(VOCAB.size, dtype=torch.float64)[sample.x1]


def plain_rate(logits, sample, prediction, source, eta):
    """(B) by whole rows of (F)."""
    p, p0, (k, rest) = whole_rows(logits, sample, prediction, source), source.token_probs(), clocks(sample)
    c, v = (velocity(law, sample.xt, p0, k, rest, eta) for law in (arrow(sample), p))
    return difference(c, v)


def plain_kernel(logits, sample, prediction, source, r, s):
    """(B_N) by whole rows of (F_N)."""
    p, p0, (k, rest) = whole_rows(logits, sample, prediction, source), source.token_probs(), clocks(sample)
    r, s = (x.double().expand(sample.xt.shape) for x in (r, s))
    return difference(*(kernel(law, sample.xt, p0, k, rest, r, s) for law in (arrow(sample), p)))


def plain_proposal(logits, sample, prediction, source):
    """(B_κ) as theory.md has it, whole rows."""
    p, p0, (k, rest) = whole_rows(logits, sample, prediction, source), source.token_probs(), clocks(sample)
    kappa = torch.exp(-rest)
    rho = kappa / (kappa + (1 - kappa) * p0[sample.xt])
    noise = 1 - rho * (sample.xt == sample.x1)
    c = (kappa / (1 - kappa))[..., None] * arrow(sample) + noise[..., None] * p0
    away = sample.xt[..., None]
    return difference(c.scatter(-1, away, 0.0), velocity(p, sample.xt, p0, k, rest, 0.0))


@each_source
@each_prediction
@each_eta
@pytest.mark.parametrize("schedule", [Linear(), POSITIONAL], ids=["shared", "positional"])
def test_the_rate_divergence_is_that_of_whole_rows(source, prediction, eta, schedule):
    sample = sample_at(source, TIMES, length=3, schedule=schedule)
    logits = random_logits(sample, source)
    found = rate_divergence(Scores.from_logits(logits, sample, prediction, source), eta)
    torch.testing.assert_close(found, plain_rate(logits, sample, prediction, source, eta), rtol=1e-8, atol=1e-11)


@each_source
@each_prediction
@each_eta
@pytest.mark.parametrize("share", [0.01, 1.0])
def test_the_kernel_divergence_is_that_of_whole_rows(source, prediction, eta, share):
    sample = sample_at(source, TIMES, length=3)
    logits = random_logits(sample, source)
    r, s = step_sizes(sample.rest, share * sample.rest, torch.full_like(sample.rest, eta))
    found = kernel_divergence(Scores.from_logits(logits, sample, prediction, source), r, s, spread=eta != 0)
    torch.testing.assert_close(found, plain_kernel(logits, sample, prediction, source, r, s), rtol=1e-8, atol=1e-11)


@each_source
@each_prediction
@each_eta
def test_the_first_step_is_a_step_like_any_other(source, prediction, eta):
    sample = sample_at(source, torch.zeros(16, dtype=torch.float64), length=3)
    logits = random_logits(sample, source)
    r, s = step_sizes(sample.rest, 0.1 * sample.rest, torch.full_like(sample.rest, eta))
    found = kernel_divergence(Scores.from_logits(logits, sample, prediction, source), r, s, spread=eta != 0)
    torch.testing.assert_close(found, plain_kernel(logits, sample, prediction, source, r, s), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("source", [Uniform(VOCAB), BagOfWords(VOCAB, (0.6, 0.3, 0.1))], ids=name)
@each_prediction
def test_the_proposal_divergence_is_that_of_whole_rows(source, prediction):
    sample = sample_at(source, TIMES, length=3)
    logits = random_logits(sample, source)
    found = proposal_divergence(Scores.from_logits(logits, sample, prediction, source))
    torch.testing.assert_close(found, plain_proposal(logits, sample, prediction, source), rtol=1e-9, atol=1e-11)


@each_source
@each_eta
def test_a_perfect_guess_diverges_from_nothing(source, eta):
    sample = sample_at(source, TIMES, length=3)
    sure = 60.0 * torch.eye(VOCAB.data, dtype=torch.float64)[sample.x1]
    scores = Scores.from_logits(sure, sample, Evidence(), source)
    r, s = step_sizes(sample.rest, 0.3 * sample.rest, torch.full_like(sample.rest, eta))
    for found in (rate_divergence(scores, eta), kernel_divergence(scores, r, s, spread=eta != 0)):
        assert (found.abs() < 1e-12).all()


@each_source
@each_prediction
@each_eta
def test_no_divergence_is_negative(source, prediction, eta):
    sample = sample_at(source, TIMES, length=3)
    scores = Scores.from_logits(4 * random_logits(sample, source), sample, prediction, source)
    r, s = step_sizes(sample.rest, 0.3 * sample.rest, torch.full_like(sample.rest, eta))
    assert (rate_divergence(scores, eta) >= -1e-12).all()
    assert (kernel_divergence(scores, r, s, spread=eta != 0) >= -1e-12).all()


def test_eta_may_change_with_time():
    source = Uniform(VOCAB)
    sample = sample_at(source, TIMES)
    scores = Scores.from_logits(random_logits(sample, source), sample, Evidence(), source)
    found = rate_divergence(scores, lambda t: 2 * t)
    rows = [rate_divergence(scores, 2 * float(t))[i] for i, t in enumerate(sample.t)]
    torch.testing.assert_close(found, torch.stack(rows))


def test_the_rate_divergence_is_continuous_at_the_source():
    source = Uniform(VOCAB)
    start, soon = (sample_at(source, torch.full((4,), t, dtype=torch.float64)) for t in (0.0, 1e-12))
    logits = random_logits(start, source)
    assert torch.equal(start.xt, soon.xt)
    at, near = (rate_divergence(Scores.from_logits(logits, s, Evidence(), source), 1.0) for s in (start, soon))
    torch.testing.assert_close(at, near, rtol=1e-6, atol=1e-9)


# -- float32 at the ends: at 1 - k = 1e-7 P(xt) rounds to 1, at k = 1e-6 c and v are large and nearly equal --


def at_the_edge(source, rest: float) -> PathSample:
    """Half of the positions noisy, however rare that is there."""
    shape = (32, 4)
    x1 = torch.randint(VOCAB.data, shape, generator=generator(0))
    x0 = source.sample(*shape, generator=generator(1))
    xt = torch.where(torch.rand(shape, generator=generator(2)) < 0.5, x0, x1)
    column = torch.full((32, 1), rest)
    return PathSample(x0, x1, xt, 1 - column[:, 0], column, torch.ones_like(column))


def widened(sample: PathSample) -> PathSample:
    return PathSample(sample.x0, sample.x1, sample.xt, sample.t.double(), sample.rest.double(), sample.dk.double())


EDGES = pytest.mark.parametrize("rest", [1e-7, 1 - 1e-6], ids=["1-k=1e-7", "k=1e-6"])


@each_source
@each_prediction
@each_eta
@EDGES
def test_float32_rates_keep_three_digits_at_the_edges(source, prediction, eta, rest):
    sample = at_the_edge(source, rest)
    logits = random_logits(sample, source, dtype=torch.float32)
    found = rate_divergence(Scores.from_logits(logits, sample, prediction, source), eta)
    exact = rate_divergence(Scores.from_logits(logits.double(), widened(sample), prediction, source), eta)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-30)
    plain = plain_rate(logits, widened(sample), prediction, source, eta)
    torch.testing.assert_close(exact, plain, rtol=1e-3, atol=1e-7)


@each_source
@each_prediction
@each_eta
@EDGES
@pytest.mark.parametrize("share", [1e-6, 1.0])
def test_float32_steps_keep_three_digits_at_the_edges(source, prediction, eta, rest, share):
    sample = at_the_edge(source, rest)
    logits = random_logits(sample, source, dtype=torch.float32)
    wide = widened(sample)
    r, s = (x.float() for x in step_sizes(wide.rest, share * wide.rest, torch.full_like(wide.rest, eta)))
    found = kernel_divergence(Scores.from_logits(logits, sample, prediction, source), r, s, spread=eta != 0)
    scores = Scores.from_logits(logits.double(), wide, prediction, source)
    exact = kernel_divergence(scores, r.double(), s.double(), spread=eta != 0)
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("source", [Uniform(VOCAB), BagOfWords(VOCAB, (0.6, 0.3, 0.1))], ids=name)
@each_prediction
@EDGES
def test_float32_proposals_keep_three_digits_at_the_edges(source, prediction, rest):
    sample = at_the_edge(source, rest)
    logits = random_logits(sample, source, dtype=torch.float32)
    found = proposal_divergence(Scores.from_logits(logits, sample, prediction, source))
    exact = proposal_divergence(Scores.from_logits(logits.double(), widened(sample), prediction, source))
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-30)


@pytest.mark.parametrize("source", [Uniform(VOCAB), SOURCES[0]], ids=name)
def test_a_network_that_denies_the_token_it_sees_pays_its_log_probability_in_the_last_step(source):
    xt = torch.zeros(1, 1, dtype=torch.long)
    one, nothing = torch.ones(1, 1), torch.zeros(1, 1)
    sample = PathSample(xt, xt, xt, torch.full((1,), 0.5), 0.5 * one, one)
    logits = torch.tensor([[[-40.0, 0.0, 0.0]]])  # log P(xt) = -40.7: 1 - P(xt) rounds to 1 in float32
    found = kernel_divergence(Scores.from_logits(logits, sample, Plain(), source), one, nothing, spread=False)
    assert float(found) == pytest.approx(40.0 + torch.log(torch.tensor(2.0)).item(), rel=1e-5)
