"""Reading: files -> documents, in pieces, so that memory does not grow with the text."""

import codecs
import errno
import gzip
import json
import lzma
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

from .tokenizers import END

CHUNK = 1 << 20  # bytes read at once, and characters in a piece
LONGEST_LINE = 1 << 28  # bytes of one JSON line, which has to be read as a whole
TEXT = (".txt", ".text", ".raw", ".tokens")
JSON_LINES = (".jsonl", ".ndjson")
PACKED = (".gz", ".xz")


class Piece(NamedTuple):
    """Part of a document; `last` closes it, `held` tells that the document is held out."""

    text: str
    last: bool
    held: bool = False


@dataclass
class Tally:
    """What was met on the way, to be reported."""

    bytes: int = 0
    characters: int = 0
    documents: int = 0
    empty_documents: int = 0
    crlf: int = 0
    bom: int = 0
    forced_cuts: int = 0  # words too long to be tokenised whole: the only cuts that may change an id

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def is_readable(path: Path) -> bool:
    """Whether a folder's file is taken; a file that is named outright may have any suffix and is read as text."""
    return _suffix(path) in TEXT + JSON_LINES and not path.name.startswith(".")


def kind(path: Path) -> str:
    """How a file is read: the same bytes are another text as JSON lines."""
    return "jsonl" if _suffix(path) in JSON_LINES else "text"


def read(paths: Iterable[Path], tally: Tally) -> Iterator[Piece]:
    """The documents of these files, one after the other. A file without separators is one document."""
    for path in paths:
        reader = _read_json_lines if kind(path) == "jsonl" else _read_text
        try:
            with _open(path) as file:
                for piece in _without_empty(reader(file, path, tally), tally):
                    tally.characters += len(piece.text)
                    tally.documents += piece.last
                    yield piece
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged or cut off, it cannot be unpacked: {error}") from None


def _without_empty(pieces: Iterator[Piece], tally: Tally) -> Iterator[Piece]:
    """Leave out documents of nothing but blanks; those at a document's start wait until a word is seen."""
    blanks, inside = "", False
    for piece in pieces:
        text = blanks + piece.text
        if inside or text.strip() or len(text) > CHUNK:
            yield Piece(text, piece.last)
            blanks, inside = "", not piece.last
        elif piece.last:
            tally.empty_documents += 1
            blanks = ""
        else:
            blanks = text


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in PACKED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _open(path: Path) -> BufferedIOBase:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder, a file is needed", str(path))
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(path)
    if suffix == ".xz":
        return lzma.LZMAFile(path)
    return path.open("rb")


def _read_text(file: BufferedIOBase, path: Path, tally: Tally) -> Iterator[Piece]:
    """Split at the end-of-text mark; the line break on each side of it belongs to the mark."""
    hold = len(END) + 1  # what may still turn out to be a mark with its line break
    text, after_mark, nothing_yet = "", False, False
    for more in decoded(file, path, tally):
        *closed, text = (text + more).split(END)
        for part in closed:
            yield Piece((part.removeprefix("\n") if after_mark else part).removesuffix("\n"), True)
            after_mark = nothing_yet = True
        if after_mark and text:
            text, after_mark = text.removeprefix("\n"), False
        if len(text) > hold:
            yield Piece(text[:-hold], False)
            text, nothing_yet = text[-hold:], False
    if text or not nothing_yet:  # a mark at the very end closes the last document and opens none
        yield Piece(text, True)


def decoded(file: BufferedIOBase, path: Path, tally: Tally) -> Iterator[str]:
    """UTF-8 -> text with plain line breaks; a byte order mark and carriage returns are dropped and counted."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = file.read(4)
    seen, held = 0, ""
    while True:
        chunk = _without_bom(start, path, tally) + file.read(CHUNK)
        start = b""
        before = seen - len(decoder.getstate()[0])
        seen += len(chunk)
        tally.bytes += len(chunk)
        try:
            text = held + decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, before + error.start, error.object[error.start]) from None
        _refuse_nul(text, f"{path}")
        held = "\r" if text.endswith("\r") and chunk else ""  # its line feed may come with the next chunk
        text = text.removesuffix(held)
        if "\r\n" in text:
            tally.crlf += text.count("\r\n")
            text = text.replace("\r\n", "\n")
        if text:
            yield text
        if not chunk:
            return


def _without_bom(chunk: bytes, path: Path, tally: Tally) -> bytes:
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{path} is UTF-16, UTF-8 is needed\nconvert it: iconv -f UTF-16 -t UTF-8 {path.name}")
    if chunk.startswith(codecs.BOM_UTF8):
        tally.bom += 1
        return chunk[len(codecs.BOM_UTF8) :]
    return chunk


def _read_json_lines(file: BufferedIOBase, path: Path, tally: Tally) -> Iterator[Piece]:
    number = 0
    for number, line in enumerate(_lines(file, path), 1):
        tally.bytes += len(line)
        content = _without_bom(line, path, tally) if number == 1 else line
        if not content.strip():
            continue
        text = _text_of(content, f"{path}, line {number}")
        for start in range(0, max(len(text), 1), CHUNK):
            yield Piece(text[start : start + CHUNK], start + CHUNK >= len(text))


def _lines(file: BufferedIOBase, path: Path) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path}: one JSON line is longer than {LONGEST_LINE >> 20} MB; give the text as .txt")
        yield line


def _text_of(line: bytes, where: str) -> str:
    try:
        content = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _not_utf8(where, error.start, line[error.start]) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{where}: not JSON ({error})\neach line is an object such as {{"text": "…"}}') from None
    if not isinstance(content, dict) or "text" not in content:
        found = f"an object with the keys {', '.join(map(repr, content))}" if isinstance(content, dict) else "no object"
        raise ValueError(f'{where}: the key "text" is missing; found {found[:200]}')
    text = content["text"]
    if not isinstance(text, str):
        raise ValueError(f'{where}: "text" is to be a string; found {type(text).__name__}')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: half of a surrogate pair (\\ud800 … \\udfff), which is no character")
    _refuse_nul(text, where)
    return text


def _not_utf8(where: Path | str, position: int, byte: int) -> ValueError:
    return ValueError(
        f"{where}: not UTF-8: byte {position} is 0x{byte:02x}\n"
        "convert it, e.g. iconv -f LATIN1 -t UTF-8, or drop such bytes: iconv -c -f UTF-8 -t UTF-8"
    )


def _refuse_nul(text: str, where: str) -> None:
    if "\0" in text:
        raise ValueError(f"{where}: holds NUL characters: it is binary or UTF-16\nif it is text: tr -d '\\000' < file")
