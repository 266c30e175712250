"""Recipe: one row of a table, from the text to the last number of its training."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..models.sizes import Size
from ..training.settings import Settings, learns, nearest, runs
from .choices import choose, kind_of

MODELS = ("transformer", "convolutional", "causal")


@dataclass(frozen=True)
class Recipe(Settings):
    """The keys of a run. What is written by name here becomes objects when the text is known (`build`)."""

    name: str = runs("own", "what this recipe is called")
    base: str | None = runs(None, "defaults for a text file: text, or text_gpu on a CUDA device")
    data: str = runs("docs", "a file, a folder, - for stdin, or a corpus of `hopflow data list`")
    tokens: str = learns("char", "auto (by the text's size), char, byte, morse, bpe:SIZE, gpt2, or a tokenizer file")
    length: int = learns(128, "tokens of a sequence")
    pack: bool = learns(True, "documents one after another; false pads each of them and leaves the padding out")
    holdout: float = learns(0.02, "part of the documents that is kept for evaluation")
    model: str = learns("transformer", "transformer, convolutional, or causal: the autoregressive baseline")
    size: str = learns("tiny", "micro, tiny, mini, small or medium")
    dropout: float = learns(0.1, "part of the activations that is dropped while learning")
    time: bool = learns(True, "the network is told t; a disjoint source can do without")
    recompute: bool = runs(False, "keep no activations of the network's blocks: slower, less memory")
    source: str = learns("multimask", "where x0 comes from: mask, multimask, uniform, bag_of_words")
    masks: int | None = learns(None, "mask tokens of multimask; as many as data tokens")
    schedule: str = learns("linear", "how far along: linear, cosine, polynomial:2")
    prediction: str = learns("evidence", "what logits mean: evidence, carry, plain")
    objective: str = learns("cross_entropy", "what is minimised: cross_entropy, noisy_cross_entropy, bound:0")
    coupling: str = learns("independent", "which x0 meets which x1: independent, exact, sinkhorn")
    cost: str = learns("hamming", "of the coupling: hamming, squared_embedding, one_step_likelihood")
    eps: float = learns(0.01, "of sinkhorn: its entropy, relative to the largest cost")
    draw: str = learns("rows", "of sinkhorn: rows draws from the plan with repeats, permutation without")
    predict_x0: bool = runs(False, "train a second head that predicts x0; the bound br of coupled pairs needs it")
    init: str | None = learns(None, "a run whose weights to start from")
    out: str | None = runs(None, "the run's folder; runs/NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout is a part of the documents, at least 0 and below 1; got {self.holdout}")
        if self.length < 1:
            raise ValueError(f"length must be at least 1; got {self.length}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a part of the activations, at least 0 and below 1; got {self.dropout}")
        if self.masks is not None and self.masks < 1:
            raise ValueError(f"masks must be at least 1; got {self.masks}")
        Size.of(self.size)
        if self.model not in MODELS:
            raise ValueError(f"model={self.model} is not known; {nearest(self.model, list(MODELS))}")
        for key in ("source", "coupling", "cost"):
            kind_of(key, getattr(self, key))
        for key in ("schedule", "prediction", "objective", "draw"):
            choose(key, getattr(self, key))

    @classmethod
    def read(cls, keys: Mapping[str, Any], base: "Recipe | None" = None) -> "Recipe":
        """From keys and values as a file or a command line gives them; each is checked against its type."""
        known = {f.name: f for f in fields(cls)}
        values = {} if base is None else {name: getattr(base, name) for name in known}
        for key, value in keys.items():
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {nearest(key, list(known))} (`hopflow config keys` shows all)")
            values[key] = _value(key, known[key].type, value)
        return cls(**values)


def from_toml(file: Path) -> Recipe:
    """A user's own recipe: keys and values, and `base`, the recipe it differs from."""
    from .paper import named

    try:
        keys = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is not a TOML file: {error}") from None
    base = keys.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise ValueError(f"{file}: base is the name of a recipe; got {base!r}")
    return Recipe.read({"name": file.stem, **keys}, None if base is None else named(base))


def _value(key: str, kind: Any, value: Any) -> Any:
    """A value of the key's type: text from a command line is read as that type, nothing else is converted."""
    kinds = getattr(kind, "__args__", ())
    # a text key may be a folder that is called auto
    if type(None) in kinds and (value in ("none", "") or (value == "auto" and str not in kinds)):
        return None
    try:
        return TypeAdapter(kind).validate_strings(value) if isinstance(value, str) else _strict(kind, value)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Input should be a valid ").partition(",")[0]
        wanted = {"integer": "a whole number", "boolean": "true or false", "number": "a number"}.get(said, said)
        raise ValueError(f"{key}={value}: {wanted} is expected") from None


def _strict(kind: Any, value: Any) -> Any:
    return TypeAdapter(kind).validate_python(value, strict=True)
