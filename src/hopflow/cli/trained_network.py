"""A trained network, loaded from the folder named on the command line."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..system.hints import did_you_mean
from .output import echo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..flow import Flow

NETWORK_FILES = ("config.json", "model.safetensors", "recipe.json", "checkpoints")
"""One of these is in the folder of a run or of a saved network, also of a damaged one."""


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with what sampling needs: flow (None if autoregressive), tokenizer and length."""

    folder: Path
    """The checkpoint's folder, if a run was named."""
    model: Any
    flow: "Flow | None"
    tokenizer: Any
    trained_length: int | None
    """Tokens per sequence in training, if known."""
    recipe_hash: str | None
    device: "torch.device"
    label_names: tuple[str, ...] = ()
    """The names of its labels; empty if they are numbers only, or if it has none."""

    def labels(self, words: Sequence[str], count: int) -> "Tensor | None":
        """The labels of `count` sequences: those typed, one after the other; None for a network without labels."""
        import torch

        from ..network.label_names import label_number, listed
        from ..network.network import label_count

        known = label_count(self.model) or 0
        if not known:
            if words:
                raise ValueError(f"{self.folder} has no labels: leave label out")
            return None
        if not words:
            names = listed(self.label_names) if self.label_names else f"0 to {known - 1}"
            raise ValueError(f"{self.folder} has labels ({names}): set label=LABEL, or label=-1 for no label")
        numbers = [label_number(word, self.label_names, known) for word in words]
        return torch.tensor(numbers)[torch.arange(count) % len(numbers)]

    def label_name(self, label: int) -> str | None:
        """The name of a label, or its number if it has none; None for no label."""
        return None if label < 0 else self.label_names[label] if label < len(self.label_names) else str(label)

    @property
    def dtype(self) -> str:
        """The type of the weights."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def threads(self, typed: int | None) -> AbstractContextManager[None]:
        """A context with the number of CPU threads for sampling."""
        return threads(self.folder, self.model, self.flow, self.trained_length, self.device, typed)

    def sequence_length(self, typed: int | None) -> int:
        """Tokens per sequence: as typed, or else as in training."""
        length = typed or self.trained_length
        if length is None:
            raise ValueError(f"{self.folder} was saved without its sequence length: set it, e.g. length=128")
        if self.trained_length is not None and length > self.trained_length:
            echo(
                f"note: the network was trained on sequences of {self.trained_length} tokens, not longer ones", err=True
            )
        return length


def load(run: str, device: str = "auto", network_class: str | None = None, *, offline: bool = False) -> TrainedNetwork:
    """Load a run's newest checkpoint, one checkpoint, a folder of `save_pretrained`, or a network by its name."""
    from ..network.network import is_autoregressive
    from ..network.precision import at_least_float32
    from ..runs.devices import choose_device
    from ..runs.named_networks import network_place
    from ..runs.pretrained import from_pretrained

    place, where = network_place(run), choose_device(device)
    if isinstance(place, Path):
        check_folder(place)
    import_network_class(network_class)
    found = from_pretrained(place, device=where, offline=offline)
    show_origin(found.origin)
    folder = found.folder
    if found.flow is None and not is_autoregressive(found.model):
        if reason := (found.recipe or {}).get("no_flow"):
            raise ValueError(f"{folder} has no flow: {reason}")
        raise ValueError(
            f"{folder} was saved without a flow; save it again with save_pretrained(folder, model, flow, tokenizer=…)"
        )
    if found.tokenizer is None:
        raise ValueError(
            f"{folder} was saved without a tokenizer; save it again with "
            "save_pretrained(folder, model, flow, tokenizer=…)"
        )
    length, recipe_hash = _recipe_facts(folder)
    stored = (found.recipe or {}).get("length")
    return TrainedNetwork(
        folder,
        at_least_float32(found.model),
        found.flow,
        found.tokenizer,
        stored if isinstance(stored, int) and stored > 0 else length,
        recipe_hash,
        where,
        found.label_names,
    )


def show_origin(origin: str | None) -> None:
    """Print the commit of a network that was loaded from the hub."""
    if origin is not None:
        echo(f"network: {origin}", err=True)


def import_network_class(text: str | None) -> None:
    """Import the user's own network class, `package.module:Class`, so that a saved network of it can be loaded.

    Only text that the user has typed may come here, never text from a file: an import runs code.
    """
    if text is None:
        return
    from ..runs.custom_network import load_class

    load_class(text)


@contextmanager
def threads(
    folder: Path, model: Any, flow: "Flow | None", length: int | None, where: "torch.device", typed: int | None
) -> Iterator[None]:
    """Set and print the number of CPU threads: that of the training, or the fastest one here."""
    import torch

    from ..network.network import NetworkCaller
    from ..training.threads import choose_inference_threads, using

    def call_network() -> None:
        tokens = torch.zeros((4, length or 128), dtype=torch.int64)
        caller = NetworkCaller(model)
        with caller.evaluation_mode():
            model(tokens) if flow is None else caller.logits(tokens, torch.zeros(4))

    chosen = choose_inference_threads(folder, call_network, where, typed)
    if chosen is not None:
        echo(str(chosen), err=True)
    with using(chosen):
        yield


def _recipe_facts(checkpoint: Path) -> tuple[int | None, str | None]:
    """The sequence length and the recipe hash of the run that a checkpoint belongs to."""
    from ..runs.run_folder import is_run, read_recipe

    home = checkpoint.resolve().parent.parent
    if checkpoint.resolve().parent.name != "checkpoints" or not is_run(home):
        return None, None
    recipe = read_recipe(home)
    length = recipe["identity"].get("data.length")
    return length if isinstance(length, int) and length > 0 else None, recipe["recipe_hash"]


def check_folder(path: Path) -> None:
    """Refuse a path that is not the folder of a run or of a saved network, and name one that is, if there is one."""
    from ..runs import hub
    from ..runs.pretrained import newest
    from ..runs.run_folder import is_run

    if path.is_dir():
        if is_run(path) and newest(path) == path and not (path / "config.json").exists():
            raise ValueError(f"{path} has no checkpoint yet: hopflow train {shlex.quote(str(path))} writes one")
        if not _is_network(path):
            inside = _networks_in(path)
            raise ValueError(
                f"{path} is not the folder of a run or of a saved network{inside and f', but contains {inside}'}"
            )
        return
    if path.exists():
        raise ValueError(f"{path} is a file, not the folder of a run or of a saved network")
    around = [folder for home in (path.parent, Path("runs")) if home.is_dir() for folder in home.iterdir()]
    names = {folder.name: str(folder) for folder in around if folder.is_dir()}
    near = get_close_matches(path.name, names, n=1)
    if near:
        hint = f"did you mean {names[near[0]]!r}?"
    else:  # with a beginning that exists, every folder next to it has a similar path
        hint = "" if path.parent.is_dir() else did_you_mean(str(path), names.values())
    if not hint and path.parent.is_dir():
        inside = _networks_in(path.parent)
        hint = inside and f"{path.parent} contains {inside}"
    elif not hint and hub.is_name(str(path)):
        hint = f"a network of the hub is typed hub:{path}"
    raise ValueError(f"there is no folder {path}" + (f"; {hint}" if hint else ""))


def _is_network(folder: Path) -> bool:
    return any((folder / name).exists() for name in NETWORK_FILES)


def _networks_in(folder: Path) -> str:
    """The first of the runs and saved networks in a folder, as a list in text."""
    found = sorted(str(inside) for inside in folder.iterdir() if _is_network(inside))
    return ", ".join(found[:3]) + (", …" if len(found) > 3 else "")
