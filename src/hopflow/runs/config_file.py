"""config.json of a saved network: flow, tokenizer, recipe, and the sha256 of the weights and of the config itself."""

import errno
import hashlib
import json
import re
from pathlib import Path
from typing import Any, NoReturn

from ..system import bounded_json, regular_file
from .weights import DamagedFile

VERSION = 1
CONFIG = "config.json"
FORMAT = "hopflow"
WEIGHTS = re.compile(r"(model|model\.2)(-[1-9]\d{0,3}-of-([1-9]\d{0,3}))?\.safetensors", re.ASCII)
"""model.safetensors, or model-1-of-2.safetensors and model-2-of-2.safetensors."""
LARGEST_CONFIG = 1 << 28
"""Bytes; a tokenizer with a million tokens has about a tenth of it."""
REQUIRED = {"format", "version", "model", "sha256"}
OPTIONAL = {"flow": None, "tokenizer": None, "recipe": None, "label_names": None, "model_type": FORMAT}
"""Keys that a config may lack, and their defaults. A key that is added later belongs here.

`model_type` is the key by which transformers finds the class of a config.
"""


def read(folder: Path) -> dict[str, Any]:
    """The config of a folder, verified by its own sha256."""
    file = folder / CONFIG
    if not file.is_file():
        other = "it is a file, not a folder" if folder.exists() else "there is no such folder"
        what = "it has no config.json" if folder.is_dir() else other
        raise FileNotFoundError(errno.ENOENT, f"not a saved network: {what}", str(folder))
    try:
        config = bounded_json.loads(regular_file.read(file, LARGEST_CONFIG).decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{file} is damaged, or not JSON: {str(error)[:200]}") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise DamagedFile(f'{file} was not written by hopflow: it has no "format": "hopflow"')
    version = config.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"{file} has format {version}, this hopflow reads up to {VERSION}: upgrade with pip install -U hopflow"
        )
    if version != VERSION or not config.keys() >= REQUIRED or not isinstance(config["sha256"], dict):
        raise DamagedFile(f"{file} is damaged: it must have format {VERSION} and {', '.join(sorted(REQUIRED))}")
    if unknown := sorted(config.keys() - REQUIRED - OPTIONAL.keys()):
        raise DamagedFile(f"{file} has unknown keys: {', '.join(unknown)[:100]}. Was it written by a newer hopflow?")
    if config["sha256"].get(CONFIG) != digest(config):
        raise DamagedFile(f"{file} is damaged, or was edited: its content does not match its own sha256")
    config = {**OPTIONAL, **config}
    if not all(isinstance(config[key], dict | None) for key in ("tokenizer", "recipe")):
        raise DamagedFile(f"{file} is damaged: tokenizer and recipe must be objects, or null")
    names = config["label_names"]
    if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise DamagedFile(f"{file} is damaged: label_names must be a list of texts")
    return config


def digest(config: dict[str, Any]) -> str:
    """The sha256 of a config without its key `sha256`."""
    rest = {key: value for key, value in config.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def weight_files(config: dict[str, Any]) -> list[str]:
    """The files of the weights: one file, or all parts of one set, in their order."""
    found = [match for name in config["sha256"] if (match := WEIGHTS.fullmatch(str(name)))]
    count = int(found[0][3] or 1) if found else 0
    parts = [f"-{number}-of-{count}" if found[0][2] else "" for number in range(1, count + 1)]
    names = [f"{found[0][1]}{part}.safetensors" for part in parts]
    if not names or {match[0] for match in found} != set(names):
        raise DamagedFile(f"{CONFIG} is damaged: its sha256 must name one file of weights, or all parts of one set")
    return names


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
