from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn

import hopflow as hf
from hopflow.network import clock_dtype, narrow, narrowed, resting


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))


@pytest.mark.parametrize("training", [True, False])
def test_a_module_rests_and_is_left_in_the_mode_it_was_found_in(training):
    net = model().train(training)
    with resting(net):
        assert not any(m.training for m in net.modules())
    assert [m.training for m in net.modules()] == [training] * 3


def test_a_part_that_was_resting_before_goes_on_resting():
    net = model().train()
    net[1].eval()  # a frozen part of a model in training
    with resting(net):
        pass
    assert [m.training for m in net.modules()] == [True, True, False]


def test_an_error_inside_does_not_leave_the_module_resting():
    net = model().train()
    with pytest.raises(RuntimeError, match="inside"), resting(net):
        raise RuntimeError("inside")
    assert net.training
    assert torch.is_grad_enabled()


def test_a_module_rests_until_the_last_of_those_who_draw_from_it_leaves():
    """Two threads, one network: who leaves first must not give the other one dropout."""
    net = model().train()
    net[1].eval()
    begun, done = Event(), Event()

    def draw():
        with resting(net):
            begun.set()
            assert done.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with resting(net):
            other = pool.submit(draw)
            assert begun.wait(60)
        assert not any(part.training for part in net.modules())
        done.set()
        other.result()
    assert [part.training for part in net.modules()] == [True, True, False]


def test_no_gradient_is_recorded_inside_and_it_is_again_outside():
    net = model()
    x = torch.ones(1, 2)
    with resting(net):
        assert not net(x).requires_grad
    assert net(x).requires_grad


def test_a_plain_function_rests_too():
    weight = torch.ones(1, requires_grad=True)

    def network(xt, t):
        return weight * xt

    with resting(network):
        assert not network(torch.ones(1), torch.zeros(1)).requires_grad
    assert network(torch.ones(1), torch.zeros(1)).requires_grad


@pytest.mark.parametrize(
    ("dtype", "clock"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_a_network_gets_its_time_in_a_float_type_it_can_use(dtype, clock):
    assert clock_dtype(nn.Linear(2, 2).to(dtype)) == clock


def test_a_plain_function_gets_the_float_type_of_the_caller():
    assert clock_dtype(lambda xt, t: xt) == torch.float32
    assert clock_dtype(lambda xt, t: xt, torch.float64) == torch.float64


def test_a_narrowed_copy_gives_the_same_bits_under_autocast_and_leaves_the_network_alone():
    torch.manual_seed(0)
    model = hf.Transformer(hf.Vocab(9, 3), hf.Size(layers=2, width=32, heads=2)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = narrowed(model, torch.bfloat16)
    xt, t = torch.randint(0, 12, (2, 8)), torch.rand(2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(twin(xt, t), model(xt, t))
    assert twin.embedding.weight is model.embedding.weight
    assert {layer.weight.dtype for layer in twin.modules() if isinstance(layer, nn.Linear)} == {torch.bfloat16}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_autocast_leaves_a_float64_network_alone_and_so_does_hopflow():
    torch.manual_seed(0)
    net = hf.Transformer(hf.Vocab(9, 3), hf.Size(layers=1, width=32, heads=2)).double().eval()
    xt, t = torch.randint(0, 12, (2, 8)), torch.rand(2, dtype=torch.float64)
    with torch.no_grad():
        plain = net(xt, t)
        with torch.autocast("cpu", torch.bfloat16):
            assert narrow(plain) is None
            assert narrow(plain.float()) is torch.bfloat16
            assert torch.equal(net(xt, t), plain)
