"""Rows of any discrete data as a corpus: arrays in memory, and files of rows."""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..system.progress import Progress, ProgressCallback
from .build_tokenizer import AUTO, existing_tokenizer, from_text
from .corpus import Corpus, StoredRows, shuffled
from .documents import DocumentChunk
from .file_hashes import file_sha256
from .named_corpora import cache_folder
from .open_corpus import corpus_of
from .prepare import Preparation
from .row_checks import CheckedRows, check_rows
from .row_files import FileRows, read_rows, suffix_of
from .store import FORMAT, SPLITS, Store, StoreWriter, open_or_build
from .symbols import Numbers, Symbols
from .tokenizers import Tokenizer

Decode = Callable[[Sequence[int]], str]


def rows(
    array: Any,
    vocab: int | None = None,
    labels: Any = None,
    keep: Any = None,
    decode: str | Sequence[str] | Tokenizer | Decode | None = None,
    *,
    holdout: float = 0.02,
    seed: int = 0,
    cache: str | Path | None = None,
) -> Corpus:
    """Rows of token ids as a corpus to train on.

    `array`: integers of shape (rows, positions), a list of rows of different lengths, or a list of texts, which has one
    token per character. Rows of different lengths end with an end-of-row token, which is one more token of the
    vocabulary, and are padded with it; the padding does not count in the loss.

    `vocab`: the number of tokens; by default the largest id + 1. `labels`: one integer from 0, or one text, per row.
    `keep`: True for positions that count in the loss; False at the end of a row is padding. `keep=True` counts
    padding, too: bounds are then defined for rows of different lengths.

    `decode`: how rows are shown. A text or list with the symbol of each id ("ACGT") or a Tokenizer is stored with a
    run. A function from ids to text is used in this process only. By default ids are shown as numbers.

    `holdout` is the fraction of the rows that is held out, chosen by `seed`.

    >>> import hopflow as hf
    >>> corpus = hf.data.rows([[0, 1, 2], [2, 1, 0], [1, 1, 1]], decode="ACG", holdout=0.4)
    >>> corpus.rows, corpus.length, corpus.vocab_size, corpus.decode([2, 0, 1])
    (2, 3, 3, 'GAC')
    """
    check_holdout(holdout)
    padding_counts = keep is True
    found = FileRows(
        _plain(array), None if labels is None else _plain(labels), None if padding_counts else _plain(keep)
    )
    tokenizer = _tokenizer(decode)
    vocab = getattr(vocab, "data", vocab)
    checked, tokenizer = _encode(found, "array", tokenizer, vocab)
    digest = checked.sha256()
    preparation = _preparation(digest, "array", tokenizer.sha256, holdout, seed, padding_counts)
    status = Progress(logging.getLogger("hopflow.data").info)
    store = _store(preparation, lambda: ("array", checked, tokenizer), cache_folder(cache), status, padding_counts)
    corpus = _corpus(store, None, "array")
    return replace(corpus, decoder=cast(Decode, decode)) if _is_function(decode) else corpus


def load_rows(
    source: str | Path,
    tokens: str | Path | Tokenizer,
    length: int | None,
    *,
    holdout: float,
    seed: int,
    cache: str | Path | None,
    progress: ProgressCallback | None,
    offline: bool,
) -> Corpus:
    """The corpus of a file of rows (`row_files`), prepared once and then memory-mapped from the cache."""
    path, folder = Path(source).expanduser(), cache_folder(cache)
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
    status = Progress(progress or logging.getLogger("hopflow.data").info)
    made = existing_tokenizer(tokens, folder, status, offline)
    digest = file_sha256(path, folder, status)
    preparation = _preparation(digest, suffix_of(path), made.sha256 if made else str(tokens), holdout, seed, False)

    def read() -> tuple[str, CheckedRows, Tokenizer]:
        found = read_rows(path)
        for_text = str(tokens) not in (AUTO, "char") if made is None else not isinstance(made, _Of)
        if for_text and not found.is_text:
            raise ValueError(f"{path.name} contains token ids, tokens={tokens} is for text: leave it out")
        held = held_out(len(found.sequences), holdout, seed)
        checked, tokenizer = _encode(found, path.name, made, None, held, tokens, status)
        if file_sha256(path, folder, status) != digest:
            raise ValueError(f"{path.name} changed while it was read: try again when it is complete")
        return path.name, checked, tokenizer

    return _corpus(_store(preparation, read, folder, status, False), length, path.name)


_Of = Numbers | Symbols


def check_holdout(holdout: float) -> None:
    """Raise a ValueError unless it is a fraction."""
    if not (isinstance(holdout, Real) and 0 <= float(holdout) <= 1):
        raise ValueError(f"holdout must be a fraction from 0 to 1, e.g. 0.02, got {holdout!r}")


def held_out(count: int, holdout: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out: a fraction that the seed chooses, at least one and not all unless it is 0 or 1."""
    some = round(holdout * count)
    if 0 < holdout < 1:
        some = min(max(some, 1), count - 1)
    return shuffled(np.arange(count, dtype=np.int64), max(count, 1), seed, 0) < some


def _preparation(sha256: str, kind: str, tokens: str, holdout: float, seed: int, padding_counts: bool) -> Preparation:
    kind = f"rows, {kind}{', padding counts' if padding_counts else ''}"
    return Preparation(FORMAT, sha256, kind, tokens, float(holdout), seed, False)


def _encode(
    found: FileRows,
    name: str,
    tokenizer: Tokenizer | None,
    vocab: int | None,
    held: NDArray[np.bool_] | None = None,
    tokens: str | Path | Tokenizer = AUTO,
    progress: Progress | None = None,
) -> tuple[CheckedRows, Tokenizer]:
    """Checked ids, and the tokenizer that shows them; it has an end-of-row token if rows need one."""
    known = None
    if found.is_text:
        texts = [str(text) for text in found.sequences]
        if tokenizer is None:
            marks: Any = [False] * len(texts) if held is None else held
            documents = (DocumentChunk(text, True, bool(mark)) for text, mark in zip(texts, marks, strict=True))
            kind = "char" if str(tokens) in (AUTO, "char") else str(tokens)
            tokenizer = from_text(kind, "".join(sorted(set().union(*texts))), documents, progress or Progress(None))
        ids = [row.astype(np.int64) for row in tokenizer.encode_all(texts)]
        if not all(len(row) for row in ids):
            raise ValueError(f"{name}, row {[len(row) for row in ids].index(0)}: the row is empty")
        found, known = replace(found, sequences=ids), tokenizer.size  # its end-of-text token may have any id
    data = None if tokenizer is None else tokenizer.size - (tokenizer.end is not None)
    if data is not None and vocab is not None and vocab != data:
        raise ValueError(f"vocab={vocab}, but there are {data} symbols: pass vocab={data}, or leave vocab out")
    checked = check_rows(found, name, known or data or vocab)
    tokenizer = tokenizer or Numbers(checked.vocab)
    return checked, tokenizer.with_end() if checked.ragged else tokenizer


def _store(
    preparation: Preparation,
    read: Callable[[], tuple[str, CheckedRows, Tokenizer]],
    folder: Path,
    progress: Progress,
    padding_counts: bool,
) -> Store:
    """The store of the rows, from the cache if it is there."""

    def build(target: Path) -> None:
        name, checked, tokenizer = read()
        more = tuple(kind for kind in ("labels", "keep") if getattr(checked, kind) is not None)
        writer = StoreWriter(target, tokenizer, more)
        try:
            for place, (row, split) in enumerate(zip(checked.ids, _splits(checked, preparation), strict=True)):
                writer.add(split, row.astype(np.uint32), True)
                if checked.labels is not None:
                    writer.add_column(split, "labels", np.int64(checked.labels[place]).tobytes())
                if checked.keep is not None:
                    writer.add_column(split, "keep", checked.keep[place].astype(np.uint8).tobytes())
            writer.finish(
                {
                    "source": name,
                    "plan": asdict(preparation),
                    "read": {"bytes": int(sum(row.nbytes for row in checked.ids)), "characters": 0},
                    "seconds": 0.0,
                    "longest": max(len(row) for row in checked.ids) + (tokenizer.end is not None),
                    "label_names": list(checked.label_names),
                    "padding_counts": padding_counts,
                }
            )
        finally:
            writer.close()

    return open_or_build(folder / "tokens" / preparation.key, build, progress)


def _splits(checked: CheckedRows, preparation: Preparation) -> Iterator[str]:
    count, holdout = len(checked.ids), preparation.holdout
    if count < 2 and 0 < holdout < 1:
        raise ValueError("there is only one row, so that none can be held out: pass holdout=0, or more rows")
    return (SPLITS[int(mark)] for mark in held_out(count, holdout, preparation.seed))


def _corpus(store: Store, length: int | None, name: str) -> Corpus:
    longest = int(store.header["longest"])
    if length is not None and length != longest and (length < longest or store.tokenizer.end is None):
        end = " including the end-of-row token" if store.tokenizer.end is not None else ""
        raise ValueError(f"the rows of {name} have {longest} tokens{end}, but length is {length}: leave length out")
    return corpus_of(store, StoredRows, length or longest, pack=False)


def _plain(values: Any) -> Any:
    """Arrays and tensors as numpy arrays; lists as they are."""
    return values if values is None or isinstance(values, list | tuple) else np.asarray(values)


def _is_function(decode: object) -> bool:
    return callable(decode) and not isinstance(decode, Tokenizer)


def _tokenizer(decode: Any) -> Tokenizer | None:
    if decode is None or isinstance(decode, Tokenizer):
        return decode
    return None if _is_function(decode) else Symbols(tuple(decode))
