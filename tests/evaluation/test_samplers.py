"""Every sampler can be evaluated: RandomOrder, another grid, and a sampler that a user writes."""

from dataclasses import dataclass

import pytest
import torch
import toys

import hopflow as hf
from hopflow.data.tokenizers import Characters
from hopflow.evaluation.judge import CausalJudge
from hopflow.evaluation.matching import quality_curves
from hopflow.evaluation.rows import Row, merged
from hopflow.evaluation.table import page
from hopflow.evaluation.transport import corrector_surplus
from hopflow.evaluation.verdict import verdict
from hopflow.sampling.samplers import Events

SMALL = hf.Size(layers=1, width=16, heads=2)
LENGTH = 6
FAST = {"rows": 4, "seconds": 0.0, "n": 8, "draws": 2, "paths": 0}


def network(source: hf.Source) -> tuple[hf.Transformer, hf.Flow, torch.Tensor]:
    torch.manual_seed(0)
    flow = hf.Flow(source, prediction=hf.Evidence())
    model = hf.Transformer(flow.vocab, SMALL, dropout=0.0)
    return model, flow, torch.randint(5, (8, LENGTH), generator=toys.generator(3))


def samples(rows: list[Row], quantity: str) -> list[Row]:
    return [row for row in rows if (row.set, row.quantity) == ("samples", quantity)]


def test_random_order_on_masks_is_evaluated_with_judge_entropy_and_hops():
    model, flow, x1 = network(hf.Mask(hf.Vocab(5, 1)))
    judge = CausalJudge(hf.Causal(5, SMALL, dropout=0.0), Characters("abcde"), 16)
    keys = {**FAST, "sampler": hf.RandomOrder(), "judge": judge, "tokenizer": Characters("abcde")}
    rows = hf.evaluate(model, flow, x1, **keys)
    for quantity in ("gen_ppl", "entropy_bits", "jumps", "calls"):
        (row,) = samples(rows, quantity)  # once: without corrector there is only η = 0
        assert (row.eta, row.more["steps"]) == (0.0, None)
        assert row.more["sampler"] == "η = 0, random order, exact in continuous time"
        assert row.more["sampler_label"] == hf.RandomOrder().label
    assert samples(rows, "jumps")[0].value == samples(rows, "calls")[0].value == LENGTH
    (drawn,) = [row for row in rows if row.set == "transport" and row.quantity == "jumps"]
    assert (drawn.value, drawn.more["sampler_label"]) == (LENGTH, hf.RandomOrder().label)
    bounds = {row.quantity: row.more["sampler"] for row in rows if row.unit == "ppl" and row.eta == 0}
    assert bounds == {"b0": "η = 0, continuous time", "bn": "η = 0, 32 steps"}
    assert "bn and br bound Euler steps on an even grid, not: random order" in " ".join(page(rows, width=80).split())


@dataclass(frozen=True)
class OnePositionPerStep(hf.Sampler):
    """A user's sampler: redraws one position after the other, from left to right, at even times."""

    @property
    def label(self) -> str:
        return "left to right"

    @property
    def has_corrector(self) -> bool:
        return False

    def events(self, flow, eta, free, noise):
        row, position = free.nonzero().unbind(1)
        t = position.double() / free.shape[1]
        token = noise.uniform(free.shape[1])[row, position]
        never = torch.zeros_like(row, dtype=torch.bool)
        return Events(row, position, position, t, flow.schedule.rest(t), never, token, token)


def test_a_sampler_of_a_user_is_evaluated_like_any_other():
    model, flow, x1 = network(hf.Uniform(hf.Vocab(5)))
    rows = hf.evaluate(model, flow, x1, sampler=OnePositionPerStep(), **FAST)
    (calls,), (jumps,) = samples(rows, "calls"), samples(rows, "jumps")
    assert calls.value == LENGTH
    assert 0 < jumps.value <= LENGTH
    drawn = hf.generate(model, flow, n=8, length=LENGTH, sampler=OnePositionPerStep())
    assert jumps.value == float(drawn.jumps.mean())
    assert calls.more["sampler"] == "η = 0, left to right"
    assert corrector_surplus(flow, OnePositionPerStep(), 1.0, LENGTH) is None
    assert not any(row.more["sampler"] == "η = 0, left to right" for row in rows if row.is_bound)


def test_a_function_from_steps_to_a_sampler_is_swept_over_steps():
    model, flow, x1 = network(hf.Uniform(hf.Vocab(5)))
    cosine = {"sampler": lambda steps: hf.Euler(steps, hf.CosineGrid()), "steps": (2, 4)}
    rows = hf.evaluate(model, flow, x1, **cosine, **FAST)
    found = {(row.more["steps"], row.eta): row.more["sampler"] for row in samples(rows, "jumps")}
    assert set(found) == {(steps, eta) for steps in (2, 4) for eta in (0.0, 1.0)}
    assert found[4, 1.0] == "η = 1, 4 Euler steps on CosineGrid"
    assert {row.more["sampler_family"] for row in samples(rows, "jumps")} == {"Euler on CosineGrid"}
    even = hf.evaluate(model, flow, x1, steps=(2, 4), **FAST)
    assert all("sampler_label" not in row.more for row in even)
    named = hf.evaluate(model, flow, x1, sampler=hf.Euler(4), **FAST)
    assert samples(named, "jumps") == [row for row in samples(even, "jumps") if row.more["steps"] == 4]
    kept = merged(samples(even, "jumps"), samples(rows, "jumps"))
    assert len(kept) == 8  # rows of two samplers do not replace each other


def test_quality_curves_of_two_samplers_are_not_mixed():
    def row(steps: int, **more) -> Row:
        point = {"steps": steps, "temperature": 1.0, "length": 8, "judge_hash": "j", "retokenised": True, **more}
        own = {"value": 9.0, "stderr": 0.1, "n": 4, "unit": "", "is_bound": False, "eta": 0.0, "dtype": "float32"}
        return Row("r", "samples", "gen_ppl", **own, recipe_hash=None, more=point)

    cosine = {"sampler_family": "Euler on CosineGrid"}
    rows = [row(4), row(8), row(4, sampler_label="4", **cosine), row(8, sampler_label="8", **cosine)]
    assert [len(points) for points in quality_curves(rows).values()] == [2, 2]


@pytest.mark.parametrize(
    ("source", "keys", "message"),
    [
        (hf.Uniform(hf.Vocab(5)), {"sampler": hf.RandomOrder()}, "RandomOrder needs"),
        (hf.Mask(hf.Vocab(5, 1)), {"sampler": hf.RandomOrder(), "gen": False}, "gen=false draws none"),
    ],
)
def test_a_sampler_that_cannot_draw_is_refused_before_anything_is_measured(source, keys, message):
    _, flow, x1 = network(source)

    def never(xt, t):
        raise AssertionError

    with pytest.raises(ValueError, match=message):
        hf.evaluate(never, flow, x1, **keys)


def test_an_autoregressive_network_takes_no_sampler():
    with pytest.raises(ValueError, match="leave sampler out"):
        hf.evaluate(hf.Causal(5, SMALL), None, torch.zeros(4, LENGTH, dtype=torch.long), sampler=hf.Euler(4))


def test_without_samples_a_planner_and_refresh_still_have_a_likelihood():
    model, flow, x1 = network(hf.Mask(hf.Vocab(5, 1)))
    rows = hf.evaluate(model, flow, x1, sampler=hf.Margin(2), gen=False, **FAST)
    (row,) = [row for row in rows if row.quantity == "planned"]
    assert (row.more["exact"], row.more["draws"], row.more["calls"]) == (True, None, LENGTH // 2)
    assert row.more["sampler"] == "η = 0, by margin, 2 positions per call"
    assert min(hf.planned_nll(model, flow, x1, hf.Margin(2)).each) <= row.more["nats"]
    rows = hf.evaluate(model, flow, x1, sampler=hf.Euler(4, refresh=1.0), gen=False, **FAST)
    assert "4 Euler steps, refresh 1" in {row.more.get("sampler_label") for row in rows}


def test_from_several_masks_planned_is_a_bound_and_says_its_draws():
    model, flow, x1 = network(hf.MultiMask(hf.Vocab(5, 3)))
    rows = hf.evaluate(model, flow, x1, sampler=hf.EntropyBound(0.5), **FAST)
    (row,) = [row for row in rows if row.quantity == "planned"]
    assert (row.is_bound, row.more["exact"], row.more["draws"]) == (True, False, 2)
    text = " ".join(page(rows, width=80).split())
    assert "bn and br bound Euler steps on an even grid, not: by entropy" in text
    assert "`planned` is the likelihood of these samples" in text
    more = hf.evaluate(model, flow, x1, sampler=hf.EntropyBound(0.5), **{**FAST, "draws": 3})
    (other,) = [row for row in more if row.quantity == "planned"]
    assert merged([row], [other]) == [row, other]  # the bound falls with the draws: two numbers


def test_rows_of_other_times_and_refreshes_do_not_replace_each_other():
    model, flow, x1 = network(hf.Mask(hf.Vocab(5, 1)))
    samplers = [hf.Euler.at((0, middle, 1)) for middle in (0.3, 0.6)] + [hf.Euler(2, refresh=r) for r in (0.5, 1.0)]
    found = [row for sampler in samplers for row in hf.evaluate(model, flow, x1, sampler=sampler, **FAST)]
    assert len(samples(merged([], found), "jumps")) == len(samples(found, "jumps")) == 4 * 2


def test_the_verdict_is_about_euler_steps_and_not_about_a_planner():
    model, flow, x1 = network(hf.Mask(hf.Vocab(5, 1)))
    with_planner = hf.evaluate(model, flow, x1, sampler=hf.Confidence(3), **FAST)
    assert verdict(with_planner)[0] == verdict(hf.evaluate(model, flow, x1, **FAST))[0]
