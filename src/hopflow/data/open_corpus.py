"""A corpus from the store of its tokens."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .corpus import Corpus, TokenRows
from .store import FORMAT, Store

TEST_ROWS = 8192  # the most rows in `test`, evenly spaced over the held-out text


def corpus_of(store: Store, kind: type[TokenRows], length: int, pack: bool) -> Corpus:
    """The corpus of a store, whose rows are cut or padded as `kind` does."""
    train, test = kind(store, "train", length), kind(store, "test", length)
    chosen = _spread(test.count)
    mask, labels = test.keep(chosen), test.labels(chosen)
    return Corpus(
        length=length,
        tokenizer=store.tokenizer,
        counts=torch.from_numpy(store.counts()),
        test=torch.from_numpy(test.tokens(chosen)),
        test_keep=None if mask is None else torch.from_numpy(mask),
        identity=_identity(store, train, test, length, pack),
        store=store,
        _train=train,
        test_labels=None if labels is None else torch.from_numpy(labels),
        label_names=tuple(store.header.get("label_names", ())),
    )


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
        **_labels(header),
    }


def _labels(header: dict[str, Any]) -> dict[str, str | int | float]:
    """The number of labels and the hash of those of the training rows; nothing for data without labels."""
    names = header.get("label_names")
    return {"labels": len(names), "labels_sha256": header["hashes"]["train.labels"]} if names else {}
