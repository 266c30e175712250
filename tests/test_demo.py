"""The demo, shortened: what it writes, that it goes on, and what it does where something is missing."""

import json
import sys
from pathlib import Path

import pytest

import hopflow as hf
from hopflow import cli, demo, report
from hopflow.evaluation import record
from hopflow.runs.metrics import read
from hopflow.runs.pretrained import from_pretrained

SHORT = {
    "STEPS": 3,
    "SAMPLES": 6,
    "SAMPLER_STEPS": 4,
    "HELD_OUT": 2,
    "DRAWS": 2,
    "PAIRED": 2,
    "BATCH": 4,
    "OT_BATCH": 8,
}
NAMED = {"jumps", "jumps_se", "predicted_jumps", "b0_ppl", "b0_se", "b1_ppl", "b1_se", "bk_ppl", "bk_se"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def short(monkeypatch, cache):
    """A demo of seconds, on a text that is tokenized once."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(cache))
    monkeypatch.delenv("HOPFLOW_DATA", raising=False)
    for name, value in SHORT.items():
        monkeypatch.setattr(demo, name, value)


def run(folder, **more):
    said = []
    return demo.run(folder, offline=True, steps=demo.STEPS, say=said.append, **more), said


def test_the_demo_writes_checkpoints_samples_and_its_numbers(short, tmp_path):
    found, said = run(tmp_path)
    content = json.loads((tmp_path / "demo.json").read_text())
    assert content == found.as_json()
    for name in ("independent", "ot"):
        assert content[name].keys() >= NAMED
        assert all(isinstance(content[name][key], float) for key in NAMED)
        samples = [json.loads(line) for line in (tmp_path / name / "samples.jsonl").read_text().splitlines()]
        assert len(samples) == SHORT["SAMPLES"]
        assert sum(s["jumps"] for s in samples) / len(samples) == pytest.approx(content[name]["jumps"])
        assert from_pretrained(tmp_path / name).flow == demo_flow(name)
        assert any(text.startswith(f"{name}: training") for text in said)
    assert content["ot"]["predicted_jumps"] < content["independent"]["predicted_jumps"]


def demo_flow(name):
    corpus = demo.text(True, lambda text: None)
    coupling = {"independent": hf.Independent(), "ot": hf.ExactOT(hf.Hamming())}[name]
    return hf.Flow(hf.BagOfWords.fit(corpus.counts), coupling=coupling)


def test_what_was_measured_is_kept_as_an_evaluation_keeps_it(short, tmp_path):
    found, _ = run(tmp_path)
    for name, row in found.rows.items():
        kept = {(one.set, one.quantity): one for one in record.read(tmp_path / name)}
        for quantity in ("b0", "b1", "bk"):
            one = kept["held-out", quantity]
            assert (one.value, one.stderr) == (getattr(row, f"{quantity}_ppl"), getattr(row, f"{quantity}_se"))
            assert one.is_bound
            assert one.n == SHORT["HELD_OUT"]
        assert kept["samples", "jumps"].value == row.jumps
        assert kept["samples", "entropy_bits"].value == row.entropy_bits
        assert kept["transport", "predicted_jumps"].value == row.predicted_jumps


def test_the_report_puts_both_runs_side_by_side(short, tmp_path):
    pytest.importorskip("matplotlib")
    found, _ = run(tmp_path)
    page = report.write(demo.run_data(found), tmp_path).read_text()
    assert "<h1><bdi>independent and ot</bdi></h1>" in page
    assert "ot − independent" in page
    for row in found.rows.values():
        assert f"{row.jumps:.1f}" in page


def test_the_same_demo_again_trains_nothing_and_finds_the_same(short, tmp_path):
    first, _ = run(tmp_path)
    trained = []
    again, _ = run(tmp_path, logger=trained.append)
    assert trained == []
    assert again == first


def test_a_demo_that_was_cut_off_goes_on_where_it_was(short, tmp_path):
    whole, _ = run(tmp_path / "whole")
    demo.run(tmp_path / "cut", offline=True, steps=1)
    rows = []
    goes_on = demo.run(tmp_path / "cut", offline=True, steps=demo.STEPS, logger=rows.append)
    assert [row["step"] for row in rows] == [2] * 2  # the step before last is not logged
    assert [r.jumps for r in goes_on.rows.values()] == [r.jumps for r in whole.rows.values()]
    assert [r.b1_ppl for r in goes_on.rows.values()] == [r.b1_ppl for r in whole.rows.values()]
    assert read(tmp_path / "cut" / "ot" / "metrics.jsonl")[-1]["loss"] == whole.rows["ot"].loss


def test_without_a_network_the_built_in_text_is_used_and_it_says_so(short, tmp_path, monkeypatch):
    load, asked, said = demo.load, [], []

    def no_network(source, *more, **choices):
        asked.append(source)
        if source == "shakespeare":
            raise OSError("cannot fetch shakespeare: the network is unreachable")
        return load(source, *more, **choices)

    monkeypatch.setattr(demo, "load", no_network)
    assert demo.text(False, said.append).rows > 0
    assert asked == ["shakespeare", "docs"]
    assert "the network is unreachable" in said[0]
    assert "built-in text" in said[0]
    asked.clear()
    demo.text(True, said.append)
    assert asked == ["docs"]  # offline, nothing is even tried


def test_the_command_prints_both_rows_and_where_everything_is(short, tmp_path, monkeypatch, capsys):
    run_it = demo.run
    monkeypatch.setattr(demo, "run", lambda folder, **more: run_it(folder, steps=demo.STEPS, **more))
    monkeypatch.setattr(sys, "argv", ["hopflow", "demo", "--offline", "--out", str(tmp_path / "here")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert end.value.code == 0
    lines = out.splitlines()
    assert lines[0].split()[:4] == ["coupling", "hops", "per", "sample"]
    assert [line.split()[0] for line in lines[1:3]] == ["independent", "ot"]
    assert all(line.count("±") == 5 for line in lines[1:3])
    assert str(tmp_path / "here") in out
    assert f"step {SHORT['STEPS']}/{SHORT['STEPS']}  loss" in err


def test_every_command_reads_the_runs_of_the_demo(short, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("HOPFLOW_REPORT", "off")  # one is enough
    run(tmp_path)
    folder = str(tmp_path / "ot")

    def hopflow(*words):
        monkeypatch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert len(hopflow("sample", folder, "n=1", "steps=4")) > demo.LENGTH
    assert hopflow("infill", folder, "so[MASK:3]", "n=1", "steps=4").startswith("... ---")
    table = hopflow("eval", folder, "rows=4", "draws=2", "n=2", "steps=4", "seconds=5", "--offline")
    assert "b0" in table
    assert hopflow("report", folder).strip().endswith("report.html")
    longer = hopflow("train", folder, f"steps={SHORT['STEPS'] + 1}", "--offline")
    assert f"{SHORT['STEPS'] + 1}, " in longer
    assert read(tmp_path / "ot" / "metrics.jsonl")[-1]["step"] == SHORT["STEPS"]


@pytest.mark.parametrize(("name", "coupling"), [("independent", "independent"), ("ot", "exact")])
def test_the_recipe_of_a_demo_names_its_text_coupling_steps_and_seed(tmp_path, name, coupling):
    (tmp_path / "a.txt").write_text("some words of a text of one's own. " * 200)
    corpus = hf.data.load(tmp_path / "a.txt", "morse", demo.LENGTH, cache=tmp_path / "cache")
    found = demo.recipe(name, corpus, steps=7, seed=3)
    assert (Path(found.data).name, found.coupling, found.steps, found.seed) == ("a.txt", coupling, 7, 3)
