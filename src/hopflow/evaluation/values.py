"""Values: what a row of an evaluation is the mean of, sequence by sequence, beside eval.json; it need not be there.

With them two runs are compared on the same sequences, and what those share does not count as error.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from .. import atomic
from .rows import Row

FILE = "eval-values.safetensors"


def name(row: Row) -> str:
    """Of the tensor that belongs to a row."""
    return hashlib.sha256(row.key.encode()).hexdigest()[:16]


def read(folder: Path) -> dict[str, Float[Tensor, " n"]]:
    """For each row that has them one number per sequence, in the order of the set; of a perplexity the nats."""
    file = folder / FILE
    if not file.is_file():
        return {}
    try:
        return safetensors.torch.load(file.read_bytes())
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{file} is damaged: {error}\nremove it; differences are then not paired") from None


def keep(folder: Path, rows: Sequence[Row]) -> None:
    """Those of these rows, new or known, and no others; what is damaged is made anew as far as it can be."""
    try:
        known = read(folder)
    except ValueError:
        known = {}
    found = {name(row): known[name(row)] for row in rows if not row.each and name(row) in known}
    found |= {name(row): torch.tensor(row.each, dtype=torch.float64) for row in rows if row.each}
    if found or known:
        write(folder, found)


def write(folder: Path, values: Mapping[str, Float[Tensor, " n"]]) -> None:
    """By the names of their rows."""
    tensors = {key: value.detach().cpu().double().contiguous() for key, value in values.items()}
    atomic.write(folder / FILE, safetensors.torch.save(tensors))
