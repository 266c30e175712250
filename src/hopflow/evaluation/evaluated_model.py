"""EvaluatedModel: the network that is evaluated, from a run folder or from memory."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from torch import nn

from ..data.tokenizers import Tokenizer
from ..flow import Flow
from ..models.causal import Causal
from ..network.network import Network, is_autoregressive, label_count
from ..network.precision import at_least_float32
from ..runs.devices import choose_device
from ..runs.pretrained import from_pretrained, step_of
from ..runs.run_folder import is_run, read_recipe
from .measurement import Measurement
from .rows import Row


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """A network with its flow, and what is known about its training."""

    model: Network
    flow: Flow | None
    name: str = "memory"
    tokenizer: Tokenizer | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    """The recipe keys of its training."""
    identity: dict[str, Any] = field(default_factory=dict)
    """All settings that decide what is learned, the text included."""
    recipe_hash: str | None = None
    weights: str = "last"
    """`average` where the network has the averaged weights, otherwise `last`."""
    checkpoint: int | None = None
    """Training steps of the checkpoint."""
    label_names: tuple[str, ...] = ()
    """The names of the network's labels; empty if they are numbers only, or if it has none."""

    def __post_init__(self) -> None:
        if self.flow is None and not is_autoregressive(self.model):
            if reason := self.recipe.get("no_flow"):
                raise ValueError(f"{self.name} has no flow: {reason}")
            raise ValueError(
                f"{self.name} is a {type(self.model).__name__} without its flow: call evaluate(model, flow, x1), or "
                f"save it with its flow; only an autoregressive network (Causal) needs none"
            )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "cpu", *, offline: bool = False) -> "EvaluatedModel":
        """Load the newest checkpoint of a run folder, a folder of `save_pretrained`, or a network of the hub."""
        path = Path(folder)
        run = read_recipe(path) if is_run(path) else {}
        found = from_pretrained(folder, device=choose_device(device), offline=offline)
        recipe = run.get("recipe") or found.recipe or {}
        return cls(
            at_least_float32(found.model),
            found.flow,
            found.origin or str(folder),
            found.tokenizer,
            recipe,
            run.get("identity") or recipe.get("identity") or {},
            run.get("recipe_hash"),
            "average" if recipe.get("weight_ema") else "last",
            step_of(found.folder) if found.folder != path else None,
            found.label_names,
        )

    @property
    def length(self) -> int | None:
        """Tokens per sequence in training."""
        return self.recipe.get("length") or self.identity.get("data.length")

    @property
    def labels(self) -> int:
        """The number of the network's labels; 0 without labels."""
        return label_count(self.model) or 0

    def label_name(self, label: int) -> str:
        """The name of a label, or else its number."""
        return self.label_names[label] if 0 <= label < len(self.label_names) else str(label)

    @property
    def vocab(self) -> int:
        """Number of data tokens."""
        if self.flow is not None:
            return self.flow.vocab.data
        return int(self.causal.vocab_size)

    @property
    def causal(self) -> Causal:
        """The network of a run without flow."""
        assert self.flow is None
        return cast(Causal, self.model)

    @property
    def dtype(self) -> str:
        """The dtype of its weights."""
        weight = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return "float32" if weight is None else str(weight.dtype).removeprefix("torch.")

    def row(
        self,
        set: str,
        number: Measurement,
        *,
        eta: float | None,
        is_bound: bool = False,
        each: tuple[float, ...] = (),
        **more: Any,
    ) -> Row:
        """A row for a number of this model."""
        return Row(
            run=self.name,
            set=set,
            quantity=number.quantity,
            value=number.value,
            stderr=number.stderr,
            n=number.n,
            unit=number.unit,
            is_bound=is_bound,
            eta=eta,
            dtype=more.pop("dtype", self.dtype),
            recipe_hash=self.recipe_hash,
            more={"weights": self.weights, "checkpoint": self.checkpoint, **more},
            each=each,
        )
