"""Row: one number of an evaluation with its error, and everything needed to interpret it."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..bounds.estimate import for_json, plus_minus

SAMPLES = "samples"
"""The `set` of numbers of samples."""
TRANSPORT = "transport"
"""The `set` of hops and transport costs of samples and pairs."""
ITSELF = "the text itself"
"""The `sampler` of numbers of held-out text, for comparison with samples."""
DECIDES = (
    *("set", "data_sha256", "detokenised", "length", "quantity", "eta", "steps", "temperature"),
    *("coupling", "cost", "ot_n", "eps", "judge_hash", "retokenised"),
    *("recipe_hash", "checkpoint", "weights", "dtype", "seed"),
)
"""Keys in which two rows agree if they estimate the same number from the same draws."""
DECIDES_TOO = ("paths", "sampler_label")
"""Further such keys that only some rows have; for all other rows `Row.key` stays as earlier versions wrote it."""


@dataclass(frozen=True)
class Row:
    """A value with its standard error over n independent units (sequences, or minibatches where rows are coupled).

    `stderr` is NaN where it is unknown, as for a single unit (n = 1), and null in JSON. `value` may be infinite (null
    in JSON); then `more["infinite"]` counts the units with probability 0 under the network. `eta` is None where there
    is no corrector, `recipe_hash` where there is no run. `more` has what only some rows have: the sampler that the
    number refers to, its steps, the coupling, the judge, the seed.
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
    """One value per sequence, whose mean is `value`; nats where `value` is a perplexity. May be empty; not in JSON."""

    def __post_init__(self) -> None:
        unknown = math.isnan(self.stderr) and (self.n == 1 or self.is_infinite)
        if not ((math.isfinite(self.value) or self.is_infinite) and (unknown or math.isfinite(self.stderr))):
            raise ValueError(f"{self.quantity} on {self.set} is {self.value} ± {self.stderr}: not a finite number")
        if twice := self.more.keys() & set(NAMES):
            raise ValueError(f"{', '.join(sorted(twice))} is a field of Row: leave it out of `more`")

    @property
    def is_infinite(self) -> bool:
        return self.value == math.inf and "infinite" in self.more

    @property
    def remark(self) -> str | None:
        """Why the value is infinite; None where it is finite."""
        if not self.is_infinite:
            return None
        count, units = self.more["infinite"], "minibatches" if "ot_n" in self.more else "sequences"
        why = f"the network gives probability 0 to {count:,} of {self.n:,} {units}"
        return f"{self.quantity} is infinite: {why if count else 'it is larger than any floating-point number'}"

    def as_json(self) -> dict[str, Any]:
        """A flat dictionary: the fields of every row, then those in `more`; None for unknown and infinite values."""
        found: dict[str, Any] = for_json({**{name: getattr(self, name) for name in NAMES}, **self.more})
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Row":
        if missing := [name for name in NAMES if name not in content]:
            raise ValueError(f"a row has no {', '.join(missing)}")
        own = {name: content[name] for name in NAMES}
        more = {name: value for name, value in content.items() if name not in NAMES}
        if own["value"] is None and type(more.get("infinite")) is int:
            more |= {name: math.inf for name in ("nats", "bits_per_char") if name in more}
            own["value"] = math.inf
        for name in ("value", "stderr", "eta"):  # JSON may have 2 for 2.0
            own[name] = None if own[name] is None else float(own[name])
        if own["stderr"] is None or (own["n"] == 1 and own["stderr"] == 0):  # earlier versions wrote 0 for unknown
            own["stderr"] = math.nan
        return cls(**own, more=more)

    @property
    def key(self) -> str:
        """A string that is equal for two rows that estimate the same number from the same draws."""
        content = self.as_json()
        names = (*DECIDES_TOO, "draws") if self.quantity == "planned" else DECIDES_TOO  # its mean depends on draws
        own = [[name, content[name]] for name in names if content.get(name) is not None]
        return json.dumps([content.get(name) for name in DECIDES] + own)

    @property
    def paths(self) -> str | None:
        """Number of reversed paths of br as text ("8 paths"); None for every other quantity."""
        count = self.more.get("paths")
        return None if count is None else f"{count} path{'s' * (count > 1)}"

    def __str__(self) -> str:
        bound = "a bound" if self.is_bound else "exact" if self.more.get("exact") else "not a bound"
        return f"{self.set}: {self.quantity} {plus_minus(self.value, self.stderr)} {self.unit} (n={self.n}, {bound})"


NAMES = tuple(f.name for f in fields(Row) if f.name not in ("more", "each"))


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """All rows; of two estimates of one number the one from more sequences, or the newer one if n is the same.

    Errors do not decide: with few sequences the spread may be small by chance.
    """
    found = {row.key: row for row in old}
    for row in new:
        before = found.get(row.key)
        if before is None or row.n >= before.n:
            found[row.key] = row
    return list(found.values())


def fingerprint(content: Mapping[str, Any]) -> str:
    """16 hex digits that identify plain data, such as the identity of a judge."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
