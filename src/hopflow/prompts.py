r"""Prompts: texts with holes. `[MASK]` is a hole of one token, `[MASK:5]` of five; `\[MASK]` is that very text."""

import json
import re
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from .generation import HOLE

MARK = re.compile(r"(\\*)\[MASK(?::([^\]]*))?\]")
MOST = 1 << 20
"""Tokens of a hole; far beyond use, and far below what memory holds."""


def prompt(text: str, tokenizer: Any) -> Int[Tensor, " L"]:
    """The tokens of a text, with HOLE where it has holes; what stands between two holes is encoded by itself."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a prompt is a text in UTF-8; this one holds other bytes")
    tokens: list[int] = []
    for part in _parts(text):
        tokens += [HOLE] * part if isinstance(part, int) else tokenizer.encode(part)
    return torch.tensor(tokens, dtype=torch.int64)


def read(file: Path) -> list[str]:
    """The prompts of a file, one on each line: as it stands in a .txt, as {"prompt": …} in a .jsonl."""
    if file.suffix.lower() not in (".txt", ".jsonl"):
        raise ValueError(f"{file}: prompts are read from .txt, one on each line, or from .jsonl")
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}") from None
    numbered = [(number, line.removesuffix("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError(f"{file} holds no prompt")
    if file.suffix.lower() == ".txt":
        return [line for _, line in numbered]
    return [_from_json(line, f"{file}, line {number}") for number, line in numbered]


def _parts(text: str) -> list[str | int]:
    """Texts and the sizes of holes, in their order. Before a mark, two backslashes stand for one."""
    parts: list[str | int] = [""]
    end = 0
    for mark in MARK.finditer(text):
        slashes = len(mark[1])
        before = text[end : mark.start()] + "\\" * (slashes // 2)
        end = mark.end()
        spelled = slashes % 2 == 1
        parts[-1] = f"{parts[-1]}{before}{mark[0][slashes:] if spelled else ''}"
        if not spelled:
            parts += [_size(mark[0][slashes:], mark[2]), ""]
    parts[-1] = f"{parts[-1]}{text[end:]}"
    return [part for part in parts if part != ""]


def _size(mark: str, count: str | None) -> int:
    if count is None:
        return 1
    if not (count.isascii() and count.isdigit() and len(count) < 9 and 1 <= int(count) <= MOST):
        raise ValueError(f"{mark} is no hole: write e.g. [MASK:5] for five tokens, or \\{mark} for the text itself")
    return int(count)


def _from_json(line: str, where: str) -> str:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: not JSON ({error})\neach line is an object such as {{"prompt": "…"}}') from None
    if not isinstance(content, dict) or not isinstance(content.get("prompt"), str):
        raise ValueError(f'{where}: an object with a text under "prompt" is expected')
    return str(content["prompt"])
