"""Context-free logits with Evidence: B_1(x1) = -Σ log softmax(l)[x1] for any source, without enumeration.

theory.md §5
"""

import pytest
import torch
import toys

from hopflow import exact
from hopflow.bounds.nll import nll_bound
from hopflow.flow import Flow
from hopflow.sources import examples
from hopflow.vocab import Vocab


@pytest.mark.parametrize("name", toys.SOURCES)
def test_the_bound_of_a_network_that_ignores_its_context_is_exact(name):
    logits = torch.randn(2, 3, generator=toys.generator(0), dtype=torch.float64)
    flow = toys.oracle(name, network=lambda xt, t: logits.expand(len(xt), -1, -1))
    law = logits.log_softmax(-1)
    closed = -(law[0, flow.space.data[:, 0]] + law[1, flow.space.data[:, 1]])
    torch.testing.assert_close(exact.bound(flow, eta=1.0), closed, atol=1e-8, rtol=0)


@pytest.mark.parametrize("index", range(5), ids=toys.SOURCES)
def test_by_monte_carlo_at_a_real_vocabulary(index):
    vocab = Vocab(5000, 100)
    source = examples(vocab)[index]
    g = toys.generator(index)
    logits = torch.randn(vocab.data, generator=g)
    x1 = torch.randint(0, vocab.data, (24, 16), generator=g)
    estimate = nll_bound(lambda xt, t: logits.expand(*xt.shape, -1), Flow(source), x1, eta=1.0, draws=8, batch=96)
    closed = -logits.log_softmax(0)[x1].sum(1)
    assert abs(estimate.nats - float(closed.mean())) < 4 * estimate.draw_stderr
