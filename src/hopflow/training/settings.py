"""Settings: the numbers of a training run."""

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, get_args

from ..hints import did_you_mean

HELP, ROLE = "help", "role"
LEARNS = "what is learned"
RUNS = "how it runs"
MOST = 10**9
"""Of every number; far beyond use, and far below where the arithmetic of tensors overflows."""


def learns(default: Any, help: str) -> Any:
    """A key that decides what is learned: a run that goes on must keep it."""
    return field(default=default, metadata={HELP: help, ROLE: LEARNS})


def runs(default: Any, help: str) -> Any:
    """A key that only decides how the run goes: it may change when the run goes on."""
    return field(default=default, metadata={HELP: help, ROLE: RUNS})


@dataclass(frozen=True)
class Settings:
    """How long, how much at once, how fast, and how it runs."""

    steps: int = learns(1000, "optimizer steps in all; a run with a constant rate may be given more later")
    batch: int = learns(64, "sequences of a step, over all processes")
    accumulate: int = runs(1, "parts that a process takes its share of the batch in, to save memory")
    ot_batch: int | None = learns(None, "sequences that are coupled at once, a multiple of batch; as many as batch")
    ot_ema: float = learns(0.0, "decay of the embedding table's average that the OT cost reads; 0 reads the table")
    weight_ema: float = learns(0.0, "decay of the weights' average that is sampled and evaluated; 0 keeps none")
    ahead: int = learns(
        2, "how many OT batches earlier the embedding table is read: couplings are computed so far ahead"
    )
    lr: float = learns(3e-4, "learning rate after the warm-up")
    warmup: int = learns(100, "steps in which the rate rises to lr")
    rate: str = learns("constant", "constant, or cosine: down to a tenth of lr at the last step")
    beta1: float = learns(0.9, "AdamW's average of gradients")
    beta2: float = learns(0.999, "AdamW's average of squared gradients")
    adam_eps: float = learns(1e-8, "AdamW's floor of the second average's root")
    weight_decay: float = learns(0.0, "AdamW's pull of the weights towards 0")
    clip: float = learns(1.0, "the longest gradient taken as it is")
    seed: int = learns(0, "decides data order, noise, times, pairs and dropout")
    device: str = runs("auto", "auto, cpu, cuda, cuda:1, mps")
    precision: str = runs("auto", "auto: bf16 on a GPU that has it; or float32, bf16")
    deterministic: bool = runs(False, "only operations that repeat to the bit; slower on a GPU")
    compile: bool = runs(False, "compile the network")
    threads: int | None = runs(None, "CPU threads of torch; by default the fastest number, measured at the start")
    workers: int | None = runs(
        None, "processes that solve couplings; by default more are started while steps wait over 1 % of the time"
    )
    log_every: int = runs(10, "steps between two lines of metrics")
    save_every: int = runs(500, "steps between two checkpoints")
    save_minutes: float = runs(10.0, "minutes without a checkpoint after which one is saved between; 0 = off")
    keep: int = runs(2, "checkpoints that are kept, the newest ones")
    eval_every: int = runs(500, "steps between two looks at held-out text; 0 looks at the end only")
    eval_rows: int = runs(64, "held-out sequences of such a look")
    eval_samples: int = runs(16, "sequences drawn at such a look")
    eval_steps: int = runs(32, "sampler steps of those sequences")

    def __post_init__(self) -> None:
        for key in fields(self):
            value, kinds = getattr(self, key.name), get_args(key.type) or (key.type,)
            if int in kinds and value is not None:
                _require(isinstance(value, Integral) and not isinstance(value, bool), key.name, "a whole number", self)
            if float in kinds:
                _require(isinstance(value, Real) and not isinstance(value, bool), key.name, "a number", self)
        for name in ("steps", "batch", "accumulate", "log_every", "save_every", "keep", "eval_steps"):
            _require(getattr(self, name) >= 1, name, "at least 1", self)
        for name in (
            "warmup",
            "ahead",
            "eval_every",
            "eval_rows",
            "eval_samples",
            "seed",
            "weight_decay",
            "save_minutes",
        ):
            _require(getattr(self, name) >= 0, name, "0 or more", self)
        _require(self.workers is None or self.workers >= 0, "workers", "0 or more", self)
        _require(self.threads is None or self.threads >= 1, "threads", "at least 1", self)
        for name in ("ot_ema", "weight_ema", "beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, "at least 0 and below 1", self)
        for name in ("lr", "clip", "adam_eps"):
            _require(0 < getattr(self, name) <= MOST, name, f"above 0, and at most {MOST:,}", self)
        for name in ("weight_decay", "save_minutes"):
            _require(getattr(self, name) <= MOST, name, f"at most {MOST:,}", self)
        for key in fields(self):
            value = getattr(self, key.name)
            if isinstance(value, int) and key.name != "seed":
                _require(value <= MOST, key.name, f"at most {MOST:,}", self)
        _require(self.seed < 1 << 63, "seed", "below 2^63", self)
        if self.ot_batch is not None and (self.ot_batch < self.batch or self.ot_batch % self.batch):
            near = self.batch * max(1, self.ot_batch // self.batch)
            raise ValueError(
                f"ot_batch must be a multiple of batch = {self.batch}; got {self.ot_batch}. Try ot_batch={near}"
            )
        _one_of("rate", self.rate, ("constant", "cosine"))
        _one_of("precision", self.precision, ("auto", "float32", "bf16"))

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> "Settings":
        """From keys and values; a key that does not exist is named with the nearest one that does."""
        known = [f.name for f in fields(cls)]
        for key in keys:
            if key not in known:
                raise ValueError(f"unknown key {key!r}; {nearest(key, known)}")
        return cls(**keys)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.rate == "constant":
            return self.lr
        part = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * min(part, 1.0)))


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
"""What other projects call some keys."""


def nearest(word: str, known: list[str]) -> str:
    """A hint at the known word that was meant, if there is one; optimizer.lr means lr."""
    last = word.lower().rpartition(".")[2]
    meant = last if last in known else ELSEWHERE.get(last)
    if hint := did_you_mean(meant if meant in known else word.lower(), known):
        return hint
    return f"known are: {', '.join(known[:9])}" + (f" and {len(known) - 9} more" if len(known) > 9 else "")


def is_learned(key: Field[Any]) -> bool:
    return bool(key.metadata.get(ROLE) == LEARNS)


def _require(holds: bool, name: str, what: str, settings: Settings) -> None:
    if not holds:
        raise ValueError(f"{name} must be {what}; got {getattr(settings, name)!r}")


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}")
