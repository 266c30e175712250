"""Checkpoints: a folder per saved step, complete or absent, with a sha256 of every file.

A folder is written under a temporary name, every file is flushed to the disk, and then the folder is renamed. Tensors
are stored as safetensors, everything else as JSON; no pickle is ever read. `state.json` is written last and contains
the sha256 of every file and of itself, so that any changed bit is detected.
"""

import errno
import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..system import atomic, bounded_json, regular_file
from .pretrained import step_folders, step_of
from .weights import DamagedFile, name_list, pack

FORMAT, VERSION = "hopflow checkpoint", 1
STATE = "state.json"
EARLIER = (".saving-*", ".discarded-*")
"""Temporary folders of earlier versions."""
ASIDE = "damaged-"
LARGEST_STATE = 1 << 24
"""Bytes of state.json, which usually has a few thousand."""
Read = TypeVar("Read")

FACTS: dict[str, Callable[[Any], bool]] = {
    "seconds": lambda value: type(value) in (int, float) and 0 <= value < 1e12,
    "threads": lambda value: type(value) is int and value >= 1,
    "recipe_hash": lambda value: isinstance(value, str),
    "torch": lambda value: isinstance(value, str),
}
"""The entries of `facts` that a run uses, and whether a value is valid."""


@dataclass(frozen=True)
class Checkpoint:
    """What resuming a run needs: named groups of tensors, and facts such as the seconds so far."""

    step: int
    groups: Mapping[str, Mapping[str, Tensor]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    config: Callable[[str], str] | None = None
    """From the sha256 of the group `model`, the text of config.json, which makes the folder a saved network, too."""


def save(home: Path, checkpoint: Checkpoint) -> Path:
    """Write `home/step-N`, durable against a power cut; older checkpoints stay intact until it is complete."""
    home.mkdir(parents=True, exist_ok=True)
    final = folder_of(home, checkpoint.step)
    if _is_complete(final):  # a stopped run saves its current step, which may be saved already
        return final
    needed = sum(tensor.nbytes for tensors in checkpoint.groups.values() for tensor in tensors.values())
    files: dict[str, dict[str, Any]] = {}
    try:
        with atomic.temporary_folder(final) as temporary:
            for name, tensors in checkpoint.groups.items():  # one at a time, because packing copies a group
                files[f"{name}.safetensors"] = _put(temporary / f"{name}.safetensors", pack(tensors))
            if checkpoint.config:
                text = checkpoint.config(files["model.safetensors"]["sha256"])
                files["config.json"] = _put(temporary / "config.json", text.encode())
            _write(temporary / STATE, _sealed(checkpoint, files))
            atomic.sync_folder(temporary)
            if os.path.lexists(final):  # but is not complete
                _discard(final)
            temporary.rename(final)
        atomic.sync_folder(home)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            free = shutil.disk_usage(home).free
            raise OSError(
                error.errno,
                f"not enough disk space to save step {checkpoint.step}: {needed:,} bytes needed, {free:,} free; "
                f"earlier checkpoints are intact. Free some space and run the same command",
                str(final),
            ) from error
        raise
    return final


def load(folder: Path) -> Checkpoint:
    """Read a checkpoint and verify the sha256 of every file."""
    state = _state(folder)
    groups: dict[str, Mapping[str, Tensor]] = {}
    for name, facts in state["files"].items():
        if Path(name).name != name:
            raise DamagedFile(f"{folder / STATE} refers to a file outside of its folder: {name!r}")
        data = _verified(folder / name, facts)
        if name.endswith(".safetensors"):
            groups[name.removesuffix(".safetensors")] = _unpacked(folder / name, data)
    return Checkpoint(state["step"], groups, state["facts"])


def group(folder: Path, name: str) -> Mapping[str, Tensor]:
    """One group of tensors of a checkpoint, verified by its sha256; the other files are not read."""
    file = f"{name}.safetensors"
    if file not in (files := _state(folder)["files"]):
        raise ValueError(f"{folder} has no {file}; it has {', '.join(files)}")
    return _unpacked(folder / file, _verified(folder / file, files[file]))


def facts(folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint; its tensors are not read."""
    return dict(_state(folder)["facts"])


def newest_facts(home: Path) -> dict[str, Any]:
    """The facts of the newest readable checkpoint; empty without one."""
    for folder in reversed(step_folders(home)):
        try:
            return facts(folder)
        except DamagedFile:  # reported when the checkpoint itself is loaded
            continue
    return {}


def latest(home: Path) -> Checkpoint | None:
    """The newest intact checkpoint; a damaged one is named in a warning and skipped."""
    return _newest(home, load)


def newest_group(home: Path, name: str) -> Mapping[str, Tensor] | None:
    """A group of tensors of the newest checkpoint in which it is intact; None if that has no such group."""
    return _newest(
        home, lambda folder: group(folder, name) if f"{name}.safetensors" in _state(folder)["files"] else None
    )


def _newest(home: Path, read: Callable[[Path], Read]) -> Read | None:
    damaged: dict[Path, str] = {}
    while left := [folder for folder in step_folders(home) if folder not in damaged]:
        try:
            return read(left[-1])
        except DamagedFile as error:
            if left[-1].exists():  # else a training run has removed it after saving a newer one
                damaged[left[-1]] = str(error)
                warnings.warn(f"{error}; loading the previous checkpoint", RuntimeWarning, stacklevel=3)
    if damaged:
        raise DamagedFile(f"no checkpoint in {home} can be read: {next(iter(damaged.values()))}")
    return None


def clean(home: Path) -> None:
    """Remove incomplete folders of a killed process. Call it while holding the run's lock."""
    for pattern in (f".*{atomic.SUFFIX}", *EARLIER):
        atomic.remove_leftovers(home, pattern)


def set_aside(home: Path, step: int) -> None:
    """Rename checkpoints beyond a step that was just saved: they are damaged, and the run was resumed from before them.

    Under their old names they would count as the newest, and be kept in place of intact ones.
    """
    for folder in step_folders(home):
        if (step_of(folder) or 0) > step:
            target = folder.with_name(f"{ASIDE}{folder.name}")
            if os.path.lexists(target):
                _discard(target)
            folder.rename(target)


def prune(home: Path, keep: int, best: int | None = None) -> None:
    """Delete all but the newest `keep` checkpoints and the one after `best` steps."""
    for folder in step_folders(home)[:-keep]:
        if step_of(folder) != best:
            _discard(folder)


def steps(home: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order."""
    return [step for folder in step_folders(home) if (step := step_of(folder)) is not None]


def folder_of(home: Path, step: int) -> Path:
    """The folder of the checkpoint after this number of steps."""
    return home / f"step-{step:09d}"


def _is_complete(folder: Path) -> bool:
    try:
        load(folder)
    except DamagedFile:
        return False
    return True


def _discard(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that a partly deleted folder is not taken for a checkpoint."""
    hidden = atomic.temporary_name(folder)
    with suppress(FileNotFoundError):  # already removed by another process
        folder.rename(hidden)
        atomic.remove(hidden)


def _unpacked(file: Path, data: bytes) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise DamagedFile(f"{file} is not a safetensors file: {error}") from None


def _put(file: Path, data: bytes) -> dict[str, Any]:
    _write(file, data)
    return {"bytes": len(data), "sha256": _digest(data)}


def _sealed(checkpoint: Checkpoint, files: dict[str, dict[str, Any]]) -> bytes:
    state = {
        "format": FORMAT,
        "version": VERSION,
        "step": checkpoint.step,
        "facts": dict(checkpoint.facts),
        "files": files,
    }
    body = json.dumps(state, indent=1, sort_keys=True, allow_nan=False)
    return f"{body}\n{_digest(body.encode())}\n".encode()


def _state(folder: Path) -> dict[str, Any]:
    file = folder / STATE
    try:
        lines = regular_file.read(file, LARGEST_STATE).decode().rsplit("\n", 2)
        if len(lines) != 3:
            raise ValueError("it is incomplete")
        body, digest, rest = lines
        if rest or digest != _digest(body.encode()):
            raise ValueError("its sha256 does not match")
        state = bounded_json.loads(body)
        if state["format"] != FORMAT:
            raise ValueError(f"its format is {state['format']!r}")
        version = int(state["version"])
        if version <= VERSION:
            _check(state, folder)
    except OSError as error:
        raise DamagedFile(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{file} is damaged: {error}") from None
    if version > VERSION:
        raise ValueError(f"{file} has format version {version}, this hopflow reads up to {VERSION}: upgrade hopflow")
    return dict(state)


def _check(state: dict[str, Any], folder: Path) -> None:
    """Raise a ValueError unless the content is valid: a matching sha256 does not guarantee that."""
    step, number = state["step"], folder.name.removeprefix("step-")
    if type(step) is not int or step < 0:
        raise ValueError(f"its step is {step!r}")
    if folder.name != number and number.isascii() and number.isdigit() and int(number) != step:
        raise ValueError(f"its step is {step}, its folder is {folder.name}")
    for part in ("facts", "files"):
        if not isinstance(state[part], dict):
            raise ValueError(f"its {part} must be an object, got {str(state[part])[:40]}")
    for key, holds in FACTS.items():
        if key in state["facts"] and not holds(state["facts"][key]):
            raise ValueError(f"its {key} is {str(state['facts'][key])[:40]}")
    for name, facts in state["files"].items():
        if not (type(facts["bytes"]) is int and isinstance(facts["sha256"], str)):
            raise ValueError(f"its entry for {name!r} is incomplete")


def _verified(file: Path, facts: Mapping[str, Any]) -> bytes:
    try:
        data = regular_file.read(file, facts["bytes"])
    except OSError as error:
        raise DamagedFile(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DamagedFile(f"{file} is damaged: {error}") from None
    if len(data) != facts["bytes"]:
        raise DamagedFile(f"{file} is damaged: it has {len(data):,} bytes, expected {facts['bytes']:,}")
    if _digest(data) != facts["sha256"]:
        raise DamagedFile(f"{file} is damaged: its sha256 does not match")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        view = memoryview(data)
        for start in range(0, len(view), 1 << 24):
            stream.write(view[start : start + (1 << 24)])
        stream.flush()
        os.fsync(stream.fileno())


def restore(parameters: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    """Copy saved tensors into those of the same names; a ValueError names a difference in names, shapes or types."""
    if parameters.keys() != saved.keys():
        names = (parameters.keys() - saved.keys(), saved.keys() - parameters.keys())
        missing, extra = (name_list(set(found)) or "nothing" for found in names)
        raise ValueError(f"{what} differs from the saved one: missing {missing}; not expected {extra}")
    for name, tensor in parameters.items():
        if tensor.shape != saved[name].shape or tensor.dtype != saved[name].dtype:
            raise ValueError(
                f"{what}: {name} is {tensor.dtype} {tuple(tensor.shape)}, the saved one is {saved[name].dtype} "
                f"{tuple(saved[name].shape)}"
            )
        if not bool(torch.isfinite(saved[name]).all()):
            raise ValueError(f"{what}: the saved {name} is not finite")
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(saved[name])
