"""The table of sizes in docs/models.md is right: its parameters are counted."""

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
