"""The documentation as something that can be run: pages, their fenced blocks, and commands in a size for tests.

A block is run unless a comment in the line before it says why not: `<!-- not run: it needs two machines -->`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.is_file()
)
FENCE = re.compile(r"(?:^<!-- not run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = {"length": 16, "batch": 4, "ot_batch": 8, "holdout": 0.1, "eval_rows": 2, "eval_samples": 2, "eval_steps": 2}
FEW = {"n": 2, "rows": 16, "seconds": 0.1, "draws": 2, "paths": 2}
ROWS = (".smi", ".fasta", ".npy", ".npz", ".csv")
STEPS = 2000
"""What `hopflow train FILE` takes when it is not told."""


@dataclass(frozen=True)
class Block:
    language: str
    """python, console, toml, text; empty for what a program printed."""
    code: str
    reason: str
    """Why it is not run; empty for one that is."""

    @property
    def commands(self) -> list[list[str]]:
        """The words of each line that begins with `$ `; a backslash continues a line."""
        lines = self.code.replace("\\\n", " ").splitlines()
        words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.startswith("$ ")]
        unsupported = [line for line in words if {"|", ">", "&&", ";"} & set(line)]
        assert not unsupported, f"only plain commands are run by these tests: {unsupported}"
        return words


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[Block]:
    for reason, language, code in FENCE.findall(text):
        yield Block(language, code, reason)


def shortened(words: list[str]) -> list[str]:
    """Training with a step for a thousand and small sizes, evaluation of a few rows; other commands as they are."""
    keys = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    if words[1] == "train":
        length = min(int(keys.get("length", SMALL["length"])), 64)  # one that is said is what later prompts count on
        small = {"steps": max(1, int(keys.get("steps", STEPS)) // 1000), **SMALL, "length": length}
        if words[2].endswith(ROWS):
            del small["length"]  # which is that of the rows
        return _replaced(words, small)
    if words[1] == "eval":
        steps = "2,4" if "," in keys.get("steps", "") else "2"
        return _replaced(words, {"steps": steps, **({"ot_n": 8} if "ot_n" in keys else {}), **FEW})
    return words


def _replaced(words: list[str], small: dict[str, object]) -> list[str]:
    kept = [word for word in words if word.partition("=")[0] not in small]
    return [*kept, *(f"{key}={value}" for key, value in small.items())]
