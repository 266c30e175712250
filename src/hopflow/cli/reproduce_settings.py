"""Settings of `hopflow reproduce`, each declared once."""

from typing import Literal

from .setting_types import (
    DEVICE,
    SIZE,
    CommandSettings,
    Count,
    Flag,
    Integer,
    Length,
    Names,
    Number,
    Positive,
    Seeds,
    setting,
)


class MorseSettings(CommandSettings):
    """Settings of `hopflow reproduce morse`."""

    size: Literal["laptop", "mini", "small"] = setting(
        "laptop", "laptop: Morse code, minutes per run; mini and small (the paper's network): also characters"
    )
    seeds: Count = setting(3, "number of runs per recipe, seeds 0, 1, …")
    steps: Positive | None = setting(None, "training steps", shown="2000; 20000 for mini and small")
    samples: Count | None = setting(None, "samples per run", shown="1000; 3000 for mini and small")
    sampler_steps: Length = setting(1024, "sampler steps")
    minutes: Number | None = setting(None, "do not start a run that would end after this time", shown="no limit", gt=0)
    device: str = setting("auto", DEVICE)


class TextStudySettings(CommandSettings):
    """Settings of `hopflow reproduce text`."""

    budget: Literal["full", "characters", "laptop"] = setting(
        "full",
        "size of the study; full: on novels; characters: eight variants of a small network; laptop: two",
    )
    variants: Names = setting((), "only these variants, separated by commas", shown="all")
    seeds: Seeds = setting((), "only these seeds, separated by commas", shown="all")
    minutes: Number | None = setting(
        None, "time limit in minutes: do not start a run that would end later", shown="no limit", gt=0
    )
    expect: Number = setting(0.0, "expected minutes of a run, until a similar one has been timed on this device", ge=0)
    limit: Integer | None = setting(None, "largest number of runs; 0 trains the judge only", shown="all", ge=0)
    later: Names = setting(
        (), "judges that score the stored samples in a second call with --judge, separated by commas", shown="none"
    )
    shared: Flag = setting(False, "another process uses the device: do not compare the speed of these runs")
    repeat: Flag = setting(False, "run everything again and write to the subfolder repeated, to compare machines")
    commit: str | None = setting(None, "commit of the code, stored in the result files", shown="not stored")
    device: str = setting("auto", DEVICE)


class RectifiedStudySettings(TextStudySettings):
    """Settings of `hopflow reproduce rectified`."""

    budget: Literal["morse", "novels", "morse_laptop", "characters_laptop"] = setting(  # type: ignore[assignment]
        "morse",
        "size of the study; morse: Shakespeare in Morse code; novels: GPT-2 tokens; morse_laptop, characters_laptop: "
        "small networks, for a CPU",
    )


class NetworkSettings(CommandSettings):
    """Settings of `hopflow reproduce network`."""

    recipe: str = setting("dfm_b_exact_ema", "recipe of the flow")
    data: str = setting("novels", "text: a name of `hopflow data list`, a file or a folder")
    tokens: str = setting("bpe:4096", "tokenizer: char, byte, bpe:SIZE, gpt2, or a tokenizer file")
    size: str = setting("mini", SIZE)
    steps: Positive = setting(40_000, "training steps")
    batch: Positive = setting(512, "sequences per training step")
    minutes: Number | None = setting(None, "stop the training after this time", shown="no limit", gt=0)
    rows: Positive = setting(256, "held-out sequences of the bounds")
    samples: Count = setting(128, "samples that are measured")
    commit: str | None = setting(None, "commit of the code, stated in the model card", shown="not stated")
    device: str = setting("auto", DEVICE)
