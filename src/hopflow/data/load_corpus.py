"""Load a text as a corpus: tokenized once, then memory-mapped from the cache."""

import logging
import os
from numbers import Integral
from pathlib import Path
from typing import Any

from ..system.progress import Progress, ProgressCallback
from .corpus import Corpus, PackedRows, PaddedRows, TokenRows
from .open_corpus import corpus_of
from .prepare import prepare
from .row_corpus import check_holdout, load_rows
from .row_files import is_row_file
from .store import Store
from .tokenizers import Tokenizer

LENGTH = 128
"""Tokens per row of a text, unless a length is passed."""


def load(
    source: str | Path,
    tokens: str | Path | Tokenizer = "char",
    length: int | None = None,
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

    Or a file of rows: .npy, .npz, .fasta, .smi or .csv (docs/data.md); its `length` is that of the longest row.

    `tokens`: "char", "byte", "morse", "bpe:8000" (learned from the training split), "auto" (BPE with a vocabulary for
    the size of the text; characters if it is short), "gpt2", a path to a tokenizer.json or to a folder with
    encoder.json and vocab.bpe, or a Tokenizer, such as that of a saved model.

    `holdout`: the fraction of the documents that is held out, chosen by `seed`; of a text with one document, its last
    part. 0 holds out nothing, 1 everything. A source with valid (or test) files next to train files holds out those.

    `length`: tokens per row, 128 by default.

    `pack`: documents are concatenated, each followed by the end-of-text token, and rows continue across them. With
    `pack=False` a row belongs to one document and is padded with end-of-text tokens; `keep` is True up to the first of
    these. Characters and bytes have an end-of-text token only if there are several documents, or with `pack=False`.
    """
    if not isinstance(source, str | os.PathLike):
        raise ValueError(f"source must be the name of a file, folder or corpus, got {type(source).__name__}.")
    if source == "":
        raise ValueError("source is empty: pass the name of a file, folder or corpus.")
    _check(length, holdout)
    if is_row_file(source):
        chosen: dict[str, Any] = {"holdout": holdout, "seed": seed, "cache": cache, "progress": progress}
        return load_rows(source, tokens, length, offline=offline, **chosen)
    length = LENGTH if length is None else length
    status = Progress(progress or logging.getLogger("hopflow.data").info)
    store = prepare(source, tokens, holdout, pack, cache, seed, status, offline)
    kind = PackedRows if pack else PaddedRows
    train, test = kind(store, "train", length), kind(store, "test", length)
    _check_rows(store, train, test, length, holdout)
    return corpus_of(store, kind, length, pack)


def _check(length: int | None, holdout: float) -> None:
    if length is not None and not (isinstance(length, Integral) and length >= 1):
        raise ValueError(f"length must be an integer ≥ 1, got {length!r}")
    check_holdout(holdout)


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
