"""A network in a folder: safetensors and a JSON config that carries flow, tokenizer and recipe.

The config is written last and names its weights by their sha256, and a second save into the folder writes beside the
first until then: whenever the power goes, the folder holds the old network or the new one. No pickle is ever read.
"""

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from . import atomic, regular_file
from .flow import Flow
from .models.model import Model
from .storage import from_plain, to_plain
from .vocab import Vocab

VERSION = 1
CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "model.2.safetensors")
"""The second name serves while the first is in use by the config that is about to be replaced."""
LARGEST_CONFIG = 1 << 28
"""Bytes; a tokenizer with a million tokens has about a tenth of it."""
KEYS = {"format", "version", "model", "flow", "tokenizer", "recipe", "sha256"}


class Damaged(ValueError):
    """A saved network or a checkpoint whose files are not those that were written."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """What a folder holds; what was not saved with the network is None."""

    model: nn.Module
    flow: Flow | None
    tokenizer: Any
    recipe: dict[str, Any] | None
    sha256: dict[str, str]
    """Of the file of weights, by its name."""
    folder: Path
    """Where it was read: the folder of a checkpoint where the folder of a run was asked for."""


def save_pretrained(
    folder: str | os.PathLike[str],
    model: nn.Module,
    flow: Flow | None = None,
    *,
    tokenizer: Any = None,
    recipe: dict[str, Any] | None = None,
) -> Path:
    """Write a network and what it belongs to; the tokenizer is anything with `to_json() -> dict`.

    A module that is not hopflow's is saved by its weights alone: `from_pretrained(folder, model=…)` fills another one.
    """
    model = _inside(model)
    config = describe(model, flow, tokenizer=tokenizer, recipe=recipe)
    content = packed(_tensors(model))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    in_use = _weights_in_use(folder)
    weights = next(name for name in WEIGHTS if name != in_use)
    atomic.write(folder / weights, content)
    atomic.write(folder / CONFIG, sealed(config, weights, hashlib.sha256(content).hexdigest()).encode())
    for name in WEIGHTS:
        if name != weights:
            (folder / name).unlink(missing_ok=True)
    return folder


def describe(
    model: nn.Module, flow: Flow | None = None, *, tokenizer: Any = None, recipe: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a config says of a network, as plain data; `sealed` makes it the text of a config."""
    check_vocab(model, flow)
    own = {"kind": "custom", "class": f"{type(model).__module__}.{type(model).__qualname__}"}
    return _plain(
        {
            "format": "hopflow",
            "version": VERSION,
            "model": to_plain(model) if isinstance(model, Model) else own,
            "flow": None if flow is None else to_plain(flow),
            "tokenizer": None if tokenizer is None else tokenizer.to_json(),
            "recipe": recipe,
        }
    )


def sealed(config: dict[str, Any], weights: str, sha256: str) -> str:
    """The text of a config that names its file of weights, and itself, by their sha256."""
    whole = {**config, "sha256": {weights: sha256, CONFIG: _digest(config)}}
    return json.dumps(whole, indent=1) + "\n"


def from_pretrained(
    folder: str | os.PathLike[str], *, device: torch.device | str | None = None, model: nn.Module | None = None
) -> Pretrained:
    """Read what `save_pretrained` wrote, or say what is wrong with it; the network comes in evaluation mode.

    Weights go to the CPU unless `device` says otherwise. Pass a `model` of your own to have it filled, where it is.
    Of a run's folder the newest checkpoint is read; a damaged one is named in a warning, and the one before it is read.
    """
    folder = Path(folder)
    damaged: dict[Path, Exception] = {}
    while True:
        steps = [] if (folder / CONFIG).exists() else step_folders(folder / "checkpoints")
        left = [step for step in steps if step not in damaged]
        if steps and not left:
            raise Damaged(f"no checkpoint of {folder} can be read: {_reason(damaged[steps[-1]])}")
        chosen = left[-1] if left else folder
        try:
            return _read(chosen, device, model)
        except (Damaged, FileNotFoundError) as error:
            if not steps:
                raise _with_older(error, folder) from None
            if chosen.exists():  # else a training has removed it, after it has saved a newer one
                damaged[chosen] = error
                if len(left) > 1:
                    text = f"{_reason(error)}; going back to the checkpoint before it, {left[-2]}"
                    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _read(folder: Path, device: torch.device | str | None, model: nn.Module | None) -> Pretrained:
    config = _read_config(folder)
    weights = _weights(config)
    _verify(folder / weights, config["sha256"][weights])
    flow = None if config["flow"] is None else from_plain(Flow, config["flow"])
    if model is None:
        model = _build(config["model"], folder)
    else:
        device = device or next(model.parameters(), torch.empty(0)).device
    check_vocab(_inside(model), flow)
    _fill(_inside(model), folder / weights, torch.device(device or "cpu"))
    sha256 = {weights: config["sha256"][weights]}
    return Pretrained(model.eval(), flow, _tokenizer(config["tokenizer"]), config["recipe"], sha256, folder)


def newest(folder: Path) -> Path:
    """The folder itself, or the newest checkpoint of a run's folder, each of which is a saved network."""
    saved = step_folders(folder / "checkpoints") if not (folder / CONFIG).exists() else []
    return saved[-1] if saved else folder


def step_folders(home: Path) -> list[Path]:
    """The checkpoints in a folder by their number of steps, the newest last."""
    for _ in range(3):  # a training may save the next one and remove this one meanwhile: then list them again
        numbered = [(step, folder) for folder in home.glob("step-*") if (step := step_of(folder)) is not None]
        if found := [folder for step, folder in sorted(numbered) if folder.is_dir()]:
            return found
    return []


def step_of(folder: Path) -> int | None:
    """The number of steps in the name of a checkpoint; None for another name."""
    digits = folder.name.removeprefix("step-")
    # isdecimal alone allows the digits of every script, isdigit also "²"
    return int(digits) if digits != folder.name and digits.isascii() and digits.isdecimal() else None


# -- the config ------------------------------------------------------------------------------------------------------


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """As JSON will give it back."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"a recipe and a tokenizer are saved as plain JSON data: {error}") from None
    return plain


def _digest(config: dict[str, Any]) -> str:
    rest = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _with_older(error: Exception, folder: Path) -> Exception:
    """The error of a checkpoint that was named, with the one before it, if there is one."""
    step = step_of(folder)
    older = [other for other in step_folders(folder.parent) if step is not None and (step_of(other) or 0) < step]
    return Damaged(f"{_reason(error)}\ntry the previous checkpoint: {older[-1]}") if older else error


def _reason(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.is_file():
        what = "it has no config.json" if folder.is_dir() else "there is no such folder"
        raise FileNotFoundError(errno.ENOENT, f"not a saved network: {what}", str(folder))
    try:
        config = json.loads(regular_file.read(file, LARGEST_CONFIG).decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{file} is damaged, or no JSON: {str(error)[:200]}") from None
    if not isinstance(config, dict) or config.get("format") != "hopflow":
        raise Damaged(f'{file} is not from hopflow: it does not say "format": "hopflow"')
    version = config.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"{file} has format {version}, this hopflow reads up to {VERSION}: upgrade with pip install -U hopflow"
        )
    if version != VERSION or config.keys() != KEYS or not isinstance(config["sha256"], dict):
        raise Damaged(f"{file} is damaged: it should have format {VERSION} and exactly {', '.join(sorted(KEYS))}")
    if not all(isinstance(config[key], dict | None) for key in ("tokenizer", "recipe")):
        raise Damaged(f"{file} is damaged: tokenizer and recipe should be objects, or null")
    if config["sha256"].get(CONFIG) != _digest(config):
        raise Damaged(f"{file} is damaged, or was edited: its content does not match its own sha256")
    return config


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _weights(config: dict[str, Any]) -> str:
    names = [name for name in WEIGHTS if name in config["sha256"]]
    if len(names) != 1:
        raise Damaged(f"{CONFIG} is damaged: its sha256 should name one file of weights")
    return names[0]


def _weights_in_use(folder: Path) -> str | None:
    try:
        return _weights(_read_config(folder))
    except (ValueError, FileNotFoundError):
        return None  # nothing here that could be lost


def _tokenizer(plain: dict[str, Any] | None) -> Any:
    if plain is None:
        return None
    from .data import Tokenizer

    return Tokenizer.from_json(plain)


# -- the network -----------------------------------------------------------------------------------------------------


def _inside(model: nn.Module) -> nn.Module:
    """What torch.compile has wrapped, or the module itself."""
    return getattr(model, "_orig_mod", model)


def check_vocab(model: nn.Module, flow: Flow | None) -> None:
    """Refuse a network and a flow that were made for different tokens."""
    vocab = getattr(model, "vocab", None)
    if isinstance(vocab, Vocab) and flow is not None and vocab != flow.vocab:
        raise ValueError(f"the network is made for {vocab}, the flow for {flow.vocab}: they do not fit together")


def _build(plain: Any, folder: Path) -> nn.Module:
    """The network without its numbers: nothing is allocated before the file is known to fit."""
    if isinstance(plain, dict) and plain.get("kind") == "custom":
        raise ValueError(
            f"{folder} holds the weights of a module of one's own, {plain.get('class')}: make one and pass it, "
            f"from_pretrained(folder, model=…)"
        )
    with torch.device("meta"):
        return from_plain(Model, plain)


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """As safetensors, from wherever they lie; tied ones are stored twice, and tied again by the module they fill."""
    apart, seen = {}, set()
    for name, value in tensors.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    _require_memory(sum(tensor.nbytes for tensor in apart.values()))
    return save(apart)


def _require_memory(size: int) -> None:
    """MemoryError unless `save` can make its three copies: where it lacks memory itself, it ends the process."""
    copies = [torch.empty(size, dtype=torch.uint8) for _ in range(3)]  # reserved, never touched
    del copies


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of {type(model).__name__} is no tensor, and only tensors are saved")
    return dict(state)


def _verify(file: Path, sha256: str) -> None:
    """safetensors loads a flipped byte without a word."""
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, "the weights are missing; was the folder copied in full?", str(file))
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise Damaged(f"{file} {_why(file)}: its sha256 is {found[:12]}…, {CONFIG} says {str(sha256)[:12]}…")


def _why(file: Path) -> str:
    with file.open("rb") as stream:
        start = stream.read(2)
    if start == b"PK" or (start[:1] == b"\x80" and start[1:] <= b"\x05"):
        return "is a pickle, which hopflow never reads because it can run code"
    return "is damaged, or of another save"


def _fill(model: nn.Module, file: Path, device: torch.device) -> None:
    """Check names, shapes and types by the file's header, then allocate and copy."""
    state = model.state_dict()
    try:
        with safe_open(file, "pt") as stored:
            _check_names(set(stored.keys()), set(state), file)
            for name, value in state.items():
                shape = stored.get_slice(name).get_shape()
                if tuple(shape) != tuple(value.shape):
                    raise ValueError(f"{file}: {name} is {shape}, the network's is {list(value.shape)}")
            tensors = {name: stored.get_tensor(name) for name in state}  # mapped, not yet read
    except SafetensorError as error:
        raise ValueError(f"{file} {_why(file)}: {error}") from None
    if any(value.is_meta for value in state.values()):
        (dtype, *others) = {tensor.dtype for tensor in tensors.values()}
        if others or not dtype.is_floating_point:
            raise ValueError(f"{file}: the weights of a network are of one float type; got {[dtype, *others]}")
        model.to(dtype).to_empty(device=device)
    else:
        for name, value in state.items():
            if tensors[name].dtype != value.dtype:
                raise ValueError(
                    f"{file}: {name} is {tensors[name].dtype}, yours is {value.dtype}: make it the same by model.to(…)"
                )
        model.to(device)
    model.load_state_dict(tensors)


def _check_names(found: set[str], wanted: set[str], file: Path) -> None:
    if found != wanted:
        lists = (sorted(wanted - found), sorted(found - wanted))
        lacks, extra = (", ".join(names[:3]) + ("…" if len(names) > 3 else "") or "nothing" for names in lists)
        raise ValueError(f"{file} is of another network: it lacks {lacks}; it has {extra} in excess")
