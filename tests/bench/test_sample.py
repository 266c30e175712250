"""`hopflow bench sample` reports correct values; no test checks a speed."""

import json

import pytest
import torch

from hopflow.bench import sample
from hopflow.bench.memory import PeakMemory
from hopflow.bench.plain import plain_euler
from hopflow.flow import Flow
from hopflow.predictions import Plain
from hopflow.sources import Mask, Uniform
from hopflow.vocab import Vocab

CASE = sample.SamplingCase(n=2, length=8, tokens=40, steps=(1, 40))


@pytest.fixture(scope="module")
def rows():
    return sample.run(CASE)


def test_every_sampler_runs_on_every_source_it_can(rows):
    found = {(row.source, row.steps, row.sampler) for row in rows}
    wanted = {(s, n, kind) for s in sample.SOURCES for n in (1, 40) for kind in ("euler", "plain_euler")}
    assert found == wanted | {(s, 8, "random_order") for s in ("mask", "multimask")}


def test_calls_are_counted_and_speeds_are_positive(rows):
    for row in rows:
        assert row.sequences_per_s > 0
        assert row.peak_bytes >= 0
        calls = {"plain_euler": row.steps, "random_order": 8}.get(row.sampler)
        assert row.calls_per_sequence == calls if calls else row.calls_per_sequence <= row.steps
        assert row.timed_steps == (min(row.steps, sample.TIMED_STEPS) if row.sampler == "plain_euler" else row.steps)


def test_ratios_compare_each_row_with_the_plain_loop_of_its_source(rows):
    plain = {(row.source, row.steps): row.sequences_per_s for row in rows if row.sampler == "plain_euler"}
    seen = 0
    for row, ratio in sample.ratios(rows):
        baseline = plain[row.source, row.steps if row.sampler == "euler" else 40]
        assert ratio == pytest.approx(row.sequences_per_s / baseline)
        seen += 1
    assert seen == 10


def test_the_plain_loop_samples_the_right_distribution():
    law = torch.tensor([0.6, 0.3, 0.1])
    for source in (Mask(Vocab(3, 1)), Uniform(Vocab(3))):
        flow, g = Flow(source, prediction=Plain()), torch.Generator().manual_seed(0)
        x0 = source.sample(4000, 2, generator=g)
        x1 = plain_euler(lambda xt, t: law.log().expand(*xt.shape, 3), flow, x0, 200, range(200), g)
        flow.vocab.check_data(x1)
        seen = torch.bincount(x1.flatten(), minlength=3) / x1.numel()
        assert torch.allclose(seen, law, atol=0.03)


def test_half_of_the_plain_loops_steps_leave_half_of_the_masks():
    flow, g = Flow(Mask(Vocab(3, 1)), prediction=Plain()), torch.Generator().manual_seed(0)
    x0 = flow.source.sample(4000, 2, generator=g)
    xt = plain_euler(lambda xt, t: torch.zeros(*xt.shape, 3), flow, x0, 200, range(100), g)
    assert float((xt == 3).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_peak_memory_sees_a_large_tensor():
    with PeakMemory(torch.device("cpu")) as peak:
        held = torch.ones(30_000_000)
        held += 1
        for _ in range(3):
            held.sum()
    assert 100e6 < peak.bytes < 300e6


def test_the_defaults_on_a_gpu_are_the_size_of_the_paper():
    assert sample.SamplingCase.on(torch.device("cuda"), n=7) == sample.SamplingCase(
        n=7, tokens=50_257, size="small", device=torch.device("cuda")
    )


def test_the_command_prints_a_table_and_writes_json(hopflow, tmp_path):
    file = tmp_path / "bench.json"
    keys = ("n=2", "length=4", "tokens=9", "steps=2,3", "source=mask", "device=cpu", "seed=1")
    ended = hopflow("bench", "sample", *keys, "--json", str(file))
    assert ended.code == 0, ended.err
    content = json.loads(file.read_text())
    names = {"source", "steps", "sampler", "sequences_per_s", "calls_per_sequence", "peak_bytes"}
    assert all(names <= row.keys() for row in content["rows"])
    assert [(row["steps"], row["sampler"]) for row in content["rows"]] == [
        (2, "euler"), (2, "plain_euler"), (3, "euler"), (3, "plain_euler"), (4, "random_order")
    ]  # fmt: skip
    assert "plain_euler" in ended.out
    assert "speed-up" in ended.out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("steps=0", "steps must be an integer from 1 to"),
        ("steps=", "steps must be an integer from 1 to"),
        ("steps=1,x", "got 1,x."),
        ("tokens=1", "tokens must be an integer ≥ 2, got 1."),
        ("size=huge", "no size 'huge'"),
        ("source=maks", "did you mean 'mask'"),
        ("n=0", "from 1"),
        ("step=3", "did you mean 'steps'"),
    ],
)
def test_a_wrong_setting_is_reported_in_one_message(hopflow, word, message):
    ended = hopflow("bench", "sample", word)
    assert ended.code == 2
    assert message in ended.err
