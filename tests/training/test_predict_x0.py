"""The head that predicts x0: what else is learned stays the same, and its law is the posterior of x0."""

import json
import math

import pytest
import torch
import toys
from texts import Letters

import hopflow as hf
from hopflow.bounds.x0_posterior import smoothed, x0_nats, x0_shift
from hopflow.models import Size, Transformer
from hopflow.runs.metrics import read
from hopflow.runs.pretrained import CONFIG, from_pretrained, save_pretrained, sealed
from hopflow.training.train import train

KEYS = {"workers": 0, "log_every": 1, "eval_every": 0, "eval_samples": 0, "eval_rows": 0, "warmup": 5, "lr": 3e-3}


def trained(out, source, coupling, **keys):
    corpus = Letters()
    flow = hf.Flow(source.fit(corpus.counts), coupling=coupling)
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=1, width=32, heads=2), dropout=0.1, **keys)
    train(model, flow, corpus, out=out, steps=12, batch=8, ot_batch=16, weight_ema=0.99, clip=0.5, **KEYS)
    return [(row["loss"], row["grad_norm"]) for row in read(out / "metrics.jsonl")], model


@pytest.mark.parametrize("source", [hf.MultiMask, hf.BagOfWords])
def test_an_x0_head_changes_no_bit_of_the_losses_and_the_other_weights(tmp_path, source):
    coupling = hf.ExactOT(hf.SquaredEmbedding())
    without, plain = trained(tmp_path / "without", source, coupling)
    with_, model = trained(tmp_path / "with", source, coupling, predict_x0=True)
    assert with_ == without
    state = model.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(state[name], value), name
    untrained = Transformer(model.vocab, model.size, predict_x0=True).x0_head.state_dict()
    for name, value in model.x0_head.state_dict().items():
        assert not torch.equal(value, untrained[name]) or name == "unigram", name


def test_the_gradient_of_the_x0_head_is_clipped_in_an_order_that_every_process_repeats(tmp_path, monkeypatch):
    """A set would be ordered by memory addresses: the last bits of the norm, and of the weights, would change."""
    clip, clipped = torch.nn.utils.clip_grad_norm_, []

    def noted(parameters, limit):
        clipped.append([id(parameter) for parameter in parameters])
        return clip(parameters, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
    _, model = trained(tmp_path / "run", hf.BagOfWords, hf.Independent(), predict_x0=True)
    own = [id(parameter) for parameter in model.x0_head.parameters()]
    others = [id(parameter) for parameter in model.parameters() if id(parameter) not in own]
    assert clipped[-2:] == [others, own]


def test_a_checkpoint_contains_the_x0_head_and_the_token_frequencies(tmp_path):
    _, model = trained(tmp_path / "run", hf.BagOfWords, hf.Independent(), predict_x0=True)
    found = from_pretrained(tmp_path / "run").model
    expected = smoothed(Letters().counts)
    torch.testing.assert_close(found.x0_head.unigram, expected)
    assert float(expected.min()) > 0
    assert found.x0_head.body is not None
    assert found.x0_head.linear.weight.shape == model.x0_head.linear.weight.shape


def test_a_network_saved_with_a_linear_x0_head_loads_with_it(tmp_path):
    """Its file lacks x0_width; the linear head reads the features."""
    model = toys.awake(Transformer(hf.Vocab(3), Size(1, 8, 2), predict_x0=True, x0_width=0))
    save_pretrained(tmp_path, model)
    without_argument(tmp_path, "x0_width")
    found = from_pretrained(tmp_path).model
    assert found.x0_head.body is None
    xt, t = torch.tensor([[0, 2, 1]]), torch.tensor([0.3])
    features = found.features(xt, t)
    assert torch.equal(found.x0_features(features, xt, t), features)
    assert torch.equal(found.x0_head.linear.weight, model.x0_head.linear.weight)


def test_a_new_x0_head_predicts_the_source_and_a_trained_one_keeps_its_bias():
    source = hf.BagOfWords(hf.Vocab(3), (0.7, 0.3, 0.0))
    model = Transformer(source.vocab, Size(1, 8, 2), predict_x0=True)
    counts = torch.tensor([7, 3, 0])
    model.x0_head.fit(counts, source.token_probs())
    xt, t = torch.tensor([[0, 2, 1]]), torch.tensor([0.3])
    probs = model.x0_head(model.x0_features(model.features(xt, t), xt, t)).softmax(-1)
    torch.testing.assert_close(probs, source.token_probs().float().expand(1, 3, 3), atol=1e-6, rtol=0)
    model.x0_head.fit(counts, torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64))
    assert torch.equal(model.x0_head(model.x0_features(model.features(xt, t), xt, t)).softmax(-1), probs)


@pytest.mark.parametrize("size", [Size(1, 6, 1), Size(2, 128, 4)])
@pytest.mark.parametrize("time", [True, False])
def test_an_x0_head_fits_every_width_and_passes_no_gradient_on(size, time):
    model = toys.awake(Transformer(hf.Vocab(3), size, predict_x0=True, time=time, dropout=0.5))
    xt, t = torch.tensor([[0, 2, 1]]), torch.tensor([0.3])
    with torch.autocast("cpu", torch.bfloat16):
        features = model.x0_features(model.features(xt, t), xt, t)
    assert features.dtype == torch.float32
    assert features.shape[-1] == min(64, size.width)
    model.x0_head(features).square().sum().backward()
    reached = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert reached == {name for name, _ in model.named_parameters() if name.startswith("x0_head.")}


def test_a_network_without_an_x0_head_says_how_to_get_one():
    model = Transformer(hf.Vocab(3), Size(1, 8, 2))
    with pytest.raises(ValueError, match="predict_x0=True"):
        model.x0_features(torch.zeros(1, 1, 8), torch.zeros(1, 1, dtype=torch.long), torch.zeros(1))


def without_argument(folder, name):
    """Remove a constructor argument from a saved network, as in a file that is older than it."""
    config = json.loads((folder / CONFIG).read_text())
    del config["model"][name]
    (weights,) = (name for name in config["sha256"] if name != CONFIG)
    digest = config.pop("sha256")[weights]
    (folder / CONFIG).write_text(sealed(config, weights, digest))


def test_a_file_of_an_earlier_version_loads_without_an_x0_head(tmp_path):
    vocab = hf.Vocab(3)
    save_pretrained(tmp_path, Transformer(vocab, Size(1, 8, 2)))
    without_argument(tmp_path, "predict_x0")
    assert from_pretrained(tmp_path).model.x0_head is None


@pytest.mark.parametrize("name", toys.SOURCES)
def test_for_independent_pairs_of_one_token_the_source_and_the_evidence_are_the_posterior(name):
    """Logits log p0 with the mirrored evidence of the true frequencies: p_{0|t}(x0 | xt) by Bayes' rule."""
    flow = toys.oracle(name, length=1, network=None, seed=2)
    vocab, p0 = flow.flow.vocab, flow.p0
    for t in (0.2, 0.7):
        moment = flow.at(t)
        exact = hf.exact.predictive_x0(flow, moment)[0, :, 0]  # (xt, x0)
        logits = p0.log().expand(vocab.size, -1).clone()
        shift = x0_shift(torch.arange(vocab.size), torch.tensor(1 - t, dtype=torch.float64), flow.q)
        logits.diagonal().add_(torch.where(torch.isinf(shift), 1e3, shift))
        law = logits.softmax(1)
        possible = flow.marginal(moment)[0] > 0
        torch.testing.assert_close(law[possible], exact[possible], atol=1e-9, rtol=0)


def test_the_loss_of_the_x0_head_is_the_cross_entropy_of_its_posterior():
    vocab = hf.Vocab(3, 1)
    head = torch.nn.Linear(5, 4).double()
    features = torch.randn(6, 2, 5, generator=toys.generator(1), dtype=torch.float64)
    flow = hf.Flow(hf.Uniform(vocab))
    x0, x1 = (torch.randint(3, (6, 2), generator=toys.generator(i)) for i in (2, 3))
    x0[0, 0] = 3
    sample = flow.path.sample(x0, x1, torch.rand(6, generator=toys.generator(4), dtype=torch.float64))
    unigram = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    shift = x0_shift(sample.xt, sample.rest.expand(6, 2), unigram)
    logits = head(features).clone()
    logits.scatter_add_(-1, sample.xt[..., None], torch.where(torch.isinf(shift), 0.0, shift)[..., None])
    nats = -logits.log_softmax(-1).gather(-1, x0[..., None])[..., 0]
    target = torch.where(torch.isinf(shift), 0.0, nats).sum(1)
    torch.testing.assert_close(x0_nats(head, features, sample, unigram), target)
    assert math.isfinite(float(target.detach().sum()))
