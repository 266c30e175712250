"""What temperature, top-k, top-p and min-p leave of a prediction."""

import pytest
import torch

from hopflow.sampling.filters import Filter

LAW = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)


def left(law=LAW, **how):
    return Filter(**how)(law.log()).exp()


def normal(*rows):
    law = torch.tensor(rows, dtype=torch.float64)
    return law / law.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, LAW),
        ({"temperature": 0.5}, normal((0.25, 0.0625, 0.0225, 0.01), (0.01, 0.04, 0.09, 0.16))),
        ({"temperature": 0.0}, normal((1, 0, 0, 0), (0, 0, 0, 1))),
        ({"top_k": 1}, normal((1, 0, 0, 0), (0, 0, 0, 1))),
        ({"top_k": 2}, normal((0.5, 0.25, 0, 0), (0, 0, 0.3, 0.4))),
        ({"top_k": 9}, LAW),
        ({"top_p": 1.0}, LAW),
        ({"top_p": 0.6}, normal((0.5, 0.25, 0, 0), (0, 0, 0.3, 0.4))),
        ({"top_p": 1e-9}, normal((1, 0, 0, 0), (0, 0, 0, 1))),
        ({"min_p": 0.0}, LAW),
        ({"min_p": 0.4}, normal((0.5, 0.25, 0, 0), (0, 0.2, 0.3, 0.4))),
        ({"min_p": 1.0}, normal((1, 0, 0, 0), (0, 0, 0, 1))),
        # one after the other: of the two that top_k leaves, the first has 2/3 and 4/7
        ({"top_k": 2, "top_p": 0.6}, normal((1, 0, 0, 0), (0, 0, 0.3, 0.4))),
    ],
    ids=str,
)
def test_filters_keep_these_tokens_with_these_probabilities(how, expected):
    assert torch.allclose(left(**how), expected, atol=1e-12)


@pytest.mark.parametrize("how", [{"top_k": 2}, {"top_p": 0.4}, {"temperature": 0.0}], ids=str)
def test_among_equals_no_more_are_kept_than_asked_for(how):
    count = (left(torch.full((1, 5), 0.2, dtype=torch.float64), **how) > 0).sum()
    assert int(count) == (1 if "temperature" in how else 2)


def test_rows_stay_normalised_in_float32():
    law = torch.randn(20, 5000).softmax(1)
    out = Filter(temperature=0.8, top_k=100, top_p=0.9, min_p=0.01)(law.log()).exp()
    assert torch.allclose(out.sum(1), torch.ones(20), atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
    ],
    ids=str,
)
def test_what_filters_nothing_sensible_is_refused(how):
    with pytest.raises(ValueError, match=next(iter(how))):
        Filter(**how)


@pytest.mark.parametrize("how", [{"temperature": 1e-39}, {"temperature": 1e-300}, {"top_p": 1e-300}], ids=str)
def test_a_temperature_or_a_top_p_near_0_is_like_temperature_0(how):
    assert torch.equal(Filter(**how)(LAW.float().log()).exp(), left(temperature=0.0).float())


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("wrong", [float("nan"), -torch.inf, torch.inf])
def test_a_row_without_a_largest_finite_logit_becomes_nan_at_every_temperature(temperature, wrong):
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [-torch.inf, -torch.inf, wrong]])
    log_p = Filter(temperature=temperature)(logits)
    assert log_p[0].isfinite().any()
    assert not log_p[0].isnan().any()
    assert log_p[1].isnan().all()
