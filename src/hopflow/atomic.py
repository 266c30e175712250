"""Atomic writes and locks: a file is its old version or its complete new version, whenever the power goes.

Writers may be threads, processes, or containers that share a folder. A temporary file or folder has a random name, is
created and never opened, and is locked by its writer until it is renamed. Whoever can lock a temporary file knows that
its writer is dead; where a file system has no locks, temporary files of others are kept.
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
_UNLINKED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # no link is followed, no pipe waited for
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _UNLINKED | getattr(os, "O_BINARY", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)


def write(path: Path, content: bytes) -> None:
    """Write a temporary file, fsync it, rename it to `path`; a failure leaves the old file and no temporary one."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)  # a pipe or a device cannot be renamed over
        return
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, which becomes `path` at the end of the `with` block, unless that fails."""
    path = path.resolve()  # follow a link rather than replace it
    temporary, file = _create(path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if fcntl is None:
            file.close()  # Windows renames no open file
        temporary.replace(path)  # before it is closed, which ends the lock
        file.close()
    except BaseException as error:
        with suppress(OSError):  # of a full disk, once more
            file.close()
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a disk that is full does not say which file
            error.filename = str(path)
        raise
    sync_folder(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`, to be filled and renamed to it; without the rename it is removed at the end."""
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
    """A hidden name beside `path` that nobody else uses; a process id may be used in two containers at once."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{SUFFIX}")


def lock(handle: int) -> bool | None:
    """Lock an open file until it is closed, without waiting: False if another has it, None where locks do not work."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES) else None
    return True


def open_lock(file: Path) -> int:
    """A handle of a file that is locked in place of its folder; it is made if it is missing."""
    return os.open(file, os.O_RDWR | os.O_CREAT | _UNLINKED, 0o644)


@contextmanager
def locked(file: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Hold the lock of a file, one thread or process after another; False is given where locks do not work.

    `waiting` is called again and again while another holds it. The system frees the lock of a killed process.
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
    """Remove temporary files and folders whose writers died. Call it while holding the lock of `folder`.

    A folder is also removed where it cannot be locked (network file systems): the caller's lock protects its writer.
    """
    for left in folder.glob(pattern):
        try:
            is_folder = stat.S_ISDIR(os.lstat(left).st_mode)
            handle = os.open(left, _UNLINKED | (_FOLDER | os.O_RDONLY if is_folder else os.O_RDWR))
        except OSError:  # a link, not ours to write, or renamed by now
            continue
        try:
            ours = lock(handle)
            if (ours or (is_folder and ours is None)) and os.path.samestat(os.fstat(handle), os.lstat(left)):
                remove(left)
        except OSError:  # renamed by now
            pass
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Remove a folder with its content, a file or a link, as far as it can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Make the rename itself durable; systems that cannot open a folder (Windows) keep their own order."""
    if not _FOLDER:
        return
    handle = os.open(folder, os.O_RDONLY | _FOLDER)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _create(path: Path) -> tuple[Path, IO[bytes]]:
    """A new temporary file, locked; one that is removed as a leftover before it is locked is made again."""
    while True:
        temporary = temporary_name(path)
        file = os.fdopen(os.open(temporary, _NEW, 0o666), "wb")
        if lock(file.fileno()) is not False and os.path.lexists(temporary):
            return temporary, file
        file.close()
        temporary.unlink(missing_ok=True)
