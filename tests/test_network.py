import pytest
import torch
from torch import nn

from hopflow.network import clock_dtype, resting


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
