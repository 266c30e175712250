"""Detokenizers: turn word-tokenized test sets back into plain text, line by line.

Some sets are published as words separated by blanks, with " @-@ " for a hyphen inside a word. A model of plain text has
not seen that, and its perplexity on it is a different number, so rows record which detokenizer was used. `<unk>`, and
`N` for every number in PTB, cannot be restored.
"""

import re
from collections.abc import Callable, Iterator
from itertools import cycle

JOINED = (
    (re.compile(r" +([,.;:!?%)\]}])"), r"\1"),
    (re.compile(r"([(\[{$£€#]) +"), r"\1"),
    (re.compile(r" +(n't|'(?:s|m|d|re|ve|ll))\b", re.IGNORECASE), r"\1"),
)
INSIDE = re.compile(r" @([-,.])@ ")
QUOTE = re.compile(r' *" *')


def as_is(text: str) -> str:
    """The same text."""
    return text


def words(text: str) -> str:
    """Join punctuation, contractions, brackets and quotation marks with their words."""
    return "\n".join(_joined(line) for line in text.split("\n"))


def wikitext(text: str) -> str:
    """`words`, after joining the marks inside words: "guest @-@ starring", "2 @,@ 000"."""
    return words(INSIDE.sub(r"\1", text))


DETOKENISERS: dict[str, Callable[[str], str]] = {"as is": as_is, "words": words, "wikitext": wikitext}


def _joined(line: str) -> str:
    sides: Iterator[str] = cycle((' "', '" '))  # every second one closes
    line = QUOTE.sub(lambda _: next(sides), line)
    for pattern, together in JOINED:
        line = pattern.sub(together, line)
    return re.sub(" +", " ", line).strip()
