"""Saved: a trained network, found by the word on the command line, on the device it is to run on."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..hints import did_you_mean
from .output import echo

if TYPE_CHECKING:
    import torch

    from ..flow import Flow


@dataclass(frozen=True)
class Saved:
    """A network with all that sequences need: flow (None for a causal one), tokenizer, length."""

    folder: Path
    """Of the checkpoint, where the word named a run."""
    model: Any
    flow: "Flow | None"
    tokenizer: Any
    trained: int | None
    """Tokens of the sequences it was trained on."""
    recipe_hash: str | None
    device: "torch.device"

    @property
    def dtype(self) -> str:
        """Of the weights."""
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def threads(self, asked: int | None) -> AbstractContextManager[None]:
        """With the number of CPU threads to draw with."""
        return threads(self.folder, self.model, self.flow, self.trained, self.device, asked)

    def length(self, asked: int | None) -> int:
        """Of the sequences to draw: as they were trained, unless asked for."""
        length = asked or self.trained
        if length is None:
            raise ValueError(f"{self.folder} does not say how long its sequences are: say it, e.g. length=128")
        if self.trained is not None and length > self.trained:
            echo(f"note: trained on sequences of {self.trained} tokens; longer ones are new to it", err=True)
        return length


def read(run: str, device: str = "auto") -> Saved:
    """A run's newest checkpoint, one of its checkpoints, or what `save_pretrained` wrote."""
    from ..models.causal import Causal
    from ..pretrained import from_pretrained
    from ..training.devices import choose_device

    path, where = Path(run), choose_device(device)
    _check_there(path)
    found = from_pretrained(path, device=where)
    folder = found.folder
    if found.flow is None and not isinstance(found.model, Causal):
        raise ValueError(f"{folder} was saved without a flow: save_pretrained(folder, model, flow, tokenizer=…)")
    if found.tokenizer is None:
        raise ValueError(f"{folder} was saved without a tokenizer: save_pretrained(folder, model, flow, tokenizer=…)")
    length, digest = _of_run(folder)
    stored = (found.recipe or {}).get("length")
    return Saved(
        folder,
        found.model,
        found.flow,
        found.tokenizer,
        stored if isinstance(stored, int) and stored > 0 else length,
        digest,
        where,
    )


@contextmanager
def threads(
    folder: Path, model: Any, flow: "Flow | None", length: int | None, where: "torch.device", asked: int | None
) -> Iterator[None]:
    """Set and print the number of CPU threads: that of the training, or the fastest one here."""
    import torch

    from ..network import clock_dtype, resting
    from ..training.threads import choose_threads_to_read, using

    def once() -> None:
        tokens = torch.zeros((4, length or 128), dtype=torch.int64)
        with resting(model):
            model(tokens) if flow is None else model(tokens, torch.zeros(4, dtype=clock_dtype(model)))

    chosen = choose_threads_to_read(folder, once, where, asked)
    if chosen is not None:
        echo(str(chosen), err=True)
    with using(chosen):
        yield


def _of_run(checkpoint: Path) -> tuple[int | None, str | None]:
    """What the run that a checkpoint belongs to says of its length and its hash."""
    from ..training.folder import is_run, read_recipe

    home = checkpoint.resolve().parent.parent
    if checkpoint.resolve().parent.name != "checkpoints" or not is_run(home):
        return None, None
    recipe = read_recipe(home)
    length = recipe["identity"].get("data.length")
    return length if isinstance(length, int) and length > 0 else None, recipe["recipe_hash"]


def _check_there(path: Path) -> None:
    """A name that is nearly right deserves a hint."""
    if path.is_dir():
        return
    if path.exists():
        raise ValueError(f"{path} is a file; the folder of a run or of a saved network is needed")
    near = [folder for home in (path.parent, Path("runs")) if home.is_dir() for folder in home.iterdir()]
    names = {folder.name: str(folder) for folder in near if folder.is_dir()}
    hint = f"did you mean {names[path.name]!r}?" if path.name in names else did_you_mean(str(path), names.values())
    raise ValueError(f"there is no folder {path}" + (f"; {hint}" if hint else ""))
