"""Sequences on the CPU are measured with a network on another device, as `hf.train` leaves it on a GPU."""

from contextlib import suppress

import pytest
import torch
from device_copies import copies_from_the_cpu
from torch import nn

import hopflow as hf
from hopflow.bounds.coupled import coupled_bound, coupled_number
from hopflow.bounds.nll import kappa_bound, nll_bound
from hopflow.bounds.precise import precise_perplexity
from hopflow.bounds.reversal import reversal_bound
from hopflow.network.network import to_device_of

FLOW = hf.Flow(hf.Uniform(hf.Vocab(4)))
X1 = torch.tensor([[0, 1, 2], [3, 2, 1]])
OT = hf.ExactOT(hf.Hamming())
BOUNDS = {
    "nll_bound": lambda model: nll_bound(model, FLOW, X1, draws=2),
    "kappa_bound": lambda model: kappa_bound(model, FLOW, X1, draws=2),
    "precise_perplexity": lambda model: precise_perplexity(model, FLOW, X1, draws=2),
    "reversal_bound": lambda model: reversal_bound(model, FLOW, X1, steps=2, paths=2),
    "coupled_bound": lambda model: coupled_bound(model, FLOW, X1, OT, minibatch=2, draws=2),
    "coupled_number": lambda model: coupled_number(model, FLOW, X1, OT, minibatch=2, draws=2),
}


class Network(nn.Module):
    """Logits that depend on the token at the position only."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 4, device=device))

    def forward(self, xt, t):
        return self.table[xt]


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_a_bound_moves_its_sequences_to_the_device_of_the_network(bound):
    """Meta tensors have no values, so that every bound ends in an error later on."""
    with copies_from_the_cpu() as copied, suppress(Exception):
        bound(Network("meta"))
    assert X1.shape in copied
    assert bound(Network("cpu")).length == X1.shape[1]


def test_a_plain_function_and_a_module_without_weights_take_sequences_where_they_are():
    elsewhere = torch.zeros(2, 3, dtype=torch.long, device="meta")
    for network in (lambda xt, t: xt, nn.Identity()):
        assert to_device_of(network, elsewhere) is elsewhere
    assert to_device_of(Network("cpu"), X1) is X1
