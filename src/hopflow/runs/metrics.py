"""Metrics: one JSON object per logged step, the same as CSV, and TensorBoard where it is installed."""

import csv
import io
import json
import math
import os
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..system import atomic, bounded_json, regular_file

MetricsRow = Mapping[str, int | float | str | bool | None]

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
"""The columns of the CSV file; the JSON lines may have more keys."""
JSON, CSV = "metrics.jsonl", "metrics.csv"
INFINITE = (math.inf, -math.inf)
LARGEST = 1 << 32
"""Bytes; a larger file is not read."""


class Metrics:
    """Writes `metrics.jsonl`, `metrics.csv` and `tensorboard/` of a run folder, beginning at a step.

    Rows of that step and later ones, written after the last checkpoint of an interrupted run, are removed first.
    """

    def __init__(self, folder: Path, start: int) -> None:
        self._open(folder, [row for row in read(folder / JSON) if row["step"] < start])
        self._board = _board(folder / "tensorboard", start)

    def _open(self, folder: Path, rows: list[dict[str, Any]]) -> None:
        atomic.write(folder / JSON, "".join(f"{_line(row)}\n" for row in rows).encode())
        atomic.write(folder / CSV, _table(rows, header=True).encode())
        self._json = (folder / JSON).open("a+b")
        self._csv = (folder / CSV).open("a+b")

    def add(self, row: MetricsRow) -> None:
        """Write a row; all its numbers must be finite."""
        bad = [key for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)]
        if bad:
            raise ValueError(f"{bad[0]} = {row[bad[0]]} at step {row['step']} is not finite and is not reported")
        self._json.write(f"{json.dumps(row, allow_nan=False)}\n".encode())
        self._csv.write(_table([row], header=False).encode())
        self._json.flush()
        self._csv.flush()
        if self._board:
            for key, value in row.items():
                if key != "step" and isinstance(value, int | float):
                    self._board.add_scalar(key, value, row["step"])

    def sync(self, folder: Path) -> None:
        """Flush all rows to the disk, before a checkpoint is written that includes their steps.

        If the files were removed, or the folder is a new one, they are written again from the open file.
        """
        if not (_is_at(self._json, folder / JSON) and _is_at(self._csv, folder / CSV)):
            self._json.seek(0)
            rows, _ = _parsed(self._json.read())
            self._json.close()
            self._csv.close()
            self._open(folder, rows)
        os.fsync(self._json.fileno())
        os.fsync(self._csv.fileno())

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
    """The rows of a metrics.jsonl; a damaged line is named in a warning and skipped."""
    try:
        rows, bad = _parsed(regular_file.read(file, LARGEST))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        (number, line), *_ = bad.items()
        text = f"{file}: line {number}{more} is damaged and skipped; it begins with {line[:40]!r}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return rows


def _parsed(content: bytes) -> tuple[list[dict[str, Any]], dict[int, bytes]]:
    """The rows, and the damaged lines by number; an incomplete last line is ignored."""
    rows: list[dict[str, Any]] = []
    bad: dict[int, bytes] = {}
    *lines, rest = content.split(b"\n")
    for number, line in enumerate([*lines, rest], 1):
        try:
            rows.append(_row(line))
        except (ValueError, RecursionError):
            if line.strip() and number <= len(lines):
                bad[number] = line
    return rows, bad


def _row(line: bytes) -> dict[str, Any]:
    row = bounded_json.loads(line)
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        raise ValueError("not a row: it has no step")
    return row


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _line(row: dict[str, Any]) -> str:
    """A row as JSON; NaN and infinity, which another program may have written, become null."""
    return json.dumps({key: None if value != value or value in INFINITE else value for key, value in row.items()})


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def best(rows: list[dict[str, Any]], among: Container[int] | None = None) -> dict[str, Any] | None:
    """The row with the lowest bound or NLL on held-out text; `among` restricts it to rows after these step counts."""
    for key in ("b0_ppl", "bn_ppl", "nll"):
        if found := [row for row in rows if _is_finite(row.get(key)) and (among is None or row["step"] + 1 in among)]:
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
