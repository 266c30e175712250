"""A token cost from a file: a table of costs, or of similarities such as BLOSUM62."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..costs import TokenMatrix
from ..system import regular_file
from .tokenizers import Tokenizer

LARGEST = 1 << 24
"""Bytes of a table, which usually has a few thousand."""


def token_cost(path: str | Path, tokenizer: Tokenizer, masks: int = 0) -> TokenMatrix:
    """The cost of replacing one token by another, from a text file with a table.

    The first line names the columns, every other line begins with the name of its row; lines that begin with # are
    comments. A table whose diagonal is 0 contains costs. Any other table contains similarities S (BLOSUM, PAM), and
    the cost is s(a, b) = (S(a, a) + S(b, b))/2 - S(a, b). The end-of-row token and masks are not in the table: their
    cost is the largest between two tokens of the vocabulary.
    """
    names, table = _read(Path(path).expanduser())
    similar = bool(np.diagonal(table).any())
    costs = (np.diagonal(table)[:, None] + np.diagonal(table)) / 2 - table if similar else table
    if (costs < 0).any():
        a, b = (int(place[0]) for place in np.nonzero(costs < 0))
        raise ValueError(f"{path}: the cost from {names[a]} to {names[b]} is {costs[a, b]:g}; costs must be ≥ 0")
    ids = [i for i in range(tokenizer.size) if i != tokenizer.end]
    places = [names.index(symbol) if (symbol := tokenizer.decode([i])) in names else -1 for i in ids]
    if -1 in places:
        missing = tokenizer.decode([ids[places.index(-1)]])
        raise ValueError(f"{path} has no row for the token {missing!r}: add it, or use another cost")
    used = costs[np.ix_(places, places)]
    out = np.full((tokenizer.size + masks,) * 2, used.max())
    np.fill_diagonal(out, 0.0)
    out[np.ix_(ids, ids)] = used
    return TokenMatrix(tuple(tuple(row) for row in out.tolist()))


def _read(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    try:
        text = regular_file.read(path, LARGEST).decode("utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{path} is not a table of costs: {error}") from None
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    names = lines[0] if lines else []
    try:
        rows = {line[0]: [float(number) for number in line[1:]] for line in lines[1:]}
        table = np.array([rows[name] for name in names], np.float64)
    except (ValueError, KeyError):
        table = np.empty((0, 0))
    squared = table.shape == (len(names), len(names)) and len(lines) == len(set(names)) + 1
    if not names or not squared or not np.isfinite(table).all():
        raise ValueError(
            f"{path} is not a table of costs: expected a line of names, then one line per name with as many numbers"
        )
    return names, table
