"""A saved network: a folder with safetensors weights and a JSON config with flow, tokenizer and recipe.

The config is written last and names its weights by their sha256. A second save into the same folder writes new files
until then: after a power cut the folder contains the old network or the new one. No pickle is ever read.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..flow import Flow
from ..network.label_names import check_names, listed
from ..system import atomic
from ..vocab import Vocab
from . import config_file, hub, hub_upload
from .config_file import CONFIG, FORMAT, VERSION, WEIGHTS
from .custom_network import build_network, describe_network, register
from .storage import from_plain, to_plain
from .weights import DamagedFile, fill, pack, split, tensors_of, verify

STEMS = ("model", "model.2")
"""Names of the weights without their ending; the second is used while the current config still refers to the first."""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """The content of a folder; a part that was not saved is None."""

    model: nn.Module
    flow: Flow | None
    tokenizer: Any
    recipe: dict[str, Any] | None
    sha256: dict[str, str]
    """The sha256 of the weights, by file name."""
    folder: Path
    """The folder that was read: for a run, that of its newest readable checkpoint."""
    label_names: tuple[str, ...] = ()
    """The names of the labels of the data, in the order of their numbers."""
    origin: str | None = None
    """`hub:user/name@COMMIT`, if the network was loaded from the hub."""

    def __str__(self) -> str:
        count = sum(parameter.numel() for parameter in self.model.parameters())
        lines = [
            f"saved network in {self.origin or self.folder}",
            f"  model      {type(self.model).__name__}, {count:,} parameters",
            f"  flow       {'none' if self.flow is None else self.flow}".replace("\n", "\n             "),
            f"  tokenizer  {_tokenizer_line(self.tokenizer)}",
        ]
        if self.recipe:
            keys = [key for key in ("name", "data", "steps", "length") if self.recipe.get(key) is not None]
            lines.append("  recipe     " + (", ".join(f"{key}={self.recipe[key]}" for key in keys) or "custom"))
        if self.label_names:
            lines.append(f"  labels     {listed(self.label_names)}")
        return "\n".join(lines)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool | None = None,
        license: str | None = None,
        evaluation: Iterable[Any] | None = None,
    ) -> str:
        """Upload the saved files and a model card to `user/name` on the Hugging Face hub, in one commit.

        Returns `user/name@COMMIT`, which `from_pretrained` takes. The card has the rows of the run's eval.json that
        belong to this checkpoint, or the rows of `hf.evaluate` passed as `evaluation`. `private` applies to a new
        repository. Changes made to `model` after it was loaded are not part of it.
        """
        rows = None if evaluation is None else [row.as_json() for row in evaluation]
        parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return hub_upload.push(name, self.folder, parameters=parameters, private=private, license=license, rows=rows)


def _tokenizer_line(tokenizer: Any) -> str:
    if tokenizer is None:
        return "none"
    size = getattr(tokenizer, "size", None)
    return f"{getattr(tokenizer, 'name', type(tokenizer).__name__)}" + (f", {size:,} tokens" if size else "")


def save_pretrained(
    folder: str | os.PathLike[str],
    model: nn.Module,
    flow: Flow | None = None,
    *,
    tokenizer: Any = None,
    recipe: dict[str, Any] | None = None,
    label_names: Sequence[str] = (),
    largest_file: int | None = None,
) -> Path:
    """Save a network with its flow, tokenizer and recipe; the tokenizer is any object with `to_json() -> dict`.

    `label_names` are those of the data, `corpus.label_names`, for a network with labels. With `largest_file`, the
    weights are split into files of at most this many bytes.

    The network may be of your own class: its constructor arguments are stored if the network has them as attributes of
    the same names, or a method `config()` that returns them as a dict. Without them only the weights are stored.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    if tokenizer is not None and not hasattr(tokenizer, "to_json"):
        raise ValueError(f"tokenizer must have a method to_json, such as corpus.tokenizer, got {tokenizer!r}.")
    model = _uncompiled(model)
    config = describe(model, flow, tokenizer=tokenizer, recipe=recipe, label_names=label_names)
    groups = split(tensors_of(model), largest_file)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    in_use = _weights_in_use(folder)
    stem = next(name for name in STEMS if not any(_stem(used) == name for used in in_use))
    hashes = {}
    for number, group in enumerate(groups, 1):
        part = f"-{number}-of-{len(groups)}" if len(groups) > 1 else ""
        content = pack(group)
        atomic.write(folder / f"{stem}{part}.safetensors", content)
        hashes[f"{stem}{part}.safetensors"] = hashlib.sha256(content).hexdigest()
    atomic.write(folder / CONFIG, _sealed(config, hashes).encode())
    for file in folder.glob("model*.safetensors"):
        if WEIGHTS.fullmatch(file.name) and file.name not in hashes:
            file.unlink()
    return folder


def _stem(name: str) -> str:
    found = WEIGHTS.fullmatch(name)
    return found[1] if found else ""


def describe(
    model: nn.Module,
    flow: Flow | None = None,
    *,
    tokenizer: Any = None,
    recipe: dict[str, Any] | None = None,
    label_names: Sequence[str] = (),
) -> dict[str, Any]:
    """The content of a config as JSON data, without the sha256 that `sealed` adds."""
    check_vocab(model, flow)
    check_names(model, label_names)
    return _plain(
        {
            "format": FORMAT,
            "version": VERSION,
            "model_type": FORMAT,
            "model": describe_network(model),
            "flow": None if flow is None else to_plain(flow),
            "tokenizer": None if tokenizer is None else tokenizer.to_json(),
            "recipe": recipe,
            **({"label_names": list(label_names)} if label_names else {}),
        }
    )


def sealed(config: dict[str, Any], weights: str, sha256: str) -> str:
    """The text of a config with the sha256 of its weights and of the config itself."""
    return _sealed(config, {weights: sha256})


def _sealed(config: dict[str, Any], hashes: dict[str, str]) -> str:
    complete = {**config, "sha256": {**hashes, CONFIG: config_file.digest(config)}}
    return json.dumps(complete, indent=1) + "\n"


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    model: nn.Module | None = None,
    model_class: type[nn.Module] | None = None,
    offline: bool = False,
) -> Pretrained:
    """Load a folder of `save_pretrained`, or the newest checkpoint of a run; the network is in eval mode.

    `user/name`, or `user/name@REVISION`, is a network of the Hugging Face hub, unless it or `user` is a folder here;
    `hub:user/name` is the same, and a `Path` is always a folder. With `offline` it is taken from the hub's cache.

    A damaged checkpoint of a run is named in a warning, and the one before it is loaded. Weights are placed on
    `device`, the CPU by default.

    A network of your own class needs the class, `model_class=Net`, because a file never causes an import; or pass a
    network to fill, `model=Net(…)`, which stays on its device.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be the path of a run or of a saved network, got {folder!r}.")
    if isinstance(folder, str) and (name := hub.named(folder)) is not None:
        snapshot = hub.download(name, offline=offline)
        found = from_pretrained(snapshot.folder, device=device, model=model, model_class=model_class)
        return replace(found, origin=str(snapshot))
    folder = Path(folder)
    if model_class is not None:
        register(model_class)
    damaged: dict[Path, Exception] = {}
    while True:
        steps = [] if (folder / CONFIG).exists() else step_folders(folder / "checkpoints")
        left = [step for step in steps if step not in damaged]
        if steps and not left:
            raise DamagedFile(f"no checkpoint of {folder} can be read: {_reason(damaged[steps[-1]])}")
        chosen = left[-1] if left else folder
        try:
            return _read(chosen, device, model, model_class)
        except (DamagedFile, FileNotFoundError) as error:
            if not steps:
                raise _with_older(error, folder) from None
            if chosen.exists():  # else a training run has removed it after saving a newer one
                damaged[chosen] = error
                if len(left) > 1:
                    text = f"{_reason(error)}; loading the previous checkpoint, {left[-2]}"
                    warnings.warn(text, RuntimeWarning, stacklevel=2)


def _read(
    folder: Path,
    device: torch.device | str | None,
    model: nn.Module | None,
    model_class: type[nn.Module] | None,
) -> Pretrained:
    config = config_file.read(folder)
    weights = config_file.weight_files(config)
    for name in weights:
        verify(folder / name, config["sha256"][name])
    flow = None if config["flow"] is None else from_plain(Flow, config["flow"])
    own = model is not None
    if model is None:
        model = build_network(config["model"], folder, model_class)
    else:
        device = device or next(model.parameters(), torch.empty(0)).device
    check_vocab(_uncompiled(model), flow)
    files = [folder / name for name in weights]
    fill(_uncompiled(model), files, _device(device), convert=not own)
    sha256 = {name: config["sha256"][name] for name in weights}
    names = tuple(config["label_names"] or ())
    return Pretrained(model.eval(), flow, _tokenizer(config["tokenizer"]), config["recipe"], sha256, folder, names)


def _device(name: torch.device | str | None) -> torch.device:
    try:
        return torch.device(name or "cpu")
    except RuntimeError:
        raise ValueError(f"device={name} is not a device of torch, such as cpu or cuda.") from None


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run's folder; any other folder itself. Both can be loaded by `from_pretrained`."""
    saved = step_folders(folder / "checkpoints") if not (folder / CONFIG).exists() else []
    return saved[-1] if saved else folder


def step_folders(home: Path) -> list[Path]:
    """The checkpoints in a folder by their number of steps, the newest last."""
    for _ in range(3):  # a training run may save the next one and remove this one meanwhile: list them again
        numbered = [(step, folder) for folder in home.glob("step-*") if (step := step_of(folder)) is not None]
        if found := [folder for step, folder in sorted(numbered) if folder.is_dir()]:
            return found
    return []


def step_of(folder: Path) -> int | None:
    """The number of steps in the name of a checkpoint; None for another name."""
    digits = folder.name.removeprefix("step-")
    # isdecimal alone allows the digits of every script, isdigit also "²"
    return int(digits) if digits != folder.name and digits.isascii() and digits.isdecimal() else None


def check_vocab(model: nn.Module, flow: Flow | None) -> None:
    """Raise a ValueError if a network and a flow have different vocabularies."""
    vocab = getattr(model, "vocab", None)
    if not isinstance(flow, Flow | None):
        raise ValueError(f"flow must be a Flow, or None, got {type(flow).__name__}.")
    if isinstance(vocab, Vocab) and flow is not None and vocab != flow.vocab:
        raise ValueError(f"the network has {vocab}, the flow has {flow.vocab}: they must be equal")


def _uncompiled(model: nn.Module) -> nn.Module:
    """The module inside the wrapper of torch.compile, or the module itself."""
    return getattr(model, "_orig_mod", model)


# -- the config ------------------------------------------------------------------------------------------------------


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The config as JSON returns it."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(config, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"recipe and tokenizer must be plain JSON data: {error}") from None
    return plain


def _with_older(error: Exception, folder: Path) -> Exception:
    """The error of a checkpoint, extended by the path of the previous checkpoint if there is one."""
    step = step_of(folder)
    older = [other for other in step_folders(folder.parent) if step is not None and (step_of(other) or 0) < step]
    return DamagedFile(f"{_reason(error)}\ntry the previous checkpoint: {older[-1]}") if older else error


def _reason(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _weights_in_use(folder: Path) -> list[str]:
    try:
        return config_file.weight_files(config_file.read(folder))
    except (ValueError, FileNotFoundError):
        return []  # no saved network here that could be lost


def _tokenizer(plain: dict[str, Any] | None) -> Any:
    if plain is None:
        return None
    from ..data import Tokenizer

    return Tokenizer.from_json(plain)
