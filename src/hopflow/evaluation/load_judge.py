"""Load a judge by its name.

A judge is a causal network that hopflow trained, which needs no download; "smollm2"; or a model of transformers, from a
folder, a .gguf file or, as `hf:NAME`, the Hugging Face hub.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..data import cache_folder
from ..runs.config_file import CONFIG
from ..runs.run_folder import CHECKPOINTS
from ..system import bounded_json, regular_file
from ..system.hints import did_you_mean
from ..system.progress import Progress, ProgressCallback
from . import transformers_judge as extra
from .judge import CausalJudge, Judge
from .judge_limits import LARGEST_CONFIG

NAMES = ("smollm2",)


def judge(
    name: str | os.PathLike[str],
    *,
    context: int | None = None,
    opening: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    offline: bool = False,
    cache: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> Judge:
    """Load a judge: "smollm2", "hf:NAME" or "hf:NAME@REVISION" on the hub, a folder, or a .gguf file.

    Only "smollm2" and "hf:…" download something, once, and not if `offline`. `context` is the number of tokens in a
    window; `opening` are the token ids that a context starts with, by default those that the model's tokenizer puts
    first; `dtype` is that of the weights.
    """
    path, text, status = Path(name).expanduser(), os.fspath(name), Progress(progress)
    options = extra.JudgeOptions(context, opening, device, dtype)
    if isinstance(name, str) and text == "smollm2":
        return extra.smollm2(options, cache_folder(cache), offline, status)
    if isinstance(name, str) and text.startswith("hf:"):
        return extra.from_hub(text.removeprefix("hf:"), options, cache_folder(cache), offline, status)
    if _is_hopflow_folder(path):
        return _own_judge(path, context, opening, device, dtype)
    if path.suffix == ".gguf":
        return extra.from_gguf(path, options, status)
    if (path / CONFIG).is_file():
        return extra.from_folder(path, options, status)
    raise _unknown(text, path)


def _own_judge(path: Path, context: int | None, opening: Any, device: Any, dtype: torch.dtype | None) -> CausalJudge:
    if opening is not None or dtype is not None:
        raise ValueError(
            "opening and dtype do not apply to a hopflow network, which learns a start vector: leave them out"
        )
    return CausalJudge.load(path, context=context, device=device)


def _is_hopflow_folder(folder: Path) -> bool:
    """Whether it is a run folder, or has a config.json of hopflow."""
    if (folder / CHECKPOINTS).is_dir():
        return True
    try:
        config = bounded_json.loads(regular_file.read(folder / CONFIG, LARGEST_CONFIG))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == "hopflow"


def _unknown(text: str, path: Path) -> Exception:
    possible = (
        "a judge is a run of `hopflow train … model=causal` or a folder of save_pretrained, smollm2,\n"
        "a folder with config.json, tokenizer.json and safetensors, a .gguf file, or hf:NAME on the hub"
    )
    if path.is_dir():
        return ValueError(f"{text} is not a language model: it has no {CONFIG}\n{possible}")
    if path.exists():
        return ValueError(f"{text} is not a language model\n{possible}")
    if os.sep in text:
        return FileNotFoundError(errno.ENOENT, f"no such file or folder\n{possible}", text)
    hint = did_you_mean(text.lower(), NAMES) or f"did you mean hf:{text}, from the hub?"
    return ValueError(f"{text!r} is not a judge: {hint}\n{possible}")
