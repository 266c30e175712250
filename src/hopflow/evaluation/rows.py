"""Row: one number of an evaluation, with all that is needed to know what it says."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..estimate import for_json, plus_minus

TRANSPORT = "transport"
"""The set of what samples and pairs pay on the way."""
DECIDES = (
    *("set", "data_sha256", "detokenised", "length", "quantity", "eta", "steps", "temperature"),
    *("coupling", "cost", "ot_n", "eps", "judge_hash", "retokenised"),
    *("recipe_hash", "checkpoint", "weights", "dtype", "seed"),
)
"""What makes two rows estimates of the same number, from the same draws."""
DECIDES_TOO = ("paths",)
"""Likewise, in the rows that have them: the keys of all other rows stay as earlier versions wrote them."""


@dataclass(frozen=True)
class Row:
    """A value with its standard error over n independent units; the names are those of every table and file.

    `stderr` is NaN where it is unknown, as for a single unit (n = 1), and null in JSON. A `value` may be infinite, null
    in JSON; then `more["infinite"]` counts the units to which the network gives probability 0. `eta` is None where
    there is no corrector, `recipe_hash` where there is no run. What only some rows have is in `more`: the sampler that
    a number refers to, its steps, the coupling, the judge, the seed.
    """

    run: str
    set: str
    quantity: str
    value: float
    stderr: float
    n: int
    unit: str
    is_bound: bool
    eta: float | None
    dtype: str
    recipe_hash: str | None
    more: Mapping[str, Any] = field(default_factory=dict)
    each: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """What the value is the mean of, sequence by sequence, where it is known; of a perplexity the nats. Not in JSON."""

    def __post_init__(self) -> None:
        unknown = math.isnan(self.stderr) and (self.n == 1 or self.is_infinite)
        if not ((math.isfinite(self.value) or self.is_infinite) and (unknown or math.isfinite(self.stderr))):
            raise ValueError(f"{self.quantity} on {self.set} is {self.value} ± {self.stderr}: no number to report")
        if twice := self.more.keys() & set(NAMES):
            raise ValueError(f"a row has its own {', '.join(sorted(twice))}: leave it out of `more`")

    @property
    def is_infinite(self) -> bool:
        return self.value == math.inf and "infinite" in self.more

    @property
    def remark(self) -> str | None:
        """Why it is infinite, where it is."""
        if not self.is_infinite:
            return None
        count, units = self.more["infinite"], "minibatches" if "ot_n" in self.more else "sequences"
        why = f"the network gives probability 0 to {count:,} of {self.n:,} {units}"
        return f"{self.quantity} is infinite: {why if count else 'it is larger than any floating-point number'}"

    def as_json(self) -> dict[str, Any]:
        """Flat: the names every row has, then its own; null for what is unknown or infinite."""
        found: dict[str, Any] = for_json({**{name: getattr(self, name) for name in NAMES}, **self.more})
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Row":
        if missing := [name for name in NAMES if name not in content]:
            raise ValueError(f"a row lacks {', '.join(missing)}")
        own = {name: content[name] for name in NAMES}
        more = {name: value for name, value in content.items() if name not in NAMES}
        if own["value"] is None and type(more.get("infinite")) is int:
            more |= {name: math.inf for name in ("nats", "bits_per_char") if name in more}
            own["value"] = math.inf
        for name in ("value", "stderr", "eta"):  # JSON may say 2 for 2.0
            own[name] = None if own[name] is None else float(own[name])
        if own["stderr"] is None or (own["n"] == 1 and own["stderr"] == 0):  # earlier versions wrote 0 for unknown
            own["stderr"] = math.nan
        return cls(**own, more=more)

    @property
    def key(self) -> str:
        """Equal for two rows that estimate the same number from the same draws."""
        content = self.as_json()
        own = [[name, content[name]] for name in DECIDES_TOO if content.get(name) is not None]
        return json.dumps([content.get(name) for name in DECIDES] + own)

    @property
    def paths(self) -> str | None:
        """The reversed paths of br, as "1 path" or "8 paths"; None for every other quantity."""
        count = self.more.get("paths")
        return None if count is None else f"{count} path{'s' * (count > 1)}"

    def __str__(self) -> str:
        bound = "a bound" if self.is_bound else "exact" if self.more.get("exact") else "not a bound"
        return f"{self.set}: {self.quantity} {plus_minus(self.value, self.stderr)} {self.unit} (n={self.n}, {bound})"


NAMES = tuple(f.name for f in fields(Row) if f.name not in ("more", "each"))


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """All of them; of two estimates of the same number the one from more sequences, of equally many the newer.

    Never by their errors: among few sequences the spread may look small by chance.
    """
    found = {row.key: row for row in old}
    for row in new:
        before = found.get(row.key)
        if before is None or row.n >= before.n:
            found[row.key] = row
    return list(found.values())


def fingerprint(content: Mapping[str, Any]) -> str:
    """16 hex digits that name plain data, such as a judge's identity."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
