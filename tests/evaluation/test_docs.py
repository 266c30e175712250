"""docs/evaluation.md says what is so: its examples run."""

import re
from pathlib import Path

import pytest

from hopflow.evaluation.frontier import SAMPLES

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def example(index: int) -> dict:
        namespace: dict = {"__name__": "evaluation"}
        exec(compile(CODE[index], str(PAGE), "exec"), namespace)
        return namespace

    return example


def test_the_first_example_measures_a_flow_and_prints_its_rows(run, capsys):
    (row,) = run(0)["rows"]
    assert (row.quantity, row.run, row.is_bound) == ("b1", "memory", True)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("tale.txt: b0 ") and line.endswith("(n=16, a bound)") for line in lines) == 1
    assert sum(line.startswith(f"{SAMPLES}: gen_ppl ") for line in lines) == 2


def test_the_second_example_judges_samples_by_a_network_of_ones_own(run, capsys):
    found = run(1)["found"]
    nats = found.score.nats / found.score.tokens
    assert nats[0] < nats[2] / 1.5  # words in order, and letters in none
    assert "gen_ppl_mean" in capsys.readouterr().out


def test_the_third_example_counts_what_a_network_of_independent_pairs_makes(run, capsys):
    made = run(2)
    jumps, costs = made["found"], made["costs"]
    assert abs(jumps.per_sequence.value - 32 / 3) < 4 * jumps.per_sequence.stderr  # 2/3 of 16: it never heard of OT
    assert jumps.excess.value > 4 * jumps.excess.stderr
    squared, hamming = (costs[kind].dynamic.value for kind in (made["hf"].SquaredEmbedding, made["hf"].Hamming))
    assert squared == 2 * hamming  # ‖e_a - e_b‖² of unit vectors
    assert "excess_jumps" in capsys.readouterr().out
