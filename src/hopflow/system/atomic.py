"""Atomic writes and locks: after a crash, a file is its old version or its complete new version.

Writers may be threads, processes, or containers that share a folder. A temporary file or folder has a random name and
is locked by its writer until it is renamed. A temporary file that can be locked belongs to a dead writer; on a file
system without locks, temporary files of others are kept.
"""

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".tmp"
READER_SECONDS = 10.0
"""How long a write to a named pipe waits for a reader."""
_UNLINKED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # follow no link, wait for no pipe
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNLINKED | getattr(os, "O_BINARY", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)


def write(path: Path, content: bytes, durable: bool = True) -> None:
    """Write a temporary file, fsync it, rename it to `path`; a failure leaves the old file and no temporary one.

    `durable=False` leaves out the fsyncs, for a cache whose reader checks it: a power cut may empty the file.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        _write_special(path, content)  # a pipe or a device cannot be renamed over
        return
    with replacing(path, durable) as file:
        file.write(content)


def _write_special(path: Path, content: bytes) -> None:
    """Write to a pipe or device; an OSError if nobody has opened a named pipe for reading after some seconds."""
    end = time.monotonic() + READER_SECONDS
    while True:
        try:  # without O_NONBLOCK, opening a pipe waits for a reader
            handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
            break
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > end:
                reason = "no program reads this pipe" if error.errno == errno.ENXIO else error.strerror
                raise OSError(error.errno, reason, str(path)) from None
        time.sleep(0.05)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


@contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """A file to write that replaces `path` at the end of the `with` block, unless the block fails."""
    path = path.resolve()  # follow a link rather than replace it
    temporary, file = _create(path)
    try:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows cannot rename an open file
        temporary.replace(path)  # before closing it, which releases the lock
        file.close()
    except BaseException as error:
        with suppress(OSError):  # the disk may be full
            file.close()
        temporary.unlink(missing_ok=True)
        # a full disk does not name the file; the temporary name means nothing to the user
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None
        raise
    if durable:
        sync_folder(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder next to `path`, to be filled and renamed to it; removed at the end unless it was renamed."""
    folder = temporary_name(path)
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY | _FOLDER) if _FOLDER else None
    try:
        if handle is not None:
            lock(handle)
        yield folder
    finally:
        remove(folder)
        if handle is not None:
            os.close(handle)


def temporary_name(path: Path) -> Path:
    """A unique hidden name next to `path`; process ids are not unique across containers."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{SUFFIX}")


def lock(handle: int) -> bool | None:
    """Lock an open file until it is closed: True on success, False if another process has it, None without locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def open_lock(file: Path) -> int:
    """A handle of a lock file, which is created if it is missing."""
    return os.open(file, os.O_RDWR | os.O_CREAT | _UNLINKED, 0o644)


@contextmanager
def locked(file: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Hold the lock of a file during the `with` block; yields False if the file system has no locks.

    `waiting` is called repeatedly while another process holds it. The system frees the lock of a killed process.
    """
    if fcntl is None:
        yield False
        return
    handle = open_lock(file)
    try:
        while (ours := lock(handle)) is False:
            waiting()
            time.sleep(0.05)
        yield bool(ours)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path, pattern: str = f".*{SUFFIX}") -> None:
    """Remove temporary files and folders of dead writers. Call it while holding the lock of `folder`.

    A folder that cannot be locked (network file systems) is removed, too: the caller's lock excludes other writers.
    """
    for left in folder.glob(pattern):
        try:
            is_folder = stat.S_ISDIR(os.lstat(left).st_mode)
            handle = os.open(left, _UNLINKED | (_FOLDER | os.O_RDONLY if is_folder else os.O_RDWR))
        except OSError:  # a link, not writable, or renamed meanwhile
            continue
        try:
            ours = lock(handle)
            if (ours or (is_folder and ours is None)) and os.path.samestat(os.fstat(handle), os.lstat(left)):
                remove(left)
        except OSError:  # renamed meanwhile
            pass
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Remove a folder with its content, a file or a link; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Flush a folder, so that a rename in it is durable; does nothing on Windows."""
    if not _FOLDER:
        return
    handle = os.open(folder, os.O_RDONLY | _FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(path: Path) -> tuple[Path, IO[bytes]]:
    """A new locked temporary file; if another process removes it before it is locked, another one is created."""
    while True:
        temporary = temporary_name(path)
        try:
            file = os.fdopen(os.open(temporary, _NEW, 0o666), "wb")
        except OSError as error:  # the temporary name means nothing to the user
            raise OSError(error.errno, error.strerror, str(path)) from None
        if lock(file.fileno()) is not False and os.path.lexists(temporary):
            return temporary, file
        file.close()
        temporary.unlink(missing_ok=True)
