"""The moving average against its closed form."""

import math

import pytest
import torch

from hopflow.training.averages import Ema


def closed_form(tables, decay):
    """Σ_t (1 - β_t) Π_{s > t} β_s x_t, and Π β_t of the start."""
    betas = [min(decay, (1 + t) / (10 + t)) for t in range(len(tables) - 1)]
    total = tables[0].double() * math.prod(betas)
    for t, table in enumerate(tables[1:]):
        total += (1 - betas[t]) * math.prod(betas[t + 1 :]) * table.double()
    return total


@pytest.mark.parametrize("decay", [0.0, 0.05, 0.5, 0.99999, 1.0])
def test_the_average_is_the_weighted_sum_of_all_tables(decay):
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(5, 3, generator=generator) for _ in range(41)]
    ema = Ema(tables[0], decay)
    for step, table in enumerate(tables[1:]):
        ema.update(table, step)
    torch.testing.assert_close(ema.value.double(), closed_form(tables, decay), rtol=1e-5, atol=1e-6)


def test_the_decay_of_an_average_is_ramped_up_to_its_limit():
    ema = Ema(torch.zeros(1))
    assert [ema.rate(t) for t in (0, 1, 90)] == [0.1, 2 / 11, 0.91]
    assert ema.rate(899_989) < ema.rate(899_990) == ema.rate(10**7) == 0.99999


def test_an_average_without_decay_equals_the_table():
    ema, table = Ema(torch.randn(4, 2), decay=0.0), torch.randn(4, 2)
    ema.update(table, 0)
    assert torch.equal(ema.value, table)


def test_an_average_is_float32_and_independent_of_the_table():
    table = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    ema = Ema(table)
    with torch.no_grad():
        table.zero_()
    assert ema.value.dtype == torch.float32
    assert not ema.value.requires_grad
    assert bool((ema.value == 1).all())
    ema.update(table, 10**6)
    assert float(ema.value[0, 0]) == pytest.approx(0.99999, abs=1e-7)


def test_an_average_resumes_from_its_state_to_the_bit():
    tables = list(torch.randn(20, 4, 3))
    whole = Ema(tables[0])
    for step in range(10):
        whole.update(tables[step], step)
    state = whole.state_dict()
    resumed = Ema(torch.zeros(4, 3))
    resumed.load_state_dict(state)
    for step in range(10, 20):
        whole.update(tables[step], step)
        resumed.update(tables[step], step)
    assert torch.equal(whole.value, resumed.value)
    assert not torch.equal(state["value"], whole.value)


def test_a_state_of_another_table_is_refused():
    with pytest.raises(ValueError, match="another table"):
        Ema(torch.zeros(3, 2)).load_state_dict({"value": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="shape"):
        Ema(torch.zeros(3, 2)).update(torch.zeros(1, 2), 0)
    with pytest.raises(ValueError, match="decay"):
        Ema(torch.zeros(3, 2), decay=1.5)
