"""Metrics: one JSON object per logged step, the same as CSV, and TensorBoard where it is installed."""

import csv
import io
import json
import math
from collections.abc import Container, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import atomic

Row = Mapping[str, int | float | str | bool | None]

COLUMNS = (
    "step",
    "loss",
    "grad_norm",
    "lr",
    "tokens_per_s",
    "seconds",
    "memory_bytes",
    "ot_cost",
    "ot_independent_cost",
    "ot_marginal_error",
    "ot_wait_share",
    "ot_seconds",
    "ot_workers",
    "b0_ppl",
    "b0_se",
    "b0_n",
    "bn_ppl",
    "bn_se",
    "bn_n",
    "nll",
    "nll_se",
    "nll_n",
    "jumps",
    "jumps_se",
    "jumps_n",
    "precision",
    "recipe_hash",
)
"""Of the CSV; the JSON lines may hold more."""


class Metrics:
    """`metrics.jsonl`, `metrics.csv` and `tensorboard/` of a run folder, from a step on.

    Rows of that step and later ones are of a run that was cut off after its last checkpoint: they are written anew.
    """

    def __init__(self, folder: Path, start: int) -> None:
        rows = [row for row in read(folder / "metrics.jsonl") if row["step"] < start]
        atomic.write(
            folder / "metrics.jsonl", "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()
        )
        atomic.write(folder / "metrics.csv", _table(rows, header=True).encode())
        self._json = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._csv = (folder / "metrics.csv").open("a", encoding="utf-8", newline="")
        self._board = _board(folder / "tensorboard", start)

    def add(self, row: Row) -> None:
        bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        if bad:
            raise ValueError(f"{bad[0]} = {row[bad[0]]} at step {row['step']} is not a number and is not reported")
        self._json.write(f"{json.dumps(row, allow_nan=False)}\n")
        self._csv.write(_table([row], header=False))
        self._json.flush()
        self._csv.flush()
        if self._board:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self._board.add_scalar(key, value, row["step"])

    def close(self) -> None:
        self._json.close()
        self._csv.close()
        if self._board:
            self._board.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; what a power cut has left of the last lines is left out."""
    rows: list[dict[str, Any]] = []
    if not file.exists():
        return rows
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            break
        rows.append(row)
    return rows


def best(rows: list[dict[str, Any]], among: Container[int] | None = None) -> dict[str, Any] | None:
    """The row with the lowest number on held-out text; `among` allows only rows after these numbers of steps."""
    for key in ("b0_ppl", "bn_ppl", "nll"):
        if found := [row for row in rows if key in row and (among is None or row["step"] + 1 in among)]:
            return min(found, key=lambda row: float(row[key]))
    return None


def _table(rows: list[Any], header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _board(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # the extra `track` is not installed
        return None
    return SummaryWriter(str(folder), purge_step=start)
