"""Bounds on a continuation given its context against the oracle of the flow on the free positions."""

import pytest
import torch
import toys
from torch import nn

import hopflow as hf
from hopflow import exact
from hopflow.adapters.conditional import ConditionalBound, condition, tightest_bound
from hopflow.exact import Oracle, Space, Table
from hopflow.sampling.generation import HOLE

CONTEXT = torch.tensor([2, 0])
CASES = [("mask", "b0"), ("multimask", "b0"), ("uniform", "b1"), ("bag_of_words", "b1"), ("uniform", "b0")]
CASES += [("bag_of_words", "bk"), ("uniform", "bn")]


def conditional_oracle(full: Oracle, context: torch.Tensor, count: int) -> Oracle:
    """The oracle of the flow on the last `count` positions, with the context inserted by hand."""

    def network(xt, t):
        return full.model(torch.cat([context.expand(len(xt), -1), xt], 1), t)[:, len(context) :]

    data = full.flow.vocab.data
    return Oracle(full.flow, torch.full((data**count,), data**-count), count, network)


def exact_value(oracle: Oracle, quantity: str) -> torch.Tensor:
    if quantity == "bk":
        return exact.kappa_bound(oracle)
    return exact.bound(oracle, eta=float(quantity == "b1"), steps=4 if quantity == "bn" else None)


@pytest.mark.parametrize(("source", "quantity"), CASES)
def test_the_conditional_bound_agrees_with_the_oracle(source, quantity):
    full = toys.oracle(source, data=3, length=4)
    oracle = conditional_oracle(full, CONTEXT, 2)
    bound = ConditionalBound(quantity, draws=4096, steps=4)
    for row in (1, 5):
        found = bound(full.model, full.flow, CONTEXT, oracle.space.data[row])
        assert found.quantity == quantity
        assert abs(found.nats - float(exact_value(oracle, quantity)[row])) < 4 * found.draw_stderr


def test_the_reversal_bound_falls_to_the_exact_conditional_likelihood():
    full = toys.oracle("uniform", data=2, length=4)
    oracle = conditional_oracle(full, torch.tensor([1, 0]), 2)
    found = ConditionalBound("br", draws=4 * 4096, steps=4)(
        full.model, full.flow, torch.tensor([1, 0]), torch.tensor([1, 1])
    )
    exact_nats = float(oracle.nll(steps=4)[3])
    assert abs(found.nats - exact_nats) < 4 * found.draw_stderr + 1e-3


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_short_continuation_from_one_mask_is_enumerated_without_an_error(length):
    flow = hf.Flow(toys.source("mask"))
    space = Space(flow.vocab, length + 2)
    table = Table(space, toys.dirichlet(len(space.states), length + 2, 3, seed=4))
    full = Oracle(flow, torch.full((3 ** (length + 2),), 3.0 ** -(length + 2)), length + 2, table)
    oracle = conditional_oracle(full, CONTEXT, length)
    target = exact.bound(oracle)
    for row in range(0, 3**length, 2):
        found = ConditionalBound("b0", draws=2**length - 1 + (length == 1))(
            table, flow, CONTEXT, oracle.space.data[row]
        )
        assert found.stderr == 0
        assert abs(found.nats - float(target[row])) < 1e-8


def test_without_a_context_it_is_the_bound_of_the_flow_itself():
    full = toys.oracle("mask", length=2)
    x1 = torch.tensor([0, 2])
    found = ConditionalBound("b0", draws=64)(full.model, full.flow, x1[:0], x1)
    assert found.nats == hf.nll_bound(full.model, full.flow, x1[None], draws=64).nats


@pytest.mark.parametrize("hides_head", [False, True])
def test_a_conditioned_module_returns_the_logits_at_the_holes(hides_head):
    vocab = hf.Vocab(5, masks=1)
    model = toys.awake(hf.Transformer(vocab, hf.Size(1, 16, 2))).eval()
    if hides_head:
        model = Callable(model)
    prompt = torch.tensor([3, HOLE, 1, HOLE])
    xt, t = torch.tensor([[5, 0], [2, 5]]), torch.tensor([0.2, 0.7])
    network = condition(model, prompt)
    complete = torch.tensor([[3, 5, 1, 0], [3, 2, 1, 5]])
    assert torch.equal(network(xt, t), model(complete, t)[:, [1, 3]])
    assert hasattr(network, "features") == (not hides_head)
    if not hides_head:
        assert torch.allclose(network.head(network.features(xt, t)), network(xt, t))


class Callable(nn.Module):
    """A network without features and head."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, xt, t):
        return self.inner(xt, t)


def test_the_bound_is_chosen_by_what_is_tight_for_a_perfect_network():
    vocab = hf.Vocab(3)
    mask, uniform = hf.Mask(hf.Vocab(3, 1)), hf.Uniform(vocab)
    assert tightest_bound(hf.Flow(mask)) == "b0"
    assert tightest_bound(hf.Flow(uniform)) == "b1"
    assert tightest_bound(hf.Flow(uniform, coupling=hf.ExactOT(hf.Hamming()))) == "br"
    assert tightest_bound(hf.Flow(uniform, prediction=hf.Plain())) == "br"


def test_wrong_names_and_flows_whose_positions_differ_are_refused():
    with pytest.raises(ValueError, match="bound must be auto or one of b0, b1, bk, bn, br, got 'b7'"):
        ConditionalBound("b7")
    full = toys.oracle("mask", schedule=hf.Positional((hf.Linear(), hf.Cosine())))
    with pytest.raises(ValueError, match="one schedule for all positions"):
        ConditionalBound("b0")(full.model, full.flow, torch.tensor([0]), torch.tensor([1]))
    rows = torch.tensor([[0, 1], [1, 0], [1, 2]])
    flow = hf.Flow(hf.PositionFrequencies.of(hf.Vocab(3), rows, smoothing=1.0))
    with pytest.raises(ValueError, match="one p0 for all positions, got PositionFrequencies"):
        ConditionalBound("b0")(full.model, flow, torch.tensor([0]), torch.tensor([1]))
