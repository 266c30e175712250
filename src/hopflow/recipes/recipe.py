"""Recipe: all settings of a run, from its text to the last number of its training."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from ..models.sizes import Size
from ..runs.custom_network import is_class
from ..training.settings import COUNT, Settings, learns, nearest, runs
from .components import choose, fit_source, kind_of

MODELS = ("transformer", "convolutional", "causal")


@dataclass(frozen=True)
class Recipe(Settings):
    """All settings of a run. Components are given by name; `build` makes the objects once the text is read."""

    name: str = runs("own", "name of the recipe; the run is written to runs/NAME")
    base: str | None = runs(None, "recipe of the defaults for a text file: text, or text_gpu on a CUDA device")
    data: str = runs(
        "docs",
        "text: docs (Python's reference text), a file, a folder, - for stdin, or a name of `hopflow data list`; "
        "or rows: .npy, .npz, .fasta, .smi, .csv",
    )
    tokens: str = learns(
        "char",
        "tokenizer: auto, char, morse, byte, bpe:SIZE, gpt2, or the path of a tokenizer.json; "
        "auto depends on the size of the text",
    )
    length: int = learns(128, "number of tokens per sequence")
    pack: bool = learns(True, "concatenate documents; false pads each document and masks the padding in the loss")
    holdout: float = learns(0.02, "fraction of the documents held out for evaluation")
    model: str = learns(
        "transformer", "network; causal is the autoregressive baseline, package.module:Class is your own class"
    )
    size: str = learns("tiny", "size of the network: micro, tiny, mini, small or medium")
    dropout: float = learns(0.1, "dropout probability")
    time: bool = learns(True, "condition the network on t (optional for mask sources)")
    recompute: bool = runs(False, "recompute activations in the backward pass (checkpointing): less memory, slower")
    source: str = learns(
        "multimask",
        "noise that sampling starts from (x0); mixed:P is a uniform data token with probability P, otherwise a mask",
    )
    masks: int | None = learns(None, "only for source=multimask or mixed: number of mask tokens")
    schedule: str = learns("linear", "schedule k(t) from source to data; polynomial:N has exponent N")
    prediction: str = learns(
        "evidence",
        "how logits become probabilities: plain is the softmax, carry keeps data tokens, "
        "evidence adds the log-likelihood of the current token",
    )
    objective: str = learns("cross_entropy", "loss; bound:ETA is the NLL bound of the sampler with that η")
    coupling: str = learns(
        "independent",
        "how noise (x0) is paired with text (x1); exact and sinkhorn use optimal transport, rectified:STORE the pairs "
        "of `hopflow rectify`",
    )
    fresh: float = learns(
        0.0, "only for coupling=rectified: share of the pairs that are real text with independent noise"
    )
    cost: str = learns(
        "hamming", "cost of a pair (x0, x1) that the coupling minimizes; token_matrix:FILE reads a table"
    )
    eps: float = learns(
        0.01, "only for coupling=sinkhorn: entropic regularization, relative to the largest cost", COUNT
    )
    draw: str = learns(
        "rows", "only for coupling=sinkhorn: draw pairs with (rows) or without (permutation) replacement"
    )
    predict_x0: bool | None = runs(
        None,
        "train a second head that predicts x0: a tighter bound br for coupled flows; "
        "auto: with a coupling, except from masks",
    )
    labels: bool | None = runs(None, "condition the network on the labels of the data; auto: if rows have labels")
    init: str | None = learns(None, "folder of a run with the initial weights")
    out: str | None = runs(None, "folder of the run")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout must be a fraction ≥ 0 and < 1, got {self.holdout}")
        if self.length < 1:
            raise ValueError(f"length must be an integer ≥ 1, got {self.length}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be a probability ≥ 0 and < 1, got {self.dropout}")
        if not 0 <= self.fresh <= 1:
            raise ValueError(f"fresh must be a share from 0 to 1, got {self.fresh}")
        if self.masks is not None and self.masks < 1:
            raise ValueError(f"masks must be an integer ≥ 1, got {self.masks}")
        Size.of(self.size)
        if self.model not in MODELS and not is_class(self.model):
            raise ValueError(f"model={self.model} is unknown; {nearest(self.model, list(MODELS))}")
        for key in ("source", "coupling", "cost"):
            kind_of(key, getattr(self, key))
        if ":" in self.source:
            fit_source(
                self.source, torch.ones(2, dtype=torch.int64)
            )  # raises ValueError for wrong numbers, before the text is read
        for key in ("schedule", "prediction", "objective", "draw"):
            choose(key, getattr(self, key))

    @classmethod
    def read(cls, keys: Mapping[str, Any], base: "Recipe | None" = None) -> "Recipe":
        """A recipe from keys and values of a file or a command line, on top of `base`; each value is checked."""
        known = {f.name: f for f in fields(cls)}
        values = {} if base is None else {name: getattr(base, name) for name in known}
        for key, value in keys.items():
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {nearest(key, list(known))} (`hopflow config keys` shows all)")
            values[key] = _value(key, known[key].type, value)
        return cls(**values)


def _value(key: str, kind: Any, value: Any) -> Any:
    """A value of the setting's type: text is parsed, other values are not converted."""
    kinds = getattr(kind, "__args__", ())
    # for a text setting, auto may be the name of a folder
    if type(None) in kinds and (value in ("none", "") or (value == "auto" and str not in kinds)):
        return None
    try:
        return TypeAdapter(kind).validate_strings(value) if isinstance(value, str) else _strict(kind, value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Input should be a valid ").partition(",")[0]
        wanted = {"integer": "an integer", "boolean": "true or false", "number": "a number"}.get(reason, reason)
        raise ValueError(f"{key}={value}: expected {wanted}") from None


def _strict(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).validate_python(value, strict=True)
