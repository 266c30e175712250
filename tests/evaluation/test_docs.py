"""docs/evaluation.md says what is so: its example runs."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_example_judges_samples_by_a_network_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[0]
    namespace: dict = {"__name__": "evaluation"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    nats = namespace["found"].score.nats / namespace["found"].score.tokens
    assert nats[0] < nats[2] / 1.5  # words in order, and letters in none
    assert "gen_ppl_mean" in capsys.readouterr().out
