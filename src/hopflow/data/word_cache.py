"""A cache of encoded words: each distinct word is encoded once, which makes BPE several times faster on real text."""

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

BUDGET = 48 << 20  # bytes, roughly; beyond it the cache is emptied
# Unicode's blanks, as the pre-tokenizer's \s has them; Python's own \s also takes U+001C … U+001F
_BLANK = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# English words without the marks after them, of which there are far fewer; characters that newer Unicode versions may
# call letters do not count as marks
_MARK = rf"{_BLANK}\x00-@\[-`{{-\x7f\u2010-\u2027"
_WORD = re.compile(rf"[{_BLANK}]*[A-Za-z]+(?=[{_MARK}]|\Z)|[{_BLANK}]*[^{_BLANK}]+|[{_BLANK}]+")

Ids = NDArray[np.uint32]


class WordCache:
    """Tokenizes a text word by word, and keeps the ids of every word.

    A word includes the blanks before it. Words can be encoded separately if the pre-tokenizer joins no character to a
    blank after it, no letter to anything but a letter after it, and does not depend on earlier text, as GPT-2's; the
    caller checks that.
    """

    def __init__(self, encode: Callable[[Sequence[str]], list[list[int]]]) -> None:
        self._encode = encode
        self._clear()

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        if self._bytes > BUDGET:
            self._clear()
        parts = [_WORD.findall(text) for text in texts]
        words = [word for part in parts for word in part]
        unknown = [word for word in dict.fromkeys(words) if word not in self._place]
        if unknown:
            self._add(unknown)
        place = np.fromiter(map(self._place.__getitem__, words), np.int64, len(words))
        lengths = self._length[place]
        ends = np.cumsum(lengths)
        # the j-th id of a word is at its start + j in the pool
        shift = np.repeat(self._start[place] - (ends - lengths), lengths)
        ids = self._pool[shift + np.arange(shift.size)]
        last_words = np.cumsum([len(part) for part in parts])
        borders = np.concatenate([[0], ends])[last_words[:-1]]
        return np.split(ids, borders)

    def _clear(self) -> None:
        self._place: dict[str, int] = {}
        self._start = np.empty(0, np.int64)
        self._length = np.empty(0, np.int64)
        self._pool = np.empty(0, np.uint32)
        self._bytes = 0

    def _add(self, words: list[str]) -> None:
        ids = self._encode(words)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        start = self._pool.size + np.cumsum(lengths) - lengths
        self._place.update(zip(words, range(len(self._place), len(self._place) + len(words)), strict=True))
        self._start = np.concatenate([self._start, start])
        self._length = np.concatenate([self._length, lengths])
        new = np.fromiter((i for word in ids for i in word), np.uint32, int(lengths.sum()))
        self._pool = np.concatenate([self._pool, new])
        self._bytes += sum(map(len, words)) + 200 * len(words) + new.nbytes
