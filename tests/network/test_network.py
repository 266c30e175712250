from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

import hopflow as hf
from hopflow.network.network import evaluation_mode, is_autoregressive, time_dtype
from hopflow.network.precision import autocast_dtype, low_precision_copy


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_mode_disables_training_inside_and_restores_the_mode(training):
    net = model().train(training)
    with evaluation_mode(net):
        assert not any(m.training for m in net.modules())
    assert [m.training for m in net.modules()] == [training] * 3


def test_a_submodule_that_was_in_evaluation_mode_stays_in_it():
    net = model().train()
    net[1].eval()  # a frozen part of a model in training
    with evaluation_mode(net):
        pass
    assert [m.training for m in net.modules()] == [True, True, False]


def test_an_error_inside_evaluation_mode_restores_training_mode():
    net = model().train()
    with pytest.raises(RuntimeError, match="inside"), evaluation_mode(net):
        raise RuntimeError("inside")
    assert net.training
    assert torch.is_grad_enabled()


def test_evaluation_mode_lasts_until_the_last_thread_leaves_it():
    """Two threads, one network: the first to leave must not turn on dropout for the other."""
    net = model().train()
    net[1].eval()
    entered, done = Event(), Event()

    def draw():
        with evaluation_mode(net):
            entered.set()
            assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with evaluation_mode(net):
            other = pool.submit(draw)
            assert entered.wait(60)
        assert not any(part.training for part in net.modules())
        done.set()
        other.result()
    assert [part.training for part in net.modules()] == [True, True, False]


def test_evaluation_mode_disables_gradients_only_inside():
    net = model()
    x = torch.ones(1, 2)
    with evaluation_mode(net):
        assert not net(x).requires_grad
    assert net(x).requires_grad


def test_evaluation_mode_disables_gradients_of_a_plain_function():
    weight = torch.ones(1, requires_grad=True)

    def network(xt, t):
        return weight * xt

    with evaluation_mode(network):
        assert not network(torch.ones(1), torch.zeros(1)).requires_grad
    assert network(torch.ones(1), torch.zeros(1)).requires_grad


@pytest.mark.parametrize(
    ("dtype", "time"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_times_are_float64_for_a_float64_network_and_float32_otherwise(dtype, time):
    assert time_dtype(nn.Linear(2, 2).to(dtype)) == time


def test_the_float_type_of_times_for_a_plain_function_is_the_argument():
    assert time_dtype(lambda xt, t: xt) == torch.float32
    assert time_dtype(lambda xt, t: xt, torch.float64) == torch.float64


def test_a_low_precision_copy_computes_the_same_bits_under_autocast_and_leaves_the_network_unchanged():
    torch.manual_seed(0)
    model = hf.Transformer(hf.Vocab(9, 3), hf.Size(layers=2, width=32, heads=2)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = low_precision_copy(model, torch.bfloat16)
    xt, t = torch.randint(0, 12, (2, 8)), torch.rand(2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(twin(xt, t), model(xt, t))
    assert twin.embedding.weight is model.embedding.weight
    assert {layer.weight.dtype for layer in twin.modules() if isinstance(layer, nn.Linear)} == {torch.bfloat16}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_autocast_does_not_change_a_float64_network():
    torch.manual_seed(0)
    net = hf.Transformer(hf.Vocab(9, 3), hf.Size(layers=1, width=32, heads=2)).double().eval()
    xt, t = torch.randint(0, 12, (2, 8)), torch.rand(2, dtype=torch.float64)
    with torch.no_grad():
        plain = net(xt, t)
        with torch.autocast("cpu", torch.bfloat16):
            assert autocast_dtype(plain) is None
            assert autocast_dtype(plain.float()) is torch.bfloat16
            assert torch.equal(net(xt, t), plain)


def test_only_networks_that_say_so_are_autoregressive():
    with torch.device("meta"):
        causal = hf.Causal(9, "micro")
        transformer = hf.Transformer(hf.Vocab(9, 1), "micro")
    assert is_autoregressive(causal)
    assert not is_autoregressive(transformer)
    assert not is_autoregressive(lambda xt, t: xt)


class Shifted(nn.Module):
    """A network that returns rows for a batch and tokens that it was not called with."""

    def __init__(self, rows: int = 0, tokens: int = 0) -> None:
        super().__init__()
        self.rows, self.tokens = rows, tokens
        self.weights = nn.Parameter(torch.ones(1))

    def forward(self, xt, t):
        return torch.zeros(len(xt) + self.rows, xt.shape[1] + self.tokens, 3)


class ShiftedHead(Shifted):
    def features(self, xt, t):
        return super().forward(xt, t)

    def head(self, features):
        return features * self.weights


@pytest.mark.parametrize("wrong", [{"tokens": 2}, {"rows": 1}], ids=str)
@pytest.mark.parametrize("kind", [Shifted, ShiftedHead])
def test_logits_that_are_not_those_of_the_tokens_are_refused(kind, wrong):
    """An encoder that adds a token at the start would otherwise lend each token the logits of its neighbor."""
    network, x1 = kind(**wrong), torch.zeros(2, 3, dtype=torch.int64)
    masks, letters = hf.Flow(hf.Mask(hf.Vocab(3, 1))), hf.Flow(hf.Uniform(hf.Vocab(3)))
    message = r"one row of logits \(or features\) per token: shape \(\d+, 3, …\) for these tokens, got \("
    for flow in (masks, letters):
        with pytest.raises(ValueError, match=message):
            hf.generate(network, flow, n=2, length=3)
        with pytest.raises(ValueError, match=message):
            hf.nll_bound(network, flow, x1)
    with pytest.raises(ValueError, match=message):
        hf.generate(network, masks, n=2, length=3, sampler=hf.Confidence())
    with pytest.raises(ValueError, match=message):
        hf.planned_nll(network, masks, x1, hf.Confidence())
    with pytest.raises(ValueError, match=message):
        hf.reversal_bound(network, letters, x1, steps=3, paths=2)


def test_logits_of_sequences_in_place_of_tokens_are_refused():
    with pytest.raises(ValueError, match=r"one row of logits .* got \(2, 3\)"):
        hf.generate(lambda xt, t: torch.zeros(len(xt), 3), hf.Flow(hf.Uniform(hf.Vocab(3))), n=2, length=3)
