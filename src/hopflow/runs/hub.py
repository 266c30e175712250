"""Networks on the Hugging Face hub: `hub:user/name`, downloaded once into the hub's own cache.

Only config.json, the weights that it names and eval.json are downloaded; a repository with pickles or code is refused.
The commit of the first use is recorded and used again, and a commit that is in the cache needs no connection.
"""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..system.progress import Progress
from ..system.safe_text import harmless
from . import config_file
from .weights import DamagedFile, verify

PREFIX = "hub:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(@\w[\w./-]{0,199})?", re.ASCII)
SECRET = re.compile(r"(Bearer |hf_|\?)\S+")
"""What the transport may put into a message: a token in a header, or the signature in a URL."""
PICKLES = (".bin", ".ckpt", ".dill", ".joblib", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth")
CODE = (".dll", ".dylib", ".exe", ".ipynb", ".py", ".pyc", ".sh", ".so", ".whl")
EVALUATION = "eval.json"
LARGEST_EVALUATION = 1 << 28
"""Bytes."""
TIMEOUT = 20.0
"""Seconds to wait for an answer about a repository."""
INSTALL = "pip install 'hopflow[hub]'"


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit of a repository, in the hub's cache."""

    name: str
    commit: str
    folder: Path

    def __str__(self) -> str:
        return f"{PREFIX}{self.name}@{self.commit}"


def prefixed(text: str) -> str | None:
    """The name in `hub:user/name` or `hub:user/name@REVISION`; None for other text and for an existing path."""
    if not text.startswith(PREFIX) or Path(text).exists():
        return None
    name = text.removeprefix(PREFIX)
    if not is_name(name):
        raise ValueError(f"{text} is not a network of the hub: type hub:user/name, or hub:user/name@REVISION")
    return name


def is_name(text: str) -> bool:
    """Whether a text has the form `user/name` or `user/name@REVISION`, in characters that the hub allows."""
    return NAME.fullmatch(text) is not None and not any(part in text for part in ("..", "--"))


def named(text: str) -> str | None:
    """The name in `hub:user/name` or `user/name`; None if the text is the path of a folder.

    `user/name` is a path if it exists here, or if there is a folder `user`.
    """
    if text.startswith(PREFIX) or not is_name(text):
        return prefixed(text)
    return None if Path(text).exists() or Path(text).parent.exists() else text


def download(name: str, *, offline: bool = False) -> Snapshot:
    """The files of `user/name` or `user/name@REVISION`, from the cache if they are there, otherwise from the hub."""
    from ..data.named_corpora import cache_folder
    from ..data.revisions import COMMIT, PinnedRevision

    client = hub_client()
    pin = PinnedRevision("model", name, cache_folder())
    offline = offline or client.constants.HF_HUB_OFFLINE
    found = None
    if offline or COMMIT.fullmatch(pin.wanted or ""):
        found = _cached(pin.name, pin.wanted)
    if found is None:
        if offline:
            raise OSError(f"{PREFIX}{name} is not in the hub's cache, and nothing is downloaded offline")
        with hub_errors(name):
            found = _fetch(pin.name, pin.wanted)
    files = [found.folder / config_file.CONFIG, *_weights(found.folder)]
    pin.record(found.commit, files, Progress(None))
    return found


def check_files(name: str, files: Collection[str]) -> None:
    """Refuse a repository that contains files which can run code."""
    for kind, suffixes in (("pickles", PICKLES), ("code", CODE)):
        found = sorted(file for file in files if PurePosixPath(file).suffix.lower() in suffixes)
        if found:
            shown = ", ".join(harmless(file)[:80] for file in found[:3]) + ("…" if len(found) > 3 else "")
            raise ValueError(
                f"{PREFIX}{name} contains {kind}: {shown}. hopflow loads safetensors and JSON only, and nothing was "
                f"transferred; remove these files from the repository"
            )


def _weights(folder: Path) -> list[Path]:
    return [folder / file for file in config_file.weight_files(config_file.read(folder))]


def _cached(name: str, revision: str | None) -> Snapshot | None:
    """The snapshot in the hub's cache; None if a file is missing."""
    file = hub_client().try_to_load_from_cache(name, config_file.CONFIG, revision=revision)
    if not isinstance(file, str):
        return None
    folder = Path(file).parent
    try:
        complete = all(weights.is_file() for weights in _weights(folder))
    except DamagedFile as error:
        raise DamagedFile(f"{error}\ndelete this file: it will be downloaded again") from None
    return Snapshot(name, folder.name, folder) if complete else None


def _fetch(name: str, revision: str | None) -> Snapshot:
    """Download the files of a revision; a file that is not what the config says is removed again."""
    api = hub_client().HfApi()
    info = api.model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT)
    files = {file.rfilename: file for file in info.siblings or []}
    check_files(name, files)
    _check_size(name, files, config_file.CONFIG, config_file.LARGEST_CONFIG)
    folder = Path(api.hf_hub_download(name, config_file.CONFIG, revision=revision)).parent
    if folder.name != info.sha:
        raise OSError(f"{PREFIX}{name} was changed during the download: try again")
    with _removed_if_damaged(folder / config_file.CONFIG):
        config = config_file.read(folder)
    for file in config_file.weight_files(config):
        sha256 = config["sha256"][file]
        _check_listed(name, files, file, sha256)
        api.hf_hub_download(name, file, revision=info.sha)
        with _removed_if_damaged(folder / file):
            verify(folder / file, sha256)
    if EVALUATION in files:
        _check_size(name, files, EVALUATION, LARGEST_EVALUATION)
        api.hf_hub_download(name, EVALUATION, revision=info.sha)
    return Snapshot(name, folder.name, folder)


def _check_size(name: str, files: dict[str, Any], file: str, most: int) -> None:
    if file not in files:
        raise ValueError(f"{PREFIX}{name} is not a network that hopflow has saved: it has no {file}")
    if (files[file].size or 0) > most:
        raise DamagedFile(f"{file} of {PREFIX}{name} has {files[file].size:,} bytes, at most {most:,} are allowed")


def _check_listed(name: str, files: dict[str, Any], file: str, sha256: str) -> None:
    """Compare the hub's hash with that in the config before the weights are downloaded."""
    if file not in files:
        raise DamagedFile(f"{PREFIX}{name} has no {file}, which its config.json names")
    if (stored := files[file].lfs) is not None and stored.sha256 != sha256:
        raise DamagedFile(
            f"{file} of {PREFIX}{name} belongs to another save: its sha256 is {str(stored.sha256)[:12]}…, config.json "
            f"states {str(sha256)[:12]}…"
        )


@contextmanager
def _removed_if_damaged(file: Path) -> Iterator[None]:
    """Remove a file from the cache if it turns out to be damaged, so that the next attempt downloads it again."""
    try:
        yield
    except DamagedFile:
        content = file.resolve()
        file.unlink(missing_ok=True)
        content.unlink(missing_ok=True)
        raise


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub's client into one message each; tokens and answers of servers are not part of it."""
    client = hub_client()
    errors = client.errors
    shown, (bare, _, revision) = f"{PREFIX}{name}", name.partition("@")
    login = "log in with `hf auth login` if it is private"
    try:
        yield
    except errors.GatedRepoError:
        raise ValueError(f"{shown} is gated: accept its conditions on its page, then run `hf auth login`") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{PREFIX}{bare} has no revision {revision}: type a branch, a tag or a commit") from None
    except errors.RepositoryNotFoundError:
        raise ValueError(f"there is no network {shown} on the hub: check the name, and {login}") from None
    except errors.RemoteEntryNotFoundError:
        raise OSError(f"a file of {shown} is missing on the hub: try again") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            why = "your token is not accepted, or does not allow this"
            raise ValueError(f"the hub refuses access to {shown}: {why}; run `hf auth login`") from None
        raise OSError(f"the hub answered {status} to a request for {shown}: try again later") from None
    except (ValueError, MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:  # the hub's client passes on any error of its transport
        if isinstance(error, OSError) and (error.errno is not None or PREFIX in str(error)):
            raise
        text = SECRET.sub(r"\1…", str(error).partition("\n")[0])
        why = harmless(text[:160]) or type(error).__name__
        raise OSError(
            f"{shown} could not be transferred: {why}\nnetworks that were used before are in the cache"
        ) from None


def hub_client() -> Any:
    """The package huggingface_hub."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise ModuleNotFoundError(f"the hub needs 'huggingface_hub': {INSTALL}", name="huggingface_hub") from error
    return huggingface_hub
