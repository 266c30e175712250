"""Hugging Face: any dataset with a column `text`, written out once as JSON lines."""

import hashlib
import json
from pathlib import Path
from typing import Any

from .. import atomic
from .pulse import Pulse
from .sources import ALL, Source

SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}


def export(name: str, cache: Path, pulse: Pulse, offline: bool) -> Source:
    """`NAME` or `NAME:CONFIG`; a local folder works as well as a name on the hub. Scripts of datasets are not run."""
    try:
        import datasets
    except ImportError as error:
        raise ModuleNotFoundError(
            f"hf:{name} needs 'datasets': pip install 'hopflow[data]'", name="datasets"
        ) from error

    path, _, config = name.partition(":")
    if not path:
        raise ValueError("name the dataset: hf:NAME, hf:NAME:CONFIG or hf:./folder")
    pulse.say(f"loading {path} with datasets {datasets.__version__}")
    local = datasets.DownloadConfig(local_files_only=True) if offline else None
    try:
        loaded = datasets.load_dataset(path, config or None, download_config=local)
    except (FileNotFoundError, ConnectionError) as error:
        raise OSError(f"hf:{name} cannot be loaded: {str(error).splitlines()[0]}") from error
    splits = {SPLITS.get(split, split): data for split, data in loaded.items()}
    if "train" not in splits:
        splits = {ALL: next(iter(splits.values()))}
    return Source(f"hf:{name}", {split: (_export(data, cache, pulse),) for split, data in splits.items()})


def _export(data: Any, cache: Path, pulse: Pulse) -> Path:
    if "text" not in data.column_names:
        raise ValueError(f"the dataset has no column 'text'; it has: {', '.join(data.column_names)}")
    key = hashlib.sha256(data._fingerprint.encode()).hexdigest()[:16]
    path = cache / "hugging-face" / f"{key}.jsonl"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path) as file:
        for done, row in enumerate(data):
            file.write((json.dumps({"text": row["text"]}) + "\n").encode())
            pulse.beat(lambda: f"writing out {done:,} of {len(data):,} documents")  # noqa: B023
    return path
