"""import_weights: the network of another project as a run of hopflow, with its flow and tokenizer."""

import errno
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ..data.build_tokenizer import existing_tokenizer
from ..data.named_corpora import cache_folder
from ..data.tokenizers import Tokenizer
from ..flow import Flow
from ..models.dit import TimeInput, TotalNoise
from ..runs import checkpoint
from ..runs.identity import flatten, recipe_hash
from ..runs.pretrained import describe, sealed
from ..runs.run_folder import RunFolder
from ..runs.storage import to_plain
from ..runs.weights import tensors_of
from ..schedules import Linear, Polynomial
from ..sources import Mask, Source, Uniform
from ..system import atomic
from ..system.progress import Progress, ProgressCallback
from ..vocab import Vocab
from .dit_weights import NetworkWeights
from .embedding_rows import EmbeddingRows, masked_rows, source_of, uniform_rows
from .layouts import Layout, SourceName, layout_named
from .tensor_files import StoredTensors, find_file, read_config, read_tensors

LENGTH = 1024
"""Tokens per sequence of the published networks, for files without it."""
LONGEST = 1 << 20
"""Most tokens per sequence, as on the command line."""
NO_TOKENIZER = "none"
NO_FLOW = (
    "in its training the share of uniform tokens in the noise changes with time, and hopflow has no such path: it was "
    "imported as a network only, hf.from_pretrained(folder).model(xt, t)"
)
UNIFORM_SCORES = (
    "SEDD with the uniform graph cannot be imported: the probabilities that its scores s imply, (s/Σs - (1-k)/V)/k, "
    "can be negative for a trained network, so that no logits exist for them; with the absorbing graph they do"
)


@dataclass(frozen=True)
class ImportOptions:
    """What the file of another project does not contain; None: as in its config.json, else the command's default."""

    tokenizer: str | Tokenizer = "gpt2"
    length: int | None = None
    source: SourceName | None = None
    mask: int | None = None
    heads: int | None = None
    time: bool | None = None
    smallest: float | None = None
    exponent: float | None = None
    uniform: float | None = None
    weights: Literal["auto", "ema", "raw"] = "auto"

    def check(self, layout: Layout) -> None:
        """Raise a ValueError for an option that this layout does not have."""
        masked = "mask" in layout.sources
        known = {
            "source": len(layout.sources) > 1 or layout.name == "sedd",
            "mask": masked,
            "time": layout.time_optional,
            "smallest": isinstance(layout.time_input, TotalNoise),
            "exponent": layout.name == "flow_matching",
            "uniform": layout.name == "gidd",
        }
        for name, is_known in known.items():
            if getattr(self, name) is not None and not is_known:
                raise ValueError(f"{name} is not a setting of the layout {layout.name}: leave it out")
        for name, is_valid, allowed in (
            ("length", lambda value: 1 <= value <= LONGEST, f"≥ 1 and ≤ {LONGEST}"),
            ("heads", lambda value: value >= 1, "≥ 1"),
            ("exponent", lambda value: 0 < value < math.inf, "> 0"),
            ("uniform", lambda value: 0 <= value < 1, "≥ 0 and < 1"),
        ):
            value = getattr(self, name)
            if value is not None and not is_valid(value):
                raise ValueError(f"{name} must be {allowed}, got {value}")
        if layout.name == "sedd" and self.source == "uniform":
            raise ValueError(UNIFORM_SCORES)

    def completed(self, config: dict[str, Any]) -> "ImportOptions":
        """Options that were not set are taken from a config.json of the Hugging Face hub."""
        inner = config["model"] if isinstance(config.get("model"), dict) else {}
        graph = config["graph"].get("type") if isinstance(config.get("graph"), dict) else None

        def entry(kinds: tuple[type, ...], *names: str) -> Any:
            return next(
                (part[name] for part in (config, inner) for name in names if type(part.get(name)) in kinds), None
            )

        uniform = entry((int, float), "p_uniform")
        found = {
            "length": entry((int,), "model_length", "max_seq_len", "length"),
            "heads": entry((int,), "n_heads", "num_attention_heads"),
            "time": entry((bool,), "time_conditioning"),
            "uniform": None if uniform is None else float(uniform),
            "source": {"absorb": "mask", "uniform": "uniform"}.get(str(graph)),
        }
        return replace(self, **{name: value for name, value in found.items() if getattr(self, name) is None})


@dataclass(frozen=True, eq=False)
class ImportedRun:
    """A run that was written from the weights of another project."""

    folder: Path
    model: nn.Module
    flow: Flow | None
    """None if hopflow has no flow for the network."""
    tokenizer: Tokenizer | None
    averages: bool
    """Whether the averaged weights were imported."""
    length: int
    remarks: tuple[str, ...]
    """What was assumed or left out."""


def import_weights(
    layout: str,
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    options: ImportOptions | None = None,
    offline: bool = False,
    progress: ProgressCallback | None = None,
) -> ImportedRun:
    """Write the run folder `out` from the weights of mdlm, duo, sedd, flow_matching or gidd.

    The file is safetensors, or a checkpoint of torch.save, whose tensors are read in a child process. Nothing is
    written if it does not fit the layout.
    """
    report = progress or _silent
    chosen, options, folder = layout_named(layout), options or ImportOptions(), Path(out)
    _check_target(folder)
    options.check(chosen)
    file = find_file(Path(path))
    options = _for_layout(chosen, options.completed(read_config(file)))
    report(f"reading {file}")
    stored = read_tensors(file, f"hopflow import {chosen.name}")
    if options.weights == "ema" and not stored.averages:
        raise ValueError(f"{file} has no averaged weights: leave out weights=ema")
    averages = bool(stored.averages) and options.weights != "raw"
    report("checking names, shapes and values")
    network = NetworkWeights.of(chosen, stored, averages=averages)
    tokenizer = _tokenizer(options.tokenizer, report, offline)
    try:
        run = _converted(chosen, options, network, tokenizer, averages, folder)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    report(f"writing {folder}")
    _write(run, chosen, options, stored)
    return run


def _check_target(folder: Path) -> None:
    """Refuse a folder that exists, or that cannot be made, before the work begins."""
    if folder.exists():
        raise ValueError(f"{folder} exists: choose another folder with out=FOLDER")
    parent = next((parent for parent in folder.parents if parent.exists()), Path())
    if not parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "this is a file, not a folder", str(parent))
    if not os.access(parent, os.W_OK):
        raise PermissionError(errno.EACCES, "the folder is not writable", str(parent))


def _silent(text: str) -> None:
    return


def _for_layout(layout: Layout, options: ImportOptions) -> ImportOptions:
    """The options without the entries of config.json that are no settings of this layout."""
    if not layout.time_optional:
        options = replace(options, time=None)
    if layout.name not in ("sedd", "flow_matching"):
        options = replace(options, source=None)
    if layout.name != "gidd":
        options = replace(options, uniform=None)
    elif options.uniform is None:
        raise ValueError(
            "gidd needs the share of uniform noise in its training, p_uniform: set uniform=0 or uniform=0.1"
        )
    options.check(layout)
    return options


def _tokenizer(chosen: str | Tokenizer, report: Callable[[str], None], offline: bool) -> Tokenizer | None:
    if chosen == NO_TOKENIZER:
        return None
    found = existing_tokenizer(chosen, cache_folder(), Progress(report), offline)
    if found is None:
        raise ValueError(f"tokenizer={chosen} is made from a text: choose gpt2, byte, none or a tokenizer.json")
    return found


def _converted(
    layout: Layout,
    options: ImportOptions,
    network: NetworkWeights,
    tokenizer: Tokenizer | None,
    averages: bool,
    folder: Path,
) -> ImportedRun:
    """The network and the flow."""
    source = options.source or source_of(network.rows, tokenizer, layout.sources)
    if layout.name == "sedd" and options.mask is None and tokenizer is not None and network.rows == tokenizer.size:
        raise ValueError(UNIFORM_SCORES)
    added = 0
    if source == "mask":
        tokens = masked_rows(network.rows, tokenizer, options.mask, named=layout.mask_named)
    else:
        before = 0 if tokenizer is None else tokenizer.size
        tokens, tokenizer = uniform_rows(network.rows, tokenizer)
        added = 0 if tokenizer is None else tokenizer.size - before
    size = network.size(options.heads)
    timeless = layout.time_optional and not options.time
    if timeless and options.smallest is not None:
        raise ValueError("smallest is only for networks that are conditioned on time: set time=true, or leave it out")
    if timeless:
        model: nn.Module = network.timeless(tokens, size)
    else:
        model = network.timed(tokens, size, _time_input(layout, options))
    flow = None if options.uniform else _flow(layout, options, tokens.vocab, source)
    remarks = _remarks(layout, options, network, tokens, timeless)
    if added:
        remarks += (f"the tokenizer lacks {added} of the tokens: it got [PAD], which no text contains",)
    return ImportedRun(folder, model, flow, tokenizer, averages, options.length or LENGTH, remarks)


def _time_input(layout: Layout, options: ImportOptions) -> TimeInput:
    return layout.time_input if options.smallest is None else TotalNoise(options.smallest)


def _flow(layout: Layout, options: ImportOptions, vocab: Vocab, source: SourceName) -> Flow:
    x0: Source = Mask(vocab) if source == "mask" else Uniform(vocab)
    exponent = options.exponent or 1.0
    return Flow(x0, Linear() if exponent == 1 else Polynomial(exponent), layout.prediction)


def _remarks(
    layout: Layout, options: ImportOptions, network: NetworkWeights, tokens: EmbeddingRows, timeless: bool
) -> tuple[str, ...]:
    """What the user should know, in words."""
    found = []
    if network.head is None and options.heads is None:
        found.append("the file does not contain the number of heads: 64 numbers per head were assumed (heads=NUMBER)")
    if timeless and options.time is None:
        found.append("time_conditioning=False was assumed, as in the published networks (time=true for others)")
    if tokens.never is not None:
        found.append(f"token {tokens.never} is the mask in the file: it stays a data token that is never drawn")
    if tokens.padding:
        found.append(f"{tokens.padding} rows of the embedding belong to no token, and were left out")
    if layout.name == "sedd":
        found.append("scores were normalized to probabilities: the total rate of a position is that of the path")
    if options.uniform:
        found.append(NO_FLOW)
    return tuple(found)


def _write(run: ImportedRun, layout: Layout, options: ImportOptions, stored: StoredTensors) -> None:
    """A run folder with one checkpoint; under a temporary name until it is complete."""
    origin = {
        "layout": layout.name,
        "file": stored.file.name,
        "sha256": stored.sha256,
        "weights": "ema" if run.averages else "raw",
    }
    tokens = None if run.tokenizer is None else run.tokenizer.name
    recipe = {
        "name": run.folder.name,
        "length": run.length,
        "tokens": tokens,
        "weight_ema": float(run.averages),
        "imported": origin,
        "no_flow": None if run.flow is not None else NO_FLOW,
    }
    identity = {
        **{f"imported.{name}": value for name, value in origin.items()},
        **flatten("model", to_plain(run.model)),
        **({} if run.flow is None else flatten("flow", to_plain(run.flow))),
        "data.length": run.length,
        "data.tokenizer": tokens,
    }
    config = describe(run.model, run.flow, tokenizer=run.tokenizer, recipe={**recipe, "identity": identity})
    saved = checkpoint.Checkpoint(
        stored.step or 0,
        {"model": tensors_of(run.model)},
        {"recipe_hash": recipe_hash(identity)},
        lambda sha256: sealed(config, "model.safetensors", sha256),
    )
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic.temporary_folder(run.folder) as temporary:
        with RunFolder(temporary) as folder:
            checkpoint.save(folder.checkpoints, saved)
            folder.write(identity, recipe)
        temporary.rename(run.folder)
    atomic.sync_folder(run.folder.parent)
