"""docs/evaluation.md says what is so: its examples run."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def example(words: str) -> dict:
    """What the first example with these words in it leaves behind."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    namespace: dict = {"__name__": "evaluation"}
    exec(compile(next(block for block in blocks if words in block), str(PAGE), "exec"), namespace)
    return namespace


def test_the_example_judges_samples_by_a_network_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = example("hf.generative_perplexity")["found"]
    nats = found.score.nats / found.score.tokens
    assert nats[0] < nats[2] / 1.5  # words in order, and letters in none
    assert "gen_ppl_mean" in capsys.readouterr().out


def test_the_example_of_transport_counts_what_a_network_of_independent_pairs_makes(capsys):
    made = example("hf.transport_costs")
    jumps, costs = made["found"], made["costs"]
    assert abs(jumps.per_sequence.value - 32 / 3) < 4 * jumps.per_sequence.stderr  # 2/3 of 16: it never heard of OT
    assert jumps.excess.value > 4 * jumps.excess.stderr
    squared, hamming = (costs[kind].dynamic.value for kind in (made["hf"].SquaredEmbedding, made["hf"].Hamming))
    assert squared == 2 * hamming  # ‖e_a - e_b‖² of unit vectors
    assert "excess_jumps" in capsys.readouterr().out
