"""Upload a saved network to the Hugging Face hub: config, weights, evaluation and model card, in one commit."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..system import bounded_json, regular_file
from . import config_file, hub
from .model_card import Row, model_card
from .weights import DamagedFile, verify

CARD, RECIPE = "README.md", "recipe.json"
STEP = re.compile(r"step-(\d+)", re.ASCII)
NEEDED = ("set", "quantity", "value", "stderr", "n", "unit", "is_bound")
"""Keys that every row of eval.json has."""


def push(
    name: str,
    folder: Path,
    *,
    parameters: int,
    private: bool | None = None,
    license: str | None = None,
    rows: Sequence[Row] | None = None,
) -> str:
    """Upload a folder of `save_pretrained` or a checkpoint of a run; returns `user/name@COMMIT`."""
    if not isinstance(name, str) or "@" in name or not hub.is_name(name):
        raise ValueError(f"name must be user/name, such as 'ada/novels', got {name!r}.")
    config = config_file.read(folder)
    weights = config_file.weight_files(config)
    for file in weights:
        verify(folder / file, config["sha256"][file])
    evaluation = None
    if rows is None:
        evaluation = evaluation_of(folder, name)
        rows = evaluation["rows"] if evaluation else []
    client = hub.hub_client()
    card = model_card(name, config, rows, parameters=parameters, license=license)
    content: dict[str, Path | bytes] = {file: folder / file for file in (config_file.CONFIG, *weights)}
    if evaluation:
        content[hub.EVALUATION] = (json.dumps(evaluation, indent=1) + "\n").encode()
    content[CARD] = card.encode()
    with hub.hub_errors(name):
        return _commit(client, name, content, private)


def _commit(client: Any, name: str, content: Mapping[str, Path | bytes], private: bool | None) -> str:
    """Make the repository unless it exists, and write all files in one commit; weights of earlier saves go."""
    api = client.HfApi()
    api.create_repo(name, private=private, exist_ok=True)
    files = [file.rfilename for file in api.model_info(name, timeout=hub.TIMEOUT).siblings or []]
    hub.check_files(name, files)
    old = [file for file in files if config_file.WEIGHTS.fullmatch(file) or file == hub.EVALUATION]
    operations: list[Any] = [client.CommitOperationDelete(file) for file in old if file not in content]
    operations += [
        client.CommitOperationAdd(file, data if isinstance(data, bytes) else str(data))
        for file, data in content.items()
    ]
    done = api.create_commit(name, operations, commit_message="Upload a network of hopflow")
    return f"{name}@{done.oid}"


def evaluation_of(folder: Path, name: str) -> dict[str, Any] | None:
    """eval.json of a run or of a saved network, with the rows of this checkpoint only and without local names."""
    step, home = _home(folder)
    file = home / hub.EVALUATION
    if not file.is_file():
        return None
    try:
        content = bounded_json.loads(regular_file.read(file, hub.LARGEST_EVALUATION))
        rows = [dict(row) for row in content["rows"]]
        if missing := [key for row in rows for key in NEEDED if key not in row]:
            raise ValueError(f"a row has no {missing[0]}")
        hashes = (None, _recipe_hash(home))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFile(f"{file} is damaged: {error}") from None
    if step is not None:
        rows = [row for row in rows if row.get("checkpoint") in (None, step) and row.get("recipe_hash") in hashes]
    return {**content, "rows": [{**row, "run": name} for row in rows]} if rows else None


def _home(folder: Path) -> tuple[int | None, Path]:
    """The step of a checkpoint and its run; None and the folder itself for a saved network."""
    folder = folder.absolute()
    step = STEP.fullmatch(folder.name)
    if step is None or folder.parent.name != "checkpoints":
        return None, folder
    return int(step[1]), folder.parent.parent


def _recipe_hash(home: Path) -> str | None:
    file = home / RECIPE
    if not file.is_file():
        return None
    found: str | None = bounded_json.loads(regular_file.read(file, hub.LARGEST_EVALUATION))["recipe_hash"]
    return found
