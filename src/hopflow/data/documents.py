"""Reading files as documents, in chunks, so that memory does not grow with the text."""

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

END = "<|endoftext|>"
"""The line that separates documents in a text file, and the end-of-text token."""
CHUNK = 1 << 20  # bytes read at once, and characters of a chunk
LONGEST_LINE = 1 << 28  # bytes of one JSON line, which is read at once
TEXT = (".txt", ".text", ".raw", ".tokens")
JSON_LINES = (".jsonl", ".ndjson")
PACKED = (".gz", ".xz")


class DocumentChunk(NamedTuple):
    """A part of a document; `last` marks its last part, `held` a document that is held out."""

    text: str
    last: bool
    held: bool = False


@dataclass
class ReadStatistics:
    """Counts of what was read, for reports."""

    bytes: int = 0
    characters: int = 0
    documents: int = 0
    empty_documents: int = 0
    crlf: int = 0
    bom: int = 0
    forced_cuts: int = 0  # cuts inside a very long word, the only ones that may change an id

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def is_readable(path: Path) -> bool:
    """Whether a file in a folder is read; a file that is named explicitly may have any suffix and is read as text."""
    return _suffix(path) in TEXT + JSON_LINES and not path.name.startswith(".")


def kind(path: Path) -> str:
    """How a file is read: "jsonl" or "text"."""
    return "jsonl" if _suffix(path) in JSON_LINES else "text"


def read(paths: Iterable[Path], statistics: ReadStatistics) -> Iterator[DocumentChunk]:
    """The documents of these files. A text file without separators is one document."""
    for path in paths:
        reader = _read_json_lines if kind(path) == "jsonl" else _read_text
        try:
            with _open(path) as file:
                for chunk in _without_empty(reader(file, path, statistics), statistics):
                    statistics.characters += len(chunk.text)
                    statistics.documents += chunk.last
                    yield chunk
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged or incomplete, it cannot be unpacked: {error}") from None


def _without_empty(chunks: Iterator[DocumentChunk], statistics: ReadStatistics) -> Iterator[DocumentChunk]:
    """Skip blank documents; blanks at the start of a document are held back until other text follows."""
    blanks, inside = "", False
    for chunk in chunks:
        text = blanks + chunk.text
        if inside or text.strip() or len(text) > CHUNK:
            yield DocumentChunk(text, chunk.last)
            blanks, inside = "", not chunk.last
        elif chunk.last:
            statistics.empty_documents += 1
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
        raise IsADirectoryError(errno.EISDIR, "this is a folder, but must be a file", str(path))
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(path)
    if suffix == ".xz":
        return lzma.LZMAFile(path)
    return path.open("rb")


def _read_text(file: BufferedIOBase, path: Path, statistics: ReadStatistics) -> Iterator[DocumentChunk]:
    """Documents separated by the end-of-text mark; a line break on each side belongs to the mark."""
    hold = len(END) + 1  # characters that may be the start of a mark
    text, after_mark, nothing_yet = "", False, False
    for more in decoded(file, path, statistics):
        *closed, text = (text + more).split(END)
        for part in closed:
            yield DocumentChunk((part.removeprefix("\n") if after_mark else part).removesuffix("\n"), True)
            after_mark = nothing_yet = True
        if after_mark and text:
            text, after_mark = text.removeprefix("\n"), False
        if len(text) > hold:
            yield DocumentChunk(text[:-hold], False)
            text, nothing_yet = text[-hold:], False
    if text or not nothing_yet:  # a mark at the end of a file opens no document
        yield DocumentChunk(text, True)


def decoded(file: BufferedIOBase, path: Path, statistics: ReadStatistics) -> Iterator[str]:
    """UTF-8 as text with \\n line breaks; a byte order mark and carriage returns are removed and counted."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    start = file.read(4)
    seen, held = 0, ""
    while True:
        chunk = _without_bom(start, path, statistics) + file.read(CHUNK)
        start = b""
        before = seen - len(decoder.getstate()[0])
        seen += len(chunk)
        statistics.bytes += len(chunk)
        try:
            text = held + decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, before + error.start, error.object[error.start]) from None
        _refuse_nul(text, f"{path}")
        held = "\r" if text.endswith("\r") and chunk else ""  # its line feed may come with the next chunk
        text = text.removesuffix(held)
        if "\r\n" in text:
            statistics.crlf += text.count("\r\n")
            text = text.replace("\r\n", "\n")
        if text:
            yield text
        if not chunk:
            return


def _without_bom(chunk: bytes, path: Path, statistics: ReadStatistics) -> bytes:
    if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError(f"{path} is UTF-16, but must be UTF-8\nconvert it: iconv -f UTF-16 -t UTF-8 {path.name}")
    if chunk.startswith(codecs.BOM_UTF8):
        statistics.bom += 1
        return chunk[len(codecs.BOM_UTF8) :]
    return chunk


def _read_json_lines(file: BufferedIOBase, path: Path, statistics: ReadStatistics) -> Iterator[DocumentChunk]:
    number = 0
    for number, line in enumerate(_lines(file, path), 1):
        statistics.bytes += len(line)
        content = _without_bom(line, path, statistics) if number == 1 else line
        if not content.strip():
            continue
        text = _text_of(content, f"{path}, line {number}")
        for start in range(0, max(len(text), 1), CHUNK):
            yield DocumentChunk(text[start : start + CHUNK], start + CHUNK >= len(text))


def _lines(file: BufferedIOBase, path: Path) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{path}: one JSON line is longer than {LONGEST_LINE >> 20} MB; use a .txt file instead")
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
        raise ValueError(f'{where}: "text" must be a string, found {type(text).__name__}')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: half of a surrogate pair (\\ud800 … \\udfff), which is not a character")
    _refuse_nul(text, where)
    return text


def _not_utf8(where: Path | str, position: int, byte: int) -> ValueError:
    return ValueError(
        f"{where}: not UTF-8: byte {position} is 0x{byte:02x}\n"
        "convert it, e.g. iconv -f LATIN1 -t UTF-8, or drop such bytes: iconv -c -f UTF-8 -t UTF-8"
    )


def _refuse_nul(text: str, where: str) -> None:
    if "\0" in text:
        raise ValueError(
            f"{where}: contains NUL characters: it is binary or UTF-16\nif it is text: tr -d '\\000' < file"
        )
