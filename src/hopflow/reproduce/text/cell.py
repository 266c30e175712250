"""A cell of the text study: everything that was measured of one variant with one seed, as one JSON file.

A cell cannot be measured again, since its checkpoint stays on the machine that trained it. So it holds the nats of
every sequence, the judge's nats of every sample, and what is needed to repeat it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ...bounds.estimate import for_json
from ...system import atomic

SCHEMA = 1
TEXTS = 4
"""Sample texts that a cell keeps of each point."""
REPEATED = "repeated"
"""Subfolder of cells that were run a second time, to compare machines."""


@dataclass(frozen=True)
class BoundValues:
    """A bound on one set of sequences: the nats of each of them."""

    set: str
    quantity: str
    eta: float | None
    steps: int | None
    """Sampler steps that the bound refers to; None is continuous time."""
    paths: int | None
    """Reversed paths per sequence, of br."""
    proposal: str | None
    """How br draws reversed paths: from the context law of the network, or from its x0 head."""
    is_bound: bool
    length: int
    nats: list[float | None]
    """Of each sequence; None is infinite."""
    draw_stderr: float | None
    """The Monte Carlo error of the mean nats on these very sequences."""
    calls: int
    dtype: str
    seconds: float


@dataclass(frozen=True)
class JudgeScores:
    """What one judge says of the samples of one point: nats and judge tokens of each sample."""

    nats: list[float]
    tokens: list[int]
    bytes: list[int]


@dataclass(frozen=True)
class SamplePoint:
    """Samples drawn with one number of steps and one η."""

    steps: int | None
    eta: float | None
    n: int
    entropy_bits: float
    entropy_bits_stderr: float | None
    jumps: float | None
    jumps_stderr: float | None
    calls: float | None
    seconds: float
    judges: dict[str, JudgeScores]
    texts: list[str]
    """The first four, uncurated; all of them as long as a judge has not read them."""


@dataclass(frozen=True)
class MeasuredValue:
    """A number with its standard error."""

    value: float | None
    stderr: float | None


@dataclass(frozen=True)
class Cell:
    """One variant with one seed."""

    schema: int
    budget: str
    variant: str
    seed: int
    protocol: dict[str, Any]
    protocol_sha256: str
    recipe: dict[str, Any]
    recipe_hash: str
    corpus: dict[str, Any]
    machine: dict[str, Any]
    commit: str | None
    parameters: int
    training_loss: list[tuple[int, float]]
    """(step, mean loss since the row before), in nats per token or as the objective defines it."""
    training: dict[str, float | None]
    """Seconds, tokens per second, peak memory in bytes; means over the second half: OT costs, seconds of a coupling,
    share of the time spent waiting for couplings, tokens per second."""
    bounds: list[BoundValues]
    samples: list[SamplePoint]
    transport: dict[str, MeasuredValue]
    """Hops and transport costs: predicted from pairs, and counted along samples."""
    judges: dict[str, dict[str, Any]]
    """The identity of each judge, and the autoregressive judge's own NLL on the test set."""
    seconds: dict[str, float]
    peak_bytes: dict[str, float] = field(default_factory=dict)
    """Peak GPU memory of each part."""
    x0_head: str | None = None
    """The class and the number of parameters of the head that predicts x0."""

    @property
    def name(self) -> str:
        return file_name(self.budget, self.variant, self.seed)

    def bound(self, set: str, quantity: str, **keys: Any) -> BoundValues | None:
        """The bound with this name, η, steps and paths, if it was measured."""
        for found in self.bounds:
            if (found.set, found.quantity) == (set, quantity) and all(getattr(found, k) == v for k, v in keys.items()):
                return found
        return None

    def write(self, folder: Path) -> Path:
        """Write the file by one rename."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        content = json.dumps(for_json(_rounded(asdict(self))), ensure_ascii=False, separators=(",", ":"))
        atomic.write(path, (content + "\n").encode())
        return path


_ADAPTER = TypeAdapter(Cell)


def kept_texts(texts: list[str], scores: Mapping[str, JudgeScores], judges: Sequence[str]) -> list[str]:
    """The first texts; all of them if one of the judges has not scored them yet."""
    return texts[:TEXTS] if all(judge in scores for judge in judges) else texts


def file_name(budget: str, variant: str, seed: int) -> str:
    """The name of the file of a cell."""
    return f"{budget}-{variant}-seed{seed}.json"


def read(path: Path) -> Cell:
    """A cell from its file; a ValueError names the first thing that is wrong with it."""
    try:
        found: Cell = _ADAPTER.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path.name} is not a cell of the text study: {place}: {first['msg']}") from None
    if found.schema != SCHEMA:
        raise ValueError(f"{path.name} has schema {found.schema}; this version reads schema {SCHEMA}")
    return found


def read_all(folder: Path) -> Iterator[Cell]:
    """Every cell of a folder, in the order of file names."""
    for path in sorted(folder.glob("*-seed*.json")):
        yield read(path)


def schema() -> dict[str, Any]:
    """The JSON schema of a cell; a test keeps it equal to the file that is checked in."""
    return _ADAPTER.json_schema()


def _rounded(value: Any) -> Any:
    """Numbers with seven significant digits: more are noise, and the files are kept in the repository."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    return value
