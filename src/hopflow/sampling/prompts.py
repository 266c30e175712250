r"""Prompts: texts with holes. `[MASK]` is a hole of one token, `[MASK:5]` of five tokens, `[MASK:3 words]` and
`[MASK:12 chars]` of about that many words or characters; `\[MASK]` is the literal text.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .generation import HOLE

MARK = re.compile(r"(\\*)\[MASK(?::([^\]]*))?\]")
COUNT = re.compile(r"([0-9]{1,8})(?: ?(token|word|char|character)s?)?")
MOST = 1 << 20
"""Largest number of tokens of a hole."""
ENOUGH = 40
"""Characters from which the text of a prompt is used to estimate the tokens per word or character."""
SAMPLE = (
    "It was late in the day when she came home and the house was quiet. On the table lay a letter "
    "with her name on it, written by a hand that she did not know."
)
"""English text that is used instead if the prompt is shorter."""


@dataclass(frozen=True)
class Hole:
    """A hole as written: a number of tokens, words or chars, and the text of the mark for messages."""

    count: int
    unit: str
    mark: str


def prompt(text: str, tokenizer: Any, length: int | None = None) -> Int[Tensor, " L"]:
    """The token ids of a text, with HOLE for its holes. The text between two holes is encoded separately.

    If the tokenizer joins a word and the blank before it (`tokenizer.attaches_blanks`, as GPT-2's BPE does), a blank
    before a hole becomes part of the hole: "upon a [MASK:1]," can become "upon a time,", because " time" is one token.

    A hole of words or chars has as many tokens as these have on average in the text of the prompt, or in an English
    text if the prompt has fewer than 40 characters, and at least one token per word. With one token per character,
    chars are exact.

    With `length` holes are appended up to this number of tokens.
    """
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a prompt must be valid UTF-8, got invalid bytes.")
    parts = _parts(text)
    own = " ".join(word for part in parts if isinstance(part, str) for word in part.split())
    sample = own if len(own) >= ENOUGH else SAMPLE
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, Hole):
            tokens += [HOLE] * _size(part, sample, tokenizer)
            continue
        hole_follows = i + 1 < len(parts) or length is not None  # two texts are never neighbors
        tokens += tokenizer.encode(part.removesuffix(" ") if hole_follows and tokenizer.attaches_blanks else part)
    if length is not None:
        if len(tokens) > length:
            raise ValueError(f"the prompt has {len(tokens)} tokens, more than length={length}.")
        tokens += [HOLE] * (length - len(tokens))
    return torch.tensor(tokens, dtype=torch.int64)


def read(file: Path) -> list[str]:
    """The prompts of a file, one per line: plain text in a .txt file, {"prompt": …} in a .jsonl file."""
    if file.suffix.lower() not in (".txt", ".jsonl"):
        raise ValueError(f"{file}: prompts must be in a .txt file, one per line, or in a .jsonl file.")
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError(f"{file} contains no prompt.")
    if file.suffix.lower() == ".txt":
        return [line for _, line in numbered]
    return [_from_json(line, f"{file}, line {number}") for number, line in numbered]


def _parts(text: str) -> list[str | Hole]:
    """Texts and holes in order. Two backslashes before a mark mean one."""
    parts: list[str | Hole] = [""]
    end = 0
    for mark in MARK.finditer(text):
        slashes = len(mark[1])
        before = text[end : mark.start()] + "\\" * (slashes // 2)
        end = mark.end()
        escaped = slashes % 2 == 1
        parts[-1] = f"{parts[-1]}{before}{mark[0][slashes:] if escaped else ''}"
        if not escaped:
            parts += [_hole(mark[0][slashes:], mark[2]), ""]
    parts[-1] = f"{parts[-1]}{text[end:]}"
    return [part for part in parts if part != ""]


def _hole(mark: str, written: str | None) -> Hole:
    if written is None:
        return Hole(1, "token", mark)
    count = COUNT.fullmatch(written)
    if count is None or not 1 <= int(count[1]) <= MOST:
        raise ValueError(
            f"{mark} is not a valid hole: write e.g. [MASK:5] for five tokens, [MASK:3 words] or [MASK:12 chars],\n"
            f"or \\{mark} for the literal text"
        )
    return Hole(int(count[1]), count[2] or "token", mark)


def _size(hole: Hole, sample: str, tokenizer: Any) -> int:
    """The number of tokens of a hole; words and chars are converted by their average in the sample."""
    if hole.unit == "token":
        return hole.count
    if hole.unit == "word":
        size = max(hole.count, round(hole.count * tokenizer.count(sample) / len(sample.split())))
    else:
        size = max(1, round(hole.count * tokenizer.count(sample) / len(sample)))
    if size > MOST:
        raise ValueError(f"{hole.mark} would have about {size:,} tokens; at most {MOST:,} are allowed.")
    return size


def _from_json(line: str, where: str) -> str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'{where}: not JSON ({error})\neach line must be an object such as {{"prompt": "…"}}'
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("prompt"), str):
        raise ValueError(f'{where}: expected an object with a string "prompt"')
    return str(content["prompt"])
