"""Text from a pipe or device, copied to a temporary file in the cache because it can be read only once.

Each copy has a numbered folder, `pipes/N` in the cache, and a lock that ends with its process. A folder whose lock is
free belongs to a dead process and is removed at the next start.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedIOBase, RawIOBase
from pathlib import Path

from ..system.progress import Progress
from .documents import ReadStatistics, decoded
from .text_files import ALL, TextFiles

try:
    import fcntl
except ImportError:  # Windows: a copy has a random name, and remains if its process is killed
    fcntl = None  # type: ignore[assignment]

LARGEST = 16.0  # GiB of text from a pipe, unless VARIABLE is set
SHARE = 2  # at most the free disk space divided by this: the tokens need space, too
VARIABLE = "HOPFLOW_PIPE_GIB"


@contextmanager
def copy_of_stream(
    stream: BufferedIOBase | RawIOBase, name: str, cache: Path, progress: Progress
) -> Iterator[TextFiles]:
    """A file with the text of a stream; a ValueError as soon as something is not text."""
    with _numbered_folder(cache / "pipes") as folder:
        copy = _Copy(stream, name, folder / "text.txt")
        with copy.file, progress.keep_updating(lambda: f"reading {name}: {copy.bytes / 1e6:.0f} MB"):
            for _ in decoded(copy, Path(name), ReadStatistics()):
                pass
        yield TextFiles(name, {ALL: (copy.path,)})


def remove_stale(cache: Path) -> None:
    """Remove the copies of processes that were killed."""
    for folder in (cache / "pipes").glob("[0-9]*"):
        # a shared cache may be read-only: its owner removes the copies
        with ExitStack() as held, suppress(OSError):
            if folder.is_dir() and _lock(folder, held):
                shutil.rmtree(folder, ignore_errors=True)


def limit(folder: Path) -> int:
    """The largest number of bytes that may be copied to this folder."""
    asked = os.environ.get(VARIABLE)
    try:
        most = float(asked) if asked else LARGEST
        if not most > 0:
            raise ValueError
        return int(min(most * 2**30, shutil.disk_usage(folder).free / SHARE))
    except (ValueError, OverflowError):
        raise ValueError(f"{VARIABLE} must be a number of GiB above 0, e.g. {VARIABLE}=64, got {asked!r}") from None


class _Copy(BufferedIOBase):
    """Reads from a stream and copies what was read to a file, up to the limit."""

    def __init__(self, stream: BufferedIOBase | RawIOBase, name: str, path: Path) -> None:
        self._stream, self._name, self.path = stream, name, path
        self._most = limit(path.parent)
        self.file = path.open("wb")
        self.bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = self._stream.read(-1 if size is None else size) or b""
        self.bytes += len(chunk)
        if self.bytes > self._most:
            raise ValueError(
                f"{self._name}: more than {self._most / 2**30:.3g} GiB were read from this pipe or device\n"
                f"write the text to a file and train on that, or raise the limit, e.g. {VARIABLE}={8 * LARGEST:g} "
                f"(never more than half of the free disk)"
            )
        try:
            self.file.write(chunk)
        except OSError as error:
            error.filename = str(self.path)  # a full disk does not name the file
            raise
        return chunk


@contextmanager
def _numbered_folder(home: Path) -> Iterator[Path]:
    """A new folder that no other process uses, removed afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            yield Path(folder)
        return
    with ExitStack() as held:
        number = 0
        while not _lock(home / str(number), held):
            number += 1
        folder = home / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, held: ExitStack) -> bool:
    """Lock a folder until `held` is closed; False if another process or thread has it."""
    if fcntl is None:
        return False
    lock = held.enter_context(folder.with_name(f".{folder.name}.lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
