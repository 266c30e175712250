"""Files of rows: arrays (.npy, .npz), sequences (.fasta, .smi) and tables (.csv), read without running any code."""

import csv
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FASTA, SMILES, ARRAYS = (".fasta", ".fa", ".fna", ".faa"), (".smi",), (".npy", ".npz")
SUFFIXES = (*ARRAYS, *FASTA, *SMILES, ".csv")
"""Files that are read as rows; all but arrays may also end in .gz."""
TEXT_COLUMNS = ("sequence", "smiles", "text")
"""Columns of a CSV file that contain a sequence."""
LABEL = "label"
INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass(frozen=True, eq=False)
class FileRows:
    """The content of a file: sequences as texts or as arrays of ids, and what the file says about them."""

    sequences: Any
    """Texts, an array of shape (rows, positions), or rows of different lengths."""
    labels: NDArray[Any] | Sequence[Any] | None = None
    keep: NDArray[Any] | None = None
    vocab: int | None = None

    def __post_init__(self) -> None:
        if self.sequences is None or getattr(self.sequences, "ndim", 1) == 0:
            raise ValueError("rows must be an array of shape (rows, positions) or a list of rows, got a single value")
        if self.is_text:
            for number, row in enumerate(self.sequences):
                if not isinstance(row, str) or not row:
                    raise ValueError(f"row {number} must be a text of one or more characters, got {row!r}")

    @property
    def is_text(self) -> bool:
        return len(self.sequences) > 0 and isinstance(self.sequences[0], str)


def suffix_of(path: Path) -> str:
    """The suffix that says how a file is read, in lower case; .gz is left out."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] == ".gz" and suffixes[-2] not in ARRAYS
    return suffixes[-2] if packed else suffixes[-1] if suffixes else ""


def is_row_file(source: object) -> bool:
    """Whether a source is a file of rows, by its name."""
    return isinstance(source, str | Path) and not str(source).startswith("hf:") and suffix_of(Path(source)) in SUFFIXES


def read_rows(path: Path) -> FileRows:
    """Read a file of rows; a ValueError says what is wrong with it."""
    suffix = suffix_of(path)
    if suffix in ARRAYS:
        return _read_arrays(path)
    reader = _read_fasta if suffix in FASTA else _read_smiles if suffix in SMILES else _read_csv
    return reader(path)


def _read_arrays(path: Path) -> FileRows:
    try:
        found: Any = np.load(path, mmap_mode="r" if suffix_of(path) == ".npy" else None, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return FileRows(found)
        with found:
            arrays = {name: found[name] for name in found.files}
    except (ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error, SyntaxError, NotImplementedError) as error:
        reason = "it contains Python objects" if "allow_pickle" in str(error) or "Object" in str(error) else str(error)
        raise ValueError(
            f"{path} is not an array that can be read: {reason}\n"
            f"save integers of shape (rows, positions) with numpy.save"
        ) from None
    known = {"tokens", "labels", "keep", "vocab"}
    if len(arrays) == 1 and "tokens" not in arrays:
        return FileRows(next(iter(arrays.values())))
    if "tokens" not in arrays or (unknown := arrays.keys() - known):
        wrong = "tokens is missing" if "tokens" not in arrays else f"unknown: {', '.join(sorted(unknown))}"
        raise ValueError(f"{path} must contain tokens, and may contain labels, keep and vocab; {wrong}")
    vocab = arrays.get("vocab")
    if vocab is not None and (vocab.ndim or vocab.dtype.kind not in "iu"):
        raise ValueError(f"{path}: vocab must be one integer, got {vocab.dtype} of shape {vocab.shape}")
    return FileRows(arrays["tokens"], arrays.get("labels"), arrays.get("keep"), None if vocab is None else int(vocab))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, without the line breaks."""
    packed = path.suffix.lower() == ".gz"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or incomplete, it cannot be unpacked: {error}") from None


def _read_fasta(path: Path) -> FileRows:
    """Records `>name … label=LABEL`; the label is optional, and letters become upper case."""
    names: list[tuple[int, str]] = []
    parts: list[list[str]] = []
    for number, line in _lines(path):
        if line.startswith(">"):
            names.append((number, line[1:]))
            parts.append([])
        elif line.strip() and not line.startswith(";"):
            if not parts:
                raise ValueError(f"{path}, line {number}: a FASTA file begins with a line `>name`, got {line[:20]!r}")
            parts[-1].append("".join(line.split()).upper())
    sequences = ["".join(lines).removesuffix("*") for lines in parts]  # the mark of the end of a protein
    for (number, name), sequence in zip(names, sequences, strict=True):
        if not sequence:
            raise ValueError(f"{path}, line {number}: the record {name[:20]!r} has no sequence")
    if not sequences:
        raise ValueError(f"{path} has no sequence: a FASTA file has lines `>name`, each followed by a sequence")
    labels = [_label_in(name) for _, name in names]
    return FileRows(sequences, _all_or_none(path, labels, [number for number, _ in names]))


def _label_in(name: str) -> str | None:
    """LABEL of `label=LABEL` in the description of a record."""
    return next((word.removeprefix("label=") for word in name.split() if word.startswith("label=")), None)


def _read_smiles(path: Path) -> FileRows:
    """One SMILES string per line; `label=LABEL` may follow it, a name is ignored."""
    lines = [(number, line.split()) for number, line in _lines(path) if line.strip() and not line.startswith("#")]
    if not lines:
        raise ValueError(f"{path} has no sequence: a .smi file has one SMILES string per line")
    labels = [_label_in(" ".join(words[1:])) for _, words in lines]
    return FileRows([words[0] for _, words in lines], _all_or_none(path, labels, [number for number, _ in lines]))


def _all_or_none(path: Path, labels: list[str | None], lines: list[int]) -> list[str] | None:
    """The labels of all sequences, or None if no sequence has one."""
    found = [label for label in labels if label]
    if len(found) == len(labels):
        return found
    if any(label is not None for label in labels):
        line = next(line for line, label in zip(lines, labels, strict=True) if not label)
        raise ValueError(f"{path}, line {line}: this sequence has no label, and others have one")
    return None


def _read_csv(path: Path) -> FileRows:
    """A header, then one sequence per line: a column `sequence`, or one column of integers per position."""
    try:
        lines = list(csv.reader((f"{line}\n" for _, line in _lines(path)), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from None
    header, table = ([name.strip().lower() for name in lines[0]] if lines else []), [row for row in lines[1:] if row]
    if not table:
        raise ValueError(f"{path} has no rows: a CSV file has a line of column names, then one line per sequence")
    for number, row in enumerate(table, 2):
        if len(row) != len(header):
            raise ValueError(f"{path}, row {number}: it has {len(row)} columns, the first line has {len(header)}")
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"{path}: two columns have the name {twice[0]!r}")
    at = {name: place for place, name in enumerate(header)}
    labels = [row[at[LABEL]].strip() for row in table] if LABEL in at else None
    if labels is not None and (empty := [n for n, label in enumerate(labels, 2) if label.lower() in ("", "nan")]):
        raise ValueError(f"{path}, row {empty[0]}: the label is missing")
    text = next((name for name in TEXT_COLUMNS if name in at), None)
    if text is not None:
        sequences = [row[at[text]].strip() for row in table]
        if "" in sequences:
            raise ValueError(f"{path}, row {sequences.index('') + 2}: the column {text} is empty")
        return FileRows(sequences, labels)
    columns = {name: place for name, place in at.items() if name != LABEL}
    if "" in columns:
        raise ValueError(f"{path}: column {columns[''] + 1} has no name; save the table without an index of its rows")
    counted = ([str(start + i) for i in range(len(columns))] for start in (0, 1))  # pandas names columns so
    if all(INTEGER.fullmatch(name) for name in columns) and list(columns) not in counted:
        raise ValueError(f"{path}: the first line is {', '.join(lines[0][:5])}; add a line of column names above it")
    for number, row in enumerate(table, 2):
        for name, place in columns.items():
            if not INTEGER.fullmatch(row[place].strip()):
                raise ValueError(
                    f"{path}, row {number}, column {name}: {row[place][:20]!r} is not an integer; name the column of "
                    f"the sequences {TEXT_COLUMNS[0]}, or use one column of integers per position"
                )
    return FileRows(np.array([[int(row[place]) for place in columns.values()] for row in table], np.int64), labels)
