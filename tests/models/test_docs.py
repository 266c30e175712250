"""docs/models.md says what is so: its table is counted, its example runs."""

import re
from pathlib import Path

import torch

from hopflow.models import SIZES, Causal, Transformer
from hopflow.vocab import Vocab

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
TOKENS = 50_257


def count(network: torch.nn.Module) -> str:
    return f"{sum(parameter.numel() for parameter in network.parameters()):,}"


def test_the_table_of_sizes_is_right():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    with torch.device("meta"):
        expected = [
            (
                name,
                f"{size.layers} × {size.width} | {size.heads} | {count(Transformer(Vocab(TOKENS, TOKENS), size))} | "
                f"{count(Transformer(Vocab(TOKENS, TOKENS), size, time=False))} | {count(Causal(TOKENS, size))}",
            )
            for name, size in SIZES.items()
        ]
    assert rows == expected


def test_the_example_with_a_module_of_ones_own_runs_and_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    namespace: dict = {"__name__": "models"}
    exec(compile(code, str(PAGE), "exec"), namespace)
    # always the same token would cost log 4 at each of the 8 positions
    assert float(namespace["loss"].detach()) < 8 * 1.386 * 0.7
    assert (tmp_path / "my-flow" / "model.safetensors").is_file()
