"""Tests of behavior that random changes of the code (`make mutate`) showed to be untested."""

import errno
import math

import pytest
import torch
from torch import nn

import hopflow as hf
from hopflow.cli.command_settings import EvalSettings
from hopflow.cli.settings_parser import parse_settings
from hopflow.cli.training_log import TrainingLog
from hopflow.data import store
from hopflow.evaluation.best_bound import is_lower
from hopflow.evaluation.exact_nll import causal_nll
from hopflow.evaluation.rows import Row
from hopflow.models import Causal, Size
from hopflow.network import network
from hopflow.report.page import script_json
from hopflow.runs.devices import choose_device
from hopflow.training.averages import WeightEma
from hopflow.training.pairing.pool_growth import COUNT, SECONDS, PoolGrowth
from hopflow.training.settings import Settings
from hopflow.transport.sinkhorn import sinkhorn

SMALL = Size(layers=1, width=16, heads=2)


def test_a_training_log_says_where_the_run_starts():
    for done, expected in (
        (0, []),
        (3, ["resuming from step 3 of 9"]),
        (9, ["the run has already finished its 9 steps"]),
    ):
        said = []
        log = TrainingLog(9, said.append)
        log.step(done, 9)
        log.step(min(done + 1, 9), 9)
        assert said == expected


@pytest.mark.parametrize("sound", [0.0, 1.0])
def test_the_weight_average_on_a_gpu_takes_in_nothing_after_a_failed_step(sound):
    model = nn.Linear(2, 2)
    average = WeightEma(model, 0.5)
    before = average.weights["weight"].clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    average.update(model, 5, torch.tensor(sound))
    expected = before.lerp(model.weight.detach(), sound * (1 - min(0.5, 6 / 15)))
    torch.testing.assert_close(average.weights["weight"], expected)


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="device=cuda:99 cannot be used here"):
        choose_device("cuda:99")


def test_a_stack_of_costs_is_solved_as_its_parts_are():
    cost = torch.rand(3, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = sinkhorn(cost, 0.1)
    for place, one in enumerate(cost):
        torch.testing.assert_close(together.rows[place], sinkhorn(one, 0.1).rows, rtol=1e-4, atol=1e-6)


def test_one_sequence_alone_shows_no_lower_bound():
    def row(value):
        own = {"set": "held-out", "unit": "ppl", "is_bound": True, "dtype": "float32", "recipe_hash": None}
        own |= {"value": value, "stderr": 0.01, "n": 1, "eta": 0.0, "more": {}, "each": (math.log(value),)}
        return Row("run", quantity="b0", **own)

    assert is_lower(row(2.0), row(3.0))  # by its error: one sequence has no spread
    assert not is_lower(row(3.0), row(2.0))


def test_the_exact_value_of_a_causal_network_has_one_degree_of_freedom_less_than_sequences():
    (found,) = causal_nll(Causal(5, SMALL), 4)(torch.randint(0, 5, (6, 3)), 0)
    assert (found.n, found.freedom, found.calls) == (6, 5, 1)


@pytest.mark.parametrize(("text", "steps"), [("1", (1,)), ("8,1048576", (8, 1 << 20))])
def test_eval_takes_steps_up_to_its_limit(text, steps):
    assert parse_settings([f"steps={text}"], EvalSettings).steps == steps


@pytest.mark.parametrize("text", ["0", "1048577"])
def test_eval_refuses_steps_beyond_its_limit(text):
    with pytest.raises(ValueError, match="from 1 to 1048576"):
        parse_settings([f"steps={text}"], EvalSettings)


def test_a_store_that_cannot_be_moved_to_its_place_is_an_error(tmp_path, monkeypatch):
    def refuse(self, target):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr("pathlib.Path.rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        store._move(tmp_path / "a", tmp_path / "b")


def test_a_judge_that_is_not_there_is_named_by_its_path():
    with pytest.raises(FileNotFoundError) as error:
        hf.judge("no/such/folder")
    assert error.value.filename == "no/such/folder"


class Headed(nn.Linear):
    def features(self, xt, t):
        return xt

    def head(self, features):
        return features


def test_auto_precision_is_bf16_only_for_networks_with_a_head(monkeypatch):
    monkeypatch.setattr(network, "choose_precision", lambda asked, device: "bf16")
    for model, expected in ((nn.Linear(2, 2), "float32"), (Headed(2, 2), "bf16")):
        with network.use_precision(model, torch.device("cpu")) as name:
            assert name.replace("bfloat16", "bf16") == expected


def test_data_of_a_page_holds_no_nan():
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json({"value": math.nan})


def test_one_more_worker_is_asked_for_after_exactly_the_couplings_that_count():
    now = [0.0]
    growth, asked = PoolGrowth(4, lambda: now[0]), []
    for _ in range(COUNT + 1):  # the first one starts the clock
        asked.append(growth.add(SECONDS, 1))
        now[0] += 2 * SECONDS
    assert [share is not None for share in asked] == [False] * COUNT + [True]


def test_a_run_is_not_deterministic_on_a_gpu_unless_that_is_asked_for():
    assert Settings().deterministic is False
