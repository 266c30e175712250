"""Symbols: what is shown of a token that stands by itself, on screens that text must not be able to steer."""

import unicodedata
from collections.abc import Iterable
from typing import Any

MASK, END, NOTHING = "░", "␃", "∅"
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that move a cursor, hide or turn around what follows."""


def symbols(tokenizer: Any, tokens: Iterable[int], data: int) -> dict[int, str]:
    """The text of each of these tokens that is a data token; masks have none."""
    shown = {token: harmless(_alone(tokenizer, token)) or NOTHING for token in tokens if token < data}
    return {token: END if token == tokenizer.end else text for token, text in shown.items()}


def harmless(text: str, keep: str = "") -> str:
    """With a picture in place of each character that would steer a screen, but for those to keep."""
    return "".join(c if c in keep or unicodedata.category(c) not in STEERING else _picture(c) for c in text)


def _alone(tokenizer: Any, token: int) -> str:
    """As it reads after another one: at the start of a text, some tokenizers drop a token's leading blank."""
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    return str(twice[len(once) :] if twice.startswith(once) and len(twice) > len(once) else once)


def _picture(character: str) -> str:
    if character == "\n":
        return "⏎"
    if character == "\x7f":
        return "␡"
    return chr(0x2400 + ord(character)) if character < " " else "\ufffd"
