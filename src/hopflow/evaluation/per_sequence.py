"""eval-values.safetensors: for each row of eval.json the values per sequence that it averages.

With them `hopflow compare` pairs two runs sequence by sequence, which lowers the error of a difference. The file is
optional.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from ..system import atomic, regular_file
from .rows import Row

FILE = "eval-values.safetensors"
LARGEST = 1 << 30
"""Size limit of the file, in bytes."""


def name(row: Row) -> str:
    """The name of the tensor that belongs to a row."""
    return hashlib.sha256(row.key.encode()).hexdigest()[:16]


def read(folder: Path) -> dict[str, Float[Tensor, " n"]]:
    """Per row one number for each sequence, in the order of the set; nats where the row is a perplexity."""
    file = folder / FILE
    try:
        return safetensors.torch.load(regular_file.read(file, LARGEST))
    except FileNotFoundError:
        return {}
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{file} is damaged: {error}\nremove it; differences are then not paired") from None


def keep(folder: Path, rows: Sequence[Row]) -> None:
    """Store the values of these rows, new or stored before, and no others; a damaged file is replaced."""
    try:
        known = read(folder)
    except ValueError:
        known = {}
    found = {name(row): known[name(row)] for row in rows if not row.each and name(row) in known}
    found |= {name(row): torch.tensor(row.each, dtype=torch.float64) for row in rows if row.each}
    if found or known:
        write(folder, found)


def write(folder: Path, values: Mapping[str, Float[Tensor, " n"]]) -> None:
    """Write tensors by the names of their rows."""
    tensors = {key: value.detach().cpu().double().contiguous() for key, value in values.items()}
    atomic.write(folder / FILE, safetensors.torch.save(tensors))
