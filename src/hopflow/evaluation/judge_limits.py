"""Limits for a judge loaded by transformers: no downloads, no other code, and no model larger than its files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

LARGEST_CONFIG = 1 << 24  # bytes
REFUSED = (
    "attn_implementation",  # "org/repo" makes transformers fetch and run a kernel
    "experts_implementation",
    "kernel_config",
    "use_kernels",
    "allow_all_kernels",
    "quantization_config",
    "compression_config",
    "auto_map",  # code in the folder
    "transformers_weights",  # other files than those whose hashes are recorded
    "configuration_files",
    "attribute_map",  # renames every other key
    "sub_configs",
    "sub_configs_defaults",
)
"""Keys of a config.json that make transformers load other code or files; a leading "_" makes no difference."""
LAYERS, WIDTH, TOKENS, POSITIONS = 1000, 1 << 16, 1 << 22, 1 << 24
"""Limits far beyond practical sizes; layers and width as for the networks of hopflow."""
BUFFERS = 1 << 28
"""Numbers that a network may have besides its weights, such as tables of positions."""


class Refused(ValueError):
    """A judge that is refused before transformers loads it."""


def check_keys(config: object, file: Path) -> None:
    """Refuse keys that make transformers load anything but the folder's weights, at any depth of the config."""
    todo: list[object] = [config]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            for key, value in part.items():
                if str(key).removesuffix("_internal").lstrip("_") in REFUSED and value is not None:
                    raise Refused(
                        f"{file} has the key {key}, with which transformers loads other files or code\n"
                        f"save the model without it, and with weights that are not quantized"
                    )
                if "layer" in str(key) and isinstance(value, int) and value > LAYERS:
                    raise Refused(f"{file}: {key} must be at most {LAYERS}, got {str(value)[:60]}")
            todo += part.values()


def check_sizes(config: Any, name: str) -> None:
    """Refuse impossible sizes; `config` is an object of transformers, which knows the key names of each family."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    named = {"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": WIDTH, "vocab_size": TOKENS}
    for key, most in {**named, "intermediate_size": 4 * WIDTH, "max_position_embeddings": POSITIONS}.items():
        value = getattr(text, key, None)
        if value is not None and not (isinstance(value, int) and 1 <= value <= most):
            raise Refused(f"{name}: {key} must be an integer from 1 to {most}, got {str(value)[:60]}")


def check_memory(config: Any, files: Sequence[Path], name: str) -> None:
    """Build the network without weights, and refuse one that is larger than its files can be."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    weights = sum(parameter.numel() for parameter in model.parameters())
    tables = sum(buffer.numel() for buffer in model.buffers())
    stored = 8 * sum(file.stat().st_size for file in files)  # bits: no format needs less for a weight
    if weights > stored:
        raise Refused(
            f"{name} is damaged: its config describes {weights:,} weights, but its files have {stored:,} bits"
        )
    if tables > BUFFERS:
        raise Refused(f"{name}: a network may have {BUFFERS:,} numbers besides its weights, got {tables:,}")


def attention(config: Any) -> str:
    """sdpa of torch where the network supports it, otherwise eager attention; never a kernel from the hub."""
    import transformers

    found = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return "sdpa" if getattr(found, "_supports_sdpa", False) else "eager"


@contextmanager
def offline() -> Iterator[None]:
    """Prevent all requests to the hub, by transformers and by what it calls."""
    from huggingface_hub import constants
    from transformers.utils import hub

    places = [(constants, "HF_HUB_OFFLINE"), (hub, "_is_offline_mode")]  # the second: transformers 4
    before = [(module, name, getattr(module, name)) for module, name in places if hasattr(module, name)]
    for module, name, _ in before:
        setattr(module, name, True)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
