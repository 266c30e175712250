"""The tensors of a file of another project: safetensors, or a file of `torch.save`, which a child process reads."""

import hashlib
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..runs import weights
from ..system import bounded_json, regular_file
from ..system.child_process import PythonProcess, import_path

PROGRAM = Path(__file__).with_name("unpickle_tensors.py")
LARGEST_CONFIG, LARGEST_NAMES, LARGEST_REPLY = 1 << 20, 1 << 26, 1 << 16
"""Bytes of a config.json, of the child's list of names, and of its message."""
SECONDS, BYTES_PER_SECOND = 300.0, 20e6
"""Time that the child may take: a fixed part, and a slow disk's speed."""
KINDS = (".safetensors", ".ckpt", ".pt", ".pth", ".bin")
PICKLES = (b"PK", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))
"""First bytes of a file of `torch.save`."""


@dataclass(frozen=True, eq=False)
class StoredTensors:
    """The state dict of a file, in its order if it has one, and what else is known about the network."""

    file: Path
    tensors: Mapping[str, Tensor]
    averages: tuple[Tensor, ...] = ()
    """Averaged parameters, in the order of the network's parameters; empty without them."""
    step: int | None = None
    """Training steps."""

    @property
    def sha256(self) -> str:
        """The hash of the file."""
        with self.file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()


def find_file(path: Path) -> Path:
    """The file of weights at a path: the file itself, or the only one in a folder."""
    if not path.is_dir():
        return path
    found = sorted(file for file in path.iterdir() if file.suffix in KINDS and file.is_file())
    if len(found) > 1:
        found = [file for file in found if file.name == "model.safetensors"] or found
    if len(found) != 1:
        what = f"{len(found)} files of weights" if found else "no file of weights"
        raise ValueError(f"{path} has {what}: name one file ({', '.join(KINDS)})")
    return found[0]


def read_config(file: Path) -> dict[str, Any]:
    """The config.json next to a file of weights, as on the Hugging Face hub; empty without one."""
    config = file.with_name("config.json")
    if not config.is_file():
        return {}
    try:
        content = bounded_json.loads(regular_file.read(config, LARGEST_CONFIG).decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{config} is not JSON: {str(error)[:200]}") from None
    return content if isinstance(content, dict) else {}


def read_tensors(file: Path, command: str) -> StoredTensors:
    """The tensors of a file. `command` is what the user repeats once the file has been saved as plain tensors."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError(f"{file} is not a regular file")
    with file.open("rb") as stream:
        start = stream.read(9)
    # the first bytes of a safetensors file are a number, which may look like those of a pickle
    if start.startswith(PICKLES) and start[8:] != b"{":
        return _unpickled(file, command)
    try:
        return StoredTensors(file, weights.tensors_in(file))
    except weights.DamagedFile:
        raise ValueError(
            f"{file} is neither a complete safetensors file nor a file of torch.save: is it truncated?"
        ) from None


def _unpickled(file: Path, command: str) -> StoredTensors:
    """The tensors of a file of `torch.save`, copied to safetensors by a child process."""
    with tempfile.TemporaryDirectory(prefix="hopflow-") as folder:
        child = PythonProcess(  # -B: it may not write files next to modules
            *("-S", "-E", "-B", str(PROGRAM), str(file.resolve()), folder, *import_path()),
            env={name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "PYTORCH"))}
            | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        limit = SECONDS + file.stat().st_size / BYTES_PER_SECOND
        try:
            code, reply = child.output(limit)
        except subprocess.TimeoutExpired:
            raise ValueError(f"{file} could not be read within {limit:.0f} s: is it damaged?") from None
        if code:
            raise ValueError(_refusal(file, code, reply[:LARGEST_REPLY], command))
        facts = json.loads(regular_file.read(Path(folder) / "names.json", LARGEST_NAMES))
        # not mapped: the folder is removed
        found = [tensor.clone() for tensor in _in_order(weights.tensors_in(Path(folder) / "weights.safetensors"))]
    names = facts["names"]
    averages = tuple(found[len(names) :])
    return StoredTensors(file, dict(zip(names, found[: len(names)], strict=True)), averages, facts["step"])


def _in_order(tensors: Mapping[str, Tensor]) -> list[Tensor]:
    return [tensors[name] for name in sorted(tensors)]


def _refusal(file: Path, code: int, reply: bytes, command: str) -> str:
    """The message for a file that the child did not copy."""
    try:
        content = json.loads(reply)
        kind, detail = str(content["kind"]), str(content["detail"])
    except (ValueError, KeyError, TypeError):
        kind, detail = "ended", f"exit code {code}"
    messages: dict[str, Callable[[], str]] = {
        "objects": lambda: _how_to_save(file, detail, command),
        "memory": lambda: f"{file} describes more data than it has bytes, or there is not enough memory to read it",
        "damaged": lambda: f"{file} is damaged, truncated or not a file of torch.save: {detail[:160]}",
        "shape": lambda: f"{file} is not a checkpoint with the tensors of one network: it contains {detail}",
    }
    return messages.get(kind, lambda: f"{file} was not read: reading it ended with {detail}")()


def _how_to_save(file: Path, detail: str, command: str) -> str:
    """Why a pickle with objects is refused, and the lines that save its tensors where it was written."""
    plain = file.with_name(f"{file.stem}-tensors.pt")
    return (
        f"{file} contains objects besides tensors ({detail}), and loading objects can run code.\n"
        "Save its tensors where you trust it, with the packages that wrote it, in Python:\n"
        f'  import torch; c = torch.load("{file}", map_location="cpu", weights_only=False)\n'
        f'  torch.save({{k: c[k] for k in ("state_dict", "model", "ema") if k in c}}, "{plain}")\n'
        f"then {command} {plain}"
    )
