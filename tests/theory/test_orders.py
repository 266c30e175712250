"""Mask, and a network without a clock: the law is the mean over orders of the autoregressive probability.

theory.md §5
"""

from itertools import permutations

import pytest
import torch
import toys

from hopflow import exact
from hopflow.exact import Oracle, Space, Table
from hopflow.flow import Flow
from hopflow.predictions import Carry
from hopflow.schedules import Linear, Polynomial, Positional
from hopflow.sources import Mask, MultiMask
from hopflow.vocab import Vocab

SPACE = Space(Vocab(2, 1), 3)
TABLE = Table(SPACE, toys.dirichlet(len(SPACE.states), 3, 2, seed=1))


def over_orders() -> tuple[torch.Tensor, torch.Tensor]:
    """Per data sequence: the mean over orders of its probability, and of its negative log."""
    law, nll = [], []
    for x1 in SPACE.data.tolist():
        probabilities = []
        for order in permutations(range(3)):
            state, p = [2, 2, 2], 1.0
            for i in order:
                p *= float(TABLE.logits[SPACE.ids(torch.tensor(state)), i, x1[i]].exp())
                state[i] = x1[i]
            probabilities.append(p)
        p = torch.tensor(probabilities, dtype=torch.float64)
        law.append(p.mean())
        nll.append(-p.log().mean())
    return torch.stack(law), torch.stack(nll)


def oracle(network=TABLE) -> Oracle:
    return Oracle(Flow(Mask(Vocab(2, 1)), prediction=Carry()), toys.dirichlet(8, seed=2), 3, network)


def test_the_law_is_the_mean_over_orders_of_the_probability():
    torch.testing.assert_close(oracle().law(), over_orders()[0])


def test_b0_is_the_mean_over_orders_of_the_nll():
    torch.testing.assert_close(exact.bound(oracle()), over_orders()[1], atol=1e-9, rtol=0)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_sum_over_orders_and_the_kolmogorov_equation_agree(eta):
    timeless = lambda xt, t: TABLE(xt, t)  # noqa: E731  the same network, not known to be without a clock
    torch.testing.assert_close(oracle(timeless).law(eta=eta), oracle().law(eta=eta), atol=1e-9, rtol=0)


def test_a_corrector_shuffles_masks_so_that_orders_are_not_enough_with_several_masks():
    """With two masks and η > 0 the network sees other masks on the way: the law is another one, and is integrated."""
    flow = Flow(MultiMask(Vocab(2, 2)), prediction=Carry())
    space = Space(flow.vocab, 2)
    table = Table(space, toys.dirichlet(len(space.states), 2, 2, seed=4, sharpness=2.0))
    both = Oracle(flow, toys.dirichlet(4, seed=5), 2, table)
    integrated = Oracle(flow, both.q, 2, lambda xt, t: table(xt, t))
    torch.testing.assert_close(both.law(), integrated.law(), atol=1e-9, rtol=0)
    torch.testing.assert_close(both.law(eta=1.0), integrated.law(eta=1.0), atol=1e-9, rtol=0)
    assert float((both.law() - both.law(eta=1.0)).abs().max()) > 1e-3


def test_position_specific_schedules_have_no_uniform_order():
    flow = Flow(Mask(Vocab(2, 1)), schedule=Positional((Linear(), Polynomial(3.0))), prediction=Carry())
    space = Space(flow.vocab, 2)
    table = Table(space, toys.dirichlet(len(space.states), 2, 2, seed=4, sharpness=2.0))
    q = toys.dirichlet(4, seed=5)
    by_table, by_function = Oracle(flow, q, 2, table), Oracle(flow, q, 2, lambda xt, t: table(xt, t))
    torch.testing.assert_close(by_table.law(), by_function.law(), atol=1e-9, rtol=0)
    assert float((exact.bound(by_table) - by_table.nll()).min()) > -1e-8
