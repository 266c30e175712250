"""Settings of `hopflow bench`, each declared once."""

from typing import Literal

from .setting_types import (
    DEVICE,
    SIZE,
    CommandSettings,
    Count,
    Flag,
    Integer,
    Integers,
    Length,
    Positive,
    Seed,
    by_device,
    setting,
)

TOKENS, VOCABULARY = "tokens per sequence", "vocabulary size"


class BenchTrainSettings(CommandSettings):
    """Settings of `hopflow bench train`."""

    batch: Count | None = by_device(16, 512, "sequences per step")
    length: Length | None = by_device(64, 128, TOKENS)
    tokens: Integer | None = by_device(2000, 50257, VOCABULARY, ge=2)
    size: str | None = by_device("tiny", "small", SIZE)
    steps: Positive | None = by_device(5, 40, "timed steps per variant")
    source: Literal["all", "uniform", "multimask"] = setting(
        "all", "source of the flow: uniform (loss at every position), multimask (loss at masks), or both"
    )
    seed: Seed = setting(0, "random seed")
    device: str = setting("auto", DEVICE)


class BenchSampleSettings(CommandSettings):
    """Settings of `hopflow bench sample`."""

    n: Count | None = by_device(16, 2048, "number of sequences")
    length: Length = setting(128, TOKENS)
    tokens: Integer | None = by_device(5000, 50257, VOCABULARY, ge=2)
    size: str | None = by_device("tiny", "small", SIZE)
    steps: Integers = setting((32, 128, 1024), "sampler steps, separated by commas")
    source: Literal["all", "mask", "multimask", "bag_of_words", "uniform"] = setting("all", "source of the flow")
    seed: Seed = setting(0, "random seed")
    device: str = setting("auto", DEVICE)


class BenchServeSettings(CommandSettings):
    """Settings of `hopflow bench serve`."""

    n: Count | None = by_device(64, 256, "number of requests, for one sequence each")
    clients: Count = setting(16, "clients at once")
    length: Length = setting(128, TOKENS)
    tokens: Integer | None = by_device(5000, 50257, VOCABULARY, ge=2)
    size: str | None = by_device("tiny", "small", SIZE)
    steps: Length = setting(32, "sampler steps")
    source: Literal["all", "mask", "multimask", "bag_of_words", "uniform"] = setting(
        "all", "source of the flow; all is mask and uniform"
    )
    seed: Seed = setting(0, "random seed")
    device: str = setting("auto", DEVICE)


class BenchEvalSettings(CommandSettings):
    """Settings of `hopflow bench eval`."""

    n: Count | None = by_device(32, 1024, "number of sequences")
    length: Length | None = by_device(64, 128, TOKENS)
    tokens: Integer | None = by_device(1000, 50257, VOCABULARY, ge=2)
    size: str | None = by_device("tiny", "small", SIZE)
    draws: Count = setting(8, "Monte Carlo draws per sequence")
    source: Literal["all", "mask", "multimask", "bag_of_words", "uniform"] = setting(
        "all", "source of the flow; all is mask and uniform"
    )
    seed: Seed = setting(0, "random seed")
    device: str = setting("auto", DEVICE)


class BenchOTSettings(CommandSettings):
    """Settings of `hopflow bench ot`."""

    full: Flag = setting(False, "true: time every size, length and embedding width; false: a few")
    n: Count | None = setting(None, "sequences per OT batch", shown="64, 512 and 2048")
    seed: Seed = setting(0, "random seed")
