"""Weights as a safetensors file: written from a module, verified by their sha256, copied into a module."""

import errno
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn


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
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise DamagedFile(f"{file} {_why(file)}: its sha256 is {found[:12]}…, config.json states {str(sha256)[:12]}…")


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
    if any(value.is_meta for value in state.values()):
        (dtype, *others) = {tensor.dtype for tensor in tensors.values()}
        if others or not dtype.is_floating_point:
            raise ValueError(f"{file}: all weights must have one floating-point type, got {[dtype, *others]}")
        model.to(dtype).to_empty(device=device)
    else:
        floats = {tensor.dtype for tensor in tensors.values() if tensor.dtype.is_floating_point}
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
    """The tensors of files, which must have exactly these names and shapes; memory-mapped, nothing is read yet."""
    found: dict[str, Tensor] = {}
    with ExitStack() as stack:
        stored, homes = {}, {}
        for file in files:
            try:
                stored[file] = stack.enter_context(safe_open(file, "pt"))
            except SafetensorError as error:
                raise ValueError(f"{file} {_why(file)}: {error}") from None
            homes.update(dict.fromkeys(stored[file].keys(), file))
        _check_names(set(homes), set(shapes), files[0])
        for name, shape in shapes.items():
            file = homes[name]
            own = stored[file].get_slice(name).get_shape()
            if tuple(own) != shape:
                raise ValueError(f"{file}: {name} has shape {own}, in the network it has {list(shape)}")
        for name in shapes:
            found[name] = stored[homes[name]].get_tensor(name)
    return found


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
        lists = (sorted(wanted - found), sorted(found - wanted))
        lacks, extra = (", ".join(names[:3]) + ("…" if len(names) > 3 else "") or "nothing" for names in lists)
        raise ValueError(f"{file} belongs to another network: missing {lacks}; unexpected {extra}")
