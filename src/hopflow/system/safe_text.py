"""Text that is safe to show: symbols for control characters, and the text of single tokens."""

import unicodedata
from collections.abc import Iterable
from typing import Any

MASK, END, NOTHING = "░", "␃", "∅"
CONTROL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of characters that move the cursor, or hide or reverse the text after them."""


def symbols(tokenizer: Any, tokens: Iterable[int], data: int) -> dict[int, str]:
    """The text of each of these tokens that is a data token; mask tokens are left out."""
    shown = {token: harmless(token_text(tokenizer, token)) or NOTHING for token in tokens if token < data}
    return {token: END if token == tokenizer.end else text for token, text in shown.items()}


def harmless(text: str, keep: str = "", replace: tuple[str, ...] = CONTROL_CATEGORIES) -> str:
    """The text with a symbol for each character of the categories `replace`, except for those to keep."""
    return "".join(c if c in keep or unicodedata.category(c) not in replace else _symbol(c) for c in text)


def printable(text: str) -> str:
    """The text with symbols for control characters (␛ for escape), and U+FFFD for invalid ones.

    Line ends and tabs stay, and so do marks that scripts need, such as joiners.
    """
    return harmless(text, keep="\n\t", replace=("Cc", "Cs", "Cn"))


def token_text(tokenizer: Any, token: int) -> str:
    """The text of a token after another one: at the start of a text, some tokenizers drop its leading blank."""
    once, twice = tokenizer.decode([token]), tokenizer.decode([token, token])
    return str(twice[len(once) :] if twice.startswith(once) and len(twice) > len(once) else once)


def _symbol(character: str) -> str:
    if character == "\n":
        return "⏎"
    if character == "\x7f":
        return "␡"
    return chr(0x2400 + ord(character)) if character < " " else "\ufffd"
