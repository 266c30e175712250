"""Subject: what is evaluated, a run or a network in memory."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ..data.tokenizers import Tokenizer
from ..flow import Flow
from ..models.causal import Causal
from ..network import Network
from ..pretrained import from_pretrained, step_of
from ..training.devices import choose_device
from ..training.folder import is_run, read_recipe
from .measured import Measured
from .rows import Row


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with its flow, and what is known of how it was trained."""

    model: Network
    flow: Flow | None
    name: str = "memory"
    tokenizer: Tokenizer | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    """The keys it was trained by."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What decided what was learned, its text included."""
    recipe_hash: str | None = None
    weights: str = "last"
    """`average` where the weights were averaged over the steps: then the checkpoint's network is that average."""
    checkpoint: int | None = None
    """Steps it had taken."""

    def __post_init__(self) -> None:
        if self.flow is None and not isinstance(self.model, Causal):
            raise ValueError(
                f"{self.name} is a {type(self.model).__name__} without its flow: evaluate(model, flow, x1), or save it "
                f"with one; only a Causal network has a likelihood of its own"
            )

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "cpu") -> "Subject":
        """The newest checkpoint of a run's folder, or what `save_pretrained` wrote."""
        path = Path(folder)
        run = read_recipe(path) if is_run(path) else {}
        found = from_pretrained(path, device=choose_device(device))
        recipe = run.get("recipe") or found.recipe or {}
        return cls(
            found.model,
            found.flow,
            str(folder),
            found.tokenizer,
            recipe,
            run.get("identity") or {},
            run.get("recipe_hash"),
            "average" if recipe.get("weight_ema") else "last",
            step_of(found.folder) if found.folder != path else None,
        )

    @property
    def length(self) -> int | None:
        """Tokens of a sequence it was trained on."""
        return self.recipe.get("length") or self.identity.get("data.length")

    @property
    def vocab(self) -> int:
        """Tokens that a text may hold."""
        if self.flow is not None:
            return self.flow.vocab.data
        assert isinstance(self.model, Causal)
        return self.model.vocab_size

    @property
    def dtype(self) -> str:
        """Of its weights."""
        weight = next(self.model.parameters(), None) if isinstance(self.model, nn.Module) else None
        return "float32" if weight is None else str(weight.dtype).removeprefix("torch.")

    def row(
        self,
        set: str,
        number: Measured,
        *,
        eta: float | None,
        is_bound: bool = False,
        each: tuple[float, ...] = (),
        **more: Any,
    ) -> Row:
        """A number of this subject, signed."""
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
