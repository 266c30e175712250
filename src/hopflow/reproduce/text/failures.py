"""Cells of the text study that failed: one JSON file each, so that the page can list them."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from ...system import atomic
from .cell import file_name

FOLDER = "failed"


@dataclass(frozen=True)
class Failure:
    """A cell that raised an error."""

    budget: str
    variant: str
    seed: int
    error: str
    """The type and the first line of the error."""
    commit: str | None
    device: str
    seconds: float

    def write(self, folder: Path) -> Path:
        """Write the record into the subfolder of failures."""
        path = failure_path(folder, self.budget, self.variant, self.seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, (json.dumps(asdict(self)) + "\n").encode())
        return path


_ADAPTER = TypeAdapter(Failure)


def failure_path(folder: Path, budget: str, variant: str, seed: int) -> Path:
    """The file that records the failure of a cell."""
    return folder / FOLDER / file_name(budget, variant, seed)


def read_failures(folder: Path, budget: str) -> Iterator[Failure]:
    """The failures of a budget, in the order of file names; a cell that succeeded later stays listed."""
    for path in sorted((folder / FOLDER).glob(f"{budget}-*.json")):
        yield _ADAPTER.validate_json(path.read_bytes())
