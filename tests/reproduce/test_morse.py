"""hopflow reproduce morse, shrunk: its rows, its errors over seeds, and what it writes."""

import json
import math
import sys
from dataclasses import replace

import pytest
from small_recipes import TEXT, shrunk

import hopflow.reproduce.morse as table_1
from hopflow import cli
from hopflow.recipes import named
from hopflow.reproduce import morse_tables

TINY = {"steps": 1, "samples": 2, "sampler_steps": 2, "device": "cpu"}
TWO = ("morse_laptop", "morse_exact_laptop")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The recipes in a size for tests, on a text that is here."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fox.txt").write_text(TEXT)
    monkeypatch.setattr(table_1, "named", lambda name: shrunk(named(name), str(tmp_path / "fox.txt")))
    monkeypatch.setattr(table_1, "PAIRED", 3)
    monkeypatch.setattr(table_1, "HELD_OUT", 2)


def test_every_recipe_and_seed_is_trained_and_measured(small, tmp_path):
    said = []
    rows = table_1.run(tmp_path / "runs", seeds=2, recipes=TWO, say=said.append, **TINY)
    assert [(row.recipe, row.seeds, row.steps) for row in rows] == [(name, 2, 1) for name in TWO]
    for row in rows:
        assert set(row.values) == set(row.errors) == set(table_1.QUANTITIES)
        for key in table_1.QUANTITIES:
            one, other = (each[key] for each in row.each)
            assert row.values[key] == pytest.approx((one + other) / 2)
            assert row.errors[key] == pytest.approx(abs(one - other) / 2)  # of the mean of two
        assert all(each["b1_se"] > 0 and each["predicted_jumps_se"] > 0 for each in row.each)
        assert 0 < row.values["predicted_jumps"] <= 16
    assert rows[1].values["predicted_jumps"] < rows[0].values["predicted_jumps"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        f"{n}-{s}" for n in TWO for s in (0, 1)
    )
    assert f"{TWO[1]}-1: step 1 of 1" in "\n".join(said)


def test_runs_that_are_there_are_measured_again_and_found_the_same(small, tmp_path):
    first, again = (table_1.run(tmp_path / "runs", seeds=1, recipes=TWO[:1], **TINY) for _ in range(2))
    assert first == again
    assert all(math.isnan(error) for error in first[0].errors.values())  # one seed says nothing of its spread


def test_the_tables_recipes_are_those_of_the_laptop():
    for name in table_1.RECIPES:
        recipe = named(name)
        assert (recipe.size, recipe.tokens, recipe.cost) == ("tiny", "morse", "hamming")
        assert replace(recipe, name=TWO[0], coupling="independent", eps=named(TWO[0]).eps) == named(TWO[0])


@pytest.fixture
def command(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table_1, "RECIPES", TWO[:1])
    whole = table_1.run
    monkeypatch.setattr(table_1, "run", lambda folder, **more: whole(folder, recipes=TWO[:1], **more))

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["hopflow", "reproduce", "morse", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return run


def test_the_command_prints_a_row_and_writes_json(command, tmp_path):
    words = [f"{key}={value}" for key, value in TINY.items()]
    code, out, _ = command(*words, "seeds=1", "--out", str(tmp_path / "runs"), "--json", str(tmp_path / "rows.json"))
    assert code == 0
    header, row = out.splitlines()
    assert header.split() == ["recipe", "seeds", *table_1.QUANTITIES]
    assert row.split()[:2] == [TWO[0], "1"]
    (stored,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert stored["recipe"] == TWO[0]
    assert f"{stored['values']['jumps']:.4g} ± ?" in row


@pytest.mark.parametrize(
    ("word", "said"), [("sed=1", "did you mean 'seeds'"), ("steps=0", "steps must be an integer ≥ 1, got 0.")]
)
def test_a_mistake_is_named(command, tmp_path, word, said):
    code, out, err = command(word, "--out", str(tmp_path / "runs"))
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "runs").exists()


# -- files of results and the paper's tables ---------------------------------------------------------------------------


def test_runs_with_a_result_file_are_read_and_not_trained(small, tmp_path):
    keys = {"seeds": 1, "recipes": TWO[:1], "results": tmp_path / "results", **TINY}
    (first,) = table_1.run(tmp_path / "runs", **keys)
    (file,) = (tmp_path / "results").iterdir()
    assert file.name == f"laptop-{TWO[0]}-seed0.json"
    stored = morse_tables.read(file)
    assert (stored.steps, stored.samples, stored.seconds > 0) == (TINY["steps"], TINY["samples"], True)
    (again,) = table_1.run(tmp_path / "elsewhere", **keys)
    assert not (tmp_path / "elsewhere").exists()
    assert again.values == pytest.approx(first.values)


def test_no_run_is_started_after_the_time(small, tmp_path):
    said = []
    assert table_1.run(tmp_path, seeds=1, recipes=TWO[:1], minutes=-1.0, say=said.append, **TINY) == []
    assert said == [f"-1 minutes are spent; the next run is {TWO[0]}, seed 0"]


@pytest.mark.parametrize("size", ["mini", "small"])
def test_the_paper_s_sizes_train_the_paper_s_recipes(size):
    for name in table_1.PAPER_RECIPES:
        recipe = table_1.sized_recipe(name, size, 1, None, "cpu")
        assert (recipe.size, recipe.steps, recipe.batch, recipe.length, recipe.seed) == (size, 20_000, 64, 128, 1)
        assert recipe.coupling == named(name).coupling


def morse_run(recipe, size, seed, hops):
    values = {"jumps": hops, "jumps_se": 0.1, "predicted_jumps": 85.0, "b0_ppl": None, "b1_ppl": 2.0, "bk_ppl": 2.1}
    return morse_tables.MorseRun(recipe, size, seed, 20_000, 3000, 1024, values, {"device": "x"}, 1.0)


def test_the_tables_have_the_paper_s_rows_and_a_row_for_each_size(tmp_path):
    for seed, hops in enumerate((80.0, 82.0)):
        morse_run("morse", "mini", seed, hops).write(tmp_path)
    morse_run("morse", "small", 0, 85.0).write(tmp_path)
    lines = morse_tables.tables(tmp_path).splitlines()
    assert (
        "| Normal | mini | 20,000 | 2 | 81.00 ± 1.00 (85.47) | 85.00 ± 0.00 | – (2.35) | 2.00 ± 0.00 | 2.10 ± 0.00 |"
        in lines
    )
    assert (
        "| Normal | small | 20,000 | 1 | 85.00 ± 0.10 (85.47) | 85.00 ± ? | – (2.35) | 2.00 ± ? | 2.10 ± ? |" in lines
    )
    assert "| With OT | – | – | 0 | – (107.41) | – | – (4.89) | – | – |" in lines
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| With")] == [
        *("With OT, ε = 0.1", "With OT, ε = 0.01", "With exact OT", "With OT")
    ]


def test_a_damaged_result_file_is_refused_with_the_place(tmp_path):
    file = morse_run("morse", "mini", 0, 80.0).write(tmp_path)
    file.write_text(file.read_text().replace("20000", '"many"'))
    with pytest.raises(ValueError, match=r"mini-morse-seed0.json is not a run of reproduce morse: steps"):
        morse_tables.read(file)
