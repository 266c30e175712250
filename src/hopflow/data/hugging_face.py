"""Hugging Face datasets with a column `text`, written once as JSON lines."""

import hashlib
import json
from pathlib import Path
from typing import Any

from ..system import atomic
from ..system.progress import Progress
from .file_hashes import file_sha256
from .revisions import COMMIT, PinnedRevision
from .text_files import ALL, TextFiles

SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "test": "test"}


def export(name: str, cache: Path, progress: Progress, offline: bool) -> TextFiles:
    """`NAME`, `NAME:CONFIG` or `NAME@REVISION:CONFIG`; a local folder works as well. Dataset scripts are not run.

    Without a revision, the revision of the first use is used again.
    """
    try:
        import datasets
    except ImportError as error:
        raise ModuleNotFoundError(
            f"hf:{name} needs 'datasets': pip install 'hopflow[data]'", name="datasets"
        ) from error

    path, _, config = name.partition(":")
    if not path:
        raise ValueError("the name of the dataset is missing: hf:NAME, hf:NAME:CONFIG or hf:./folder")
    progress.write(f"loading {path} with datasets {datasets.__version__}")
    local = datasets.DownloadConfig(local_files_only=True) if offline else None
    try:
        path, revision = (path, None) if Path(path).exists() else _pinned(path, cache, progress, offline)
        loaded = datasets.load_dataset(path, config or None, download_config=local, revision=revision)
    except (FileNotFoundError, ConnectionError) as error:
        raise OSError(f"hf:{name} cannot be loaded: {str(error).splitlines()[0]}") from error
    splits = {SPLITS.get(split, split): data for split, data in loaded.items()}
    if "train" not in splits:
        splits = {ALL: next(iter(splits.values()))}
    return TextFiles(f"hf:{name}", {split: (_export(data, cache, progress),) for split, data in splits.items()})


def _pinned(name: str, cache: Path, progress: Progress, offline: bool) -> tuple[str, str | None]:
    """The repository and the commit to use."""
    pin = PinnedRevision("dataset", name, cache)
    if offline or COMMIT.fullmatch(pin.wanted or ""):
        return pin.name, pin.wanted
    from huggingface_hub import HfApi

    try:
        commit = str(HfApi().dataset_info(pin.name, revision=pin.wanted).sha)
    except Exception as error:  # the hub's client passes on any error of its transport
        raise ConnectionError(str(error) or type(error).__name__) from error
    pin.record(commit, (), progress)
    return pin.name, commit


def _export(data: Any, cache: Path, progress: Progress) -> Path:
    if "text" not in data.column_names:
        raise ValueError(f"the dataset has no column 'text'; it has: {', '.join(data.column_names)}")
    key = hashlib.sha256(data._fingerprint.encode()).hexdigest()[:16]
    path = cache / "hugging-face" / f"{key}.jsonl"
    seal = path.with_suffix(".sha256")
    if path.is_file():
        if seal.is_file() and seal.read_text(encoding="utf-8") == file_sha256(path, cache, progress):
            return path
        progress.write(f"{path} is damaged or incomplete: writing it again")
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with atomic.replacing(path) as file:
        for done, row in enumerate(data):
            line = f"{json.dumps({'text': row['text']})}\n".encode()
            digest.update(line)
            file.write(line)
            progress.update(lambda: f"writing {done:,} of {len(data):,} documents")  # noqa: B023
        seal.unlink(missing_ok=True)
    atomic.write(seal, digest.hexdigest().encode())
    return path
