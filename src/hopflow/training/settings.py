"""The settings of a training run: each with its type, range, default and help."""

import warnings
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from importlib import import_module
from numbers import Integral, Real
from typing import Any, get_args

from ..system.hints import did_you_mean

HELP, ROLE, RANGE = "help", "role", "range"
LEARNS = "what is learned"
RUNS = "how it runs"
MOST = 10**9
"""The largest value of every number: far beyond use, and far below where the arithmetic of tensors overflows."""


@dataclass(frozen=True)
class Range:
    """The allowed values of a number: at least or above a lower limit, below an upper one."""

    at_least: int | None = None
    above: int | None = None
    below: int | None = None

    def __contains__(self, value: Any) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (value < self.below if self.below is not None else value <= MOST)
        )

    def __str__(self) -> str:
        below = "2^63" if self.below == 1 << 63 else f"{self.below}"
        limits = ((self.at_least, f"≥ {self.at_least}"), (self.above, f"> {self.above}"), (self.below, f"< {below}"))
        return " and ".join(text for limit, text in limits if limit is not None)


POSITIVE_COUNT, COUNT = Range(at_least=1), Range(at_least=0)
POSITIVE, DECAY = Range(above=0), Range(at_least=0, below=1)
# the number may come from a file, and more threads or processes than a machine can have would stop it
THREADS, WORKERS = Range(at_least=1, below=1025), Range(at_least=0, below=257)


def learns(default: Any, help: str, allowed: Range | None = None) -> Any:
    """A setting that decides what is learned: a run can be resumed only with the same value."""
    return field(default=default, metadata={HELP: help, ROLE: LEARNS, RANGE: allowed})


def runs(default: Any, help: str, allowed: Range | None = None) -> Any:
    """A setting that decides only how the run is computed: it may change when the run is resumed."""
    return field(default=default, metadata={HELP: help, ROLE: RUNS, RANGE: allowed})


@dataclass(frozen=True)
class Settings:
    """The settings of a training run: steps, batches, couplings, optimizer, device, logging and evaluation."""

    steps: int = learns(
        1000, "number of optimizer steps; may be raised when a run with rate=constant is resumed", POSITIVE_COUNT
    )
    batch: int = learns(64, "sequences per step, over all processes", POSITIVE_COUNT)
    accumulate: int = runs(1, "gradient accumulation: number of micro-batches per step", POSITIVE_COUNT)
    ot_batch: int | None = learns(None, "OT batch: sequences that are coupled together; a multiple of batch")
    ot_ema: float = learns(0.0, "EMA decay of the embedding table that OT costs use; 0: no averaging", DECAY)
    weight_ema: float = learns(0.0, "EMA decay of the weights that are sampled and evaluated; 0: no averaging", DECAY)
    label_dropout: float = learns(
        0.1, "only for data with labels: probability of training a sequence without its label, for guidance", DECAY
    )
    ahead: int = learns(2, "how many OT batches ahead couplings are computed", COUNT)
    lr: float = learns(3e-4, "learning rate after the warm-up", POSITIVE)
    warmup: int = learns(100, "steps of linear learning rate warm-up", COUNT)
    rate: str = learns("constant", "learning rate schedule: constant, or cosine (decays to lr/10 at the last step)")
    beta1: float = learns(0.9, "AdamW beta1, decay of the average of gradients", DECAY)
    beta2: float = learns(0.999, "AdamW beta2, decay of the average of squared gradients", DECAY)
    adam_eps: float = learns(1e-8, "AdamW epsilon", POSITIVE)
    weight_decay: float = learns(0.0, "AdamW weight decay", COUNT)
    clip: float = learns(1.0, "clip the gradient norm to this value", POSITIVE)
    seed: int = learns(
        0, "random seed of data order, noise, times, pairs and dropout", Range(at_least=0, below=1 << 63)
    )
    device: str = runs("auto", "auto, cpu, cuda, cuda:1 or mps")
    precision: str = runs("auto", "auto (bf16 on a GPU that supports it), float32 or bf16")
    deterministic: bool = runs(False, "use deterministic algorithms only; slower on a GPU")
    compile: bool = runs(False, "compile the network with torch.compile")
    threads: int | None = runs(None, "CPU threads of torch; measured: the fastest number, tried at the start", THREADS)
    workers: int | None = runs(
        None, "processes that solve couplings; more are started when training waits for them", WORKERS
    )
    log_every: int = runs(10, "steps between two rows of metrics", POSITIVE_COUNT)
    save_every: int = runs(500, "steps between two checkpoints", POSITIVE_COUNT)
    save_minutes: float = runs(10.0, "also save a checkpoint after this many minutes without one; 0: off", COUNT)
    keep: int = runs(
        2, "number of newest checkpoints to keep; the one with the lowest bound is kept as well", POSITIVE_COUNT
    )
    eval_every: int = runs(500, "steps between two evaluations on held-out text; 0: only at the end", COUNT)
    eval_rows: int = runs(64, "held-out sequences per evaluation", COUNT)
    eval_samples: int = runs(16, "sequences generated per evaluation", COUNT)
    eval_steps: int = runs(32, "sampler steps of the generated sequences", POSITIVE_COUNT)

    def __post_init__(self) -> None:
        for key in fields(self):
            _check_number(key, getattr(self, key.name))
        if self.ot_batch is not None and (self.ot_batch < self.batch or self.ot_batch % self.batch):
            near = self.batch * max(1, self.ot_batch // self.batch)
            raise ValueError(
                f"ot_batch must be a multiple of batch = {self.batch}, got {self.ot_batch}. Try ot_batch={near}"
            )
        _check_choice("rate", self.rate, ("constant", "cosine"))
        _check_choice("precision", self.precision, ("auto", "float32", "bf16"))

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> "Settings":
        """Settings from keys and values; an unknown key raises a ValueError that names the nearest known one."""
        known = [f.name for f in fields(cls)]
        for key in keys:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {nearest(key, known)}")
        return cls(**keys)

    def rate_at(self, step: int) -> float:
        """Deprecated name of `training.trainer.learning_rate`."""
        warnings.warn("Settings.rate_at is now training.trainer.learning_rate", DeprecationWarning, stacklevel=2)
        rate: float = import_module("hopflow.training.trainer").learning_rate(self, step)
        return rate


ELSEWHERE = {
    "learning_rate": "lr",
    "batch_size": "batch",
    "seq_len": "length",
    "max_steps": "steps",
    "iterations": "steps",
    "tokenizer": "tokens",
    "gradient_accumulation_steps": "accumulate",
    "ema": "weight_ema",
}
"""Names of settings in other projects, and the key here."""


def nearest(word: str, known: list[str]) -> str:
    """A hint at the known word that was probably meant; optimizer.lr means lr."""
    last = word.lower().rpartition(".")[2]
    meant = last if last in known else ELSEWHERE.get(last)
    if hint := did_you_mean(meant if meant in known else word.lower(), known):
        return hint
    return f"known are: {', '.join(known[:9])}" + (f" and {len(known) - 9} more" if len(known) > 9 else "")


def is_learned(key: Field[Any]) -> bool:
    """Whether a setting decides what is learned, so that a resumed run must keep it."""
    return bool(key.metadata.get(ROLE) == LEARNS)


def _check_number(key: Field[Any], value: Any) -> None:
    """Check the type and the range of a numeric setting; other settings pass."""
    kinds = get_args(key.type) or (key.type,)
    if (int not in kinds and float not in kinds) or (value is None and type(None) in kinds):
        return
    allowed: Range = key.metadata[RANGE] or Range()
    number, kind = ("an integer", Integral) if int in kinds else ("a number", Real)
    if not isinstance(value, kind) or isinstance(value, bool) or value not in allowed:
        too_large = isinstance(value, Real) and float(value) > MOST and allowed.below is None
        limits = f"at most {MOST:,}" if too_large else f"{number} {allowed}".strip()
        raise ValueError(f"{key.name} must be {limits}, got {value!r}.")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
