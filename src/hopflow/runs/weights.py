"""Weights as a safetensors file: written from a module, verified by their sha256, copied into a module."""

import errno
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from ..system import bounded_json
from ..system.safe_text import harmless

LARGEST_HEADER, METADATA = 100_000_000, "__metadata__"
"""Bytes of the header of a safetensors file at most, as in the format; a key of it that is not a tensor."""
LONGEST_NAME = 80
"""Characters of a tensor's name that a message shows."""
COMPUTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating-point types that networks compute with; torch only stores others, such as float8."""


class DamagedFile(ValueError):
    """A file of a saved network or of a checkpoint differs from what was written."""


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors on any device as the bytes of a safetensors file; tied tensors are stored twice."""
    apart, seen = {}, set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    _require_memory(sum(tensor.nbytes for tensor in apart.values()))
    return save(apart)


def _require_memory(size: int) -> None:
    """Raise MemoryError unless there is memory for the three copies that `save` makes: without it, `save` aborts."""
    copies = [torch.empty(size, dtype=torch.uint8) for _ in range(3)]  # reserved, never touched
    del copies


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network; every entry must be a tensor."""
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of {type(model).__name__} is not a tensor: only tensors can be saved")
    return dict(state)


def verify(file: Path, sha256: str) -> None:
    """Raise DamagedFile unless the file has this sha256: safetensors itself would load a flipped byte."""
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, "the weights are missing; was the folder copied in full?", str(file))
    _check_header(file)
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise DamagedFile(f"{file} {_why(file)}: its sha256 is {found[:12]}…, config.json states {str(sha256)[:12]}…")


def _check_header(file: Path) -> None:
    """Raise DamagedFile unless the header fits the size of the file: hashing a file of terabytes would take hours."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if length <= min(LARGEST_HEADER, size) else b""
    try:
        tensors = bounded_json.loads(header)
        end = max((entry["data_offsets"][1] for name, entry in tensors.items() if name != METADATA), default=0)
        fits = 8 + length + end == size
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise DamagedFile(f"{file} {_why(file)}: its header does not fit its size of {size:,} bytes")


def _why(file: Path) -> str:
    with file.open("rb") as stream:
        start = stream.read(2)
    if start == b"PK" or (start[:1] == b"\x80" and start[1:] <= b"\x05"):
        return "is a pickle, which hopflow never reads because it can run code"
    return "is damaged, or belongs to another save"


def fill(model: nn.Module, files: Sequence[Path], device: torch.device, *, convert: bool = False) -> None:
    """Copy the weights of files into a network; names, shapes and types are checked before anything is allocated.

    A network on the meta device gets the type of the files, as does any network with `convert`.
    """
    state, file = model.state_dict(), files[0]
    tensors = _stored(files, {name: tuple(value.shape) for name, value in state.items()})
    floats = {tensor.dtype for tensor in tensors.values() if tensor.dtype.is_floating_point}
    if stored_only := floats - set(COMPUTED):
        raise ValueError(f"{file} has weights of type {stored_only.pop()}; allowed are {', '.join(map(str, COMPUTED))}")
    if any(value.is_meta for value in state.values()):
        (dtype, *others) = {tensor.dtype for tensor in tensors.values()}
        if others or not dtype.is_floating_point:
            raise ValueError(f"{file}: all weights must have one floating-point type, got {[dtype, *others]}")
        model.to(dtype).to_empty(device=device)
    else:
        if convert and len(floats) == 1:
            model.to(floats.pop())
        for name, value in model.state_dict().items():
            if tensors[name].dtype != value.dtype:
                raise ValueError(
                    f"{file}: {name} is {tensors[name].dtype}, in your network it is {value.dtype}: convert "
                    f"the network first with model.to(…)"
                )
        model.to(device)
    model.load_state_dict(tensors)


def _stored(files: Sequence[Path], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of files, which must have exactly these names and shapes."""
    found = {name: (tensor, file) for file in files for name, tensor in _tensors(file).items()}
    _check_names(set(found), set(shapes), files[0])
    for name, shape in shapes.items():
        tensor, file = found[name]
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{file}: {name} has shape {list(tensor.shape)}, in the network it has {list(shape)}")
    return {name: found[name][0] for name in shapes}


def tensors_in(file: Path) -> dict[str, Tensor]:
    """The tensors of a file of any origin, memory-mapped, by their names; a ValueError unless it is safetensors."""
    _check_header(file)
    return _tensors(file)


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file, memory-mapped: nothing is read yet. A path that is not UTF-8 cannot be mapped."""
    try:
        if not _is_utf8(file):
            return load(file.read_bytes())
        with safe_open(file, "pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} {_why(file)}: {error}") from None


def _is_utf8(file: Path) -> bool:
    try:
        str(file).encode()
    except UnicodeEncodeError:
        return False
    return True


def split(tensors: Mapping[str, Tensor], largest: int | None) -> list[dict[str, Tensor]]:
    """Tensors in groups whose files have at most `largest` bytes each; one group without a limit."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        own = tensor.nbytes + HEADER_BYTES
        if largest is not None and own > largest:
            raise ValueError(f"{name} has {tensor.nbytes:,} bytes, more than the largest file of {largest:,}")
        if largest is not None and groups[-1] and size + own > largest:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += own
    return groups


HEADER_BYTES = 512
"""At most this many bytes of a file's header describe one tensor."""


def _check_names(found: set[str], wanted: set[str], file: Path) -> None:
    if found != wanted:
        lacks, extra = (name_list(names) or "nothing" for names in (wanted - found, found - wanted))
        raise ValueError(f"{file} belongs to another network: missing {lacks}; unexpected {extra}")


def name_list(names: set[str]) -> str:
    """The first three names, shortened: a file may contain names of any length."""
    first = sorted(names)[:3]
    shown = [harmless(name[:LONGEST_NAME]) + ("…" if len(name) > LONGEST_NAME else "") for name in first]
    return ", ".join(shown) + ("…" if len(names) > 3 else "")
