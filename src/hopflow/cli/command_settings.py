"""Settings of every command but train: name, type, range, default and help, each declared once.

Parsing, did-you-mean, `--help`, `hopflow config keys COMMAND` and the tables of the documentation follow from here.
The settings of train are the fields of `recipes.Recipe`. Defaults that Python functions have as well are held equal by
tests/cli/test_command_settings.py.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from .setting_types import (
    Count,
    Flag,
    FlagOrAuto,
    Integer,
    Integers,
    Length,
    Names,
    Number,
    Numbers,
    Positive,
    Precision,
    SamplerName,
    Seed,
    Seeds,
    Texts,
    ThreadCount,
    Times,
    by_device,
    setting,
)

DEVICE = "auto, cpu, cuda, cuda:1 or mps"
PRECISION = "float type of the network up to its head; auto: bf16 on a GPU that supports it"
THREADS = "CPU threads of torch"
NETWORK = "your own network class, package.module:Class; its code is imported and run"
TOKENS, VOCABULARY = "tokens per sequence", "vocabulary size"
SIZE = "size of the transformer: micro, tiny, mini, small or medium"


class CommandSettings(BaseModel):
    """The settings of a command, read and checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def typed(self, *without: str) -> dict[str, Any]:
        """Those that were typed, in the order of the declaration; for functions with the same defaults."""
        names = [name for name in type(self).model_fields if name in self.model_fields_set]
        return {name: getattr(self, name) for name in names if name not in without}


class SampleSettings(CommandSettings):
    """Settings of `hopflow sample`."""

    n: Positive = setting(4, "number of sequences")
    length: Length | None = setting(None, "tokens per sequence", shown="as trained")
    cut: Flag = setting(False, "true: print each text only up to its first end-of-text token")
    steps: Length = setting(32, "sampler steps")
    eta: Number = setting(
        0.0, "strength of the corrector, which returns tokens to noise to draw them again; 0: off, fewest hops", ge=0
    )
    sampler: SamplerName = setting("euler", "sampling algorithm")
    per_call: Positive = setting(
        1, "only for sampler=random_order: tokens drawn per network call; more than 1 is faster and less exact"
    )
    grid: Times = setting("even", "only for sampler=euler: the times of its steps")
    temperature: Number = setting(1.0, "softmax temperature", ge=0)
    top_k: Positive | None = setting(None, "draw only from the k most likely tokens", shown="off")
    top_p: Number | None = setting(
        None, "draw only from the most likely tokens whose probabilities sum to p", shown="off", gt=0, le=1
    )
    min_p: Number | None = setting(
        None, "draw only from tokens at least p times as likely as the most likely one", shown="off", ge=0, le=1
    )
    draw: Literal["categorical", "gumbel32"] = setting(
        "categorical", "how a token is drawn; gumbel32 is float32 Gumbel-max, as in many other implementations"
    )
    seed: Seed = setting(0, "random seed; samples do not depend on device or batch size")
    batch: Positive | None = setting(None, "sequences per network call", shown="depends on the device")
    compile: FlagOrAuto = setting("auto", "compile the network; auto: on a GPU, for large jobs")
    precision: Precision = setting("auto", PRECISION)
    device: str = setting("auto", DEVICE)
    threads: ThreadCount | None = setting(None, THREADS, shown="as in training")
    model: str | None = setting(None, NETWORK, shown="the class that was saved")


class InfillSettings(SampleSettings):
    """Settings of `hopflow infill`: those of sample, and prompts."""

    n: Positive = setting(1, "number of texts for each prompt")
    length: Length | None = setting(
        None, "continue every prompt to this number of tokens", shown="as trained, for prompts without holes"
    )
    prompts: str | None = setting(
        None, 'file of prompts: a .txt with one per line, or a .jsonl with "prompt"', shown="none"
    )
    guidance: Number = setting(1.0, "strength of the prompt; 1: no guidance, 2: twice the effect of the prompt")


class EvalSettings(CommandSettings):
    """Settings of `hopflow eval`."""

    data: Texts = setting(
        (),
        "file or test set (lambada, wikitext-2, ptb, wikitext-103, lm1b in $HOPFLOW_DATA); may be repeated",
        shown="the run's held-out text",
    )
    length: Length | None = setting(None, "only for data=…: tokens per sequence", shown="as trained")
    detokenise: Literal["auto", "none", "words", "wikitext"] = setting(
        "auto", "only for data=…: how word-tokenized text becomes running text"
    )
    rows: Positive | None = setting(None, "largest number of sequences per bound", shown="all")
    error: Number = setting(0.01, "stop a bound when its relative standard error is this small", ge=0)
    seconds: Number = setting(60.0, "time limit in seconds for the bounds of each test set", ge=0)
    draws: Count = setting(8, "Monte Carlo draws per sequence and bound")
    paths: Integer = setting(8, "reversed paths per sequence of the bound br; 0 leaves br out", ge=0)
    steps: Integers = setting((32,), "sampler steps; several numbers are separated by commas")
    eta: Numbers = setting(
        (0.0, 1.0), "corrector strengths, separated by commas; samplers without a corrector use 0 only"
    )
    sampler: SamplerName = setting(
        "euler", "sampler that draws the samples; the bounds bn and br always refer to euler"
    )
    per_call: Positive = setting(
        1, "only for sampler=random_order: tokens drawn per network call; more than 1 is faster and less exact"
    )
    grid: Times = setting("even", "only for sampler=euler: the times of its steps")
    temperature: Numbers = setting((1.0,), "softmax temperatures of the samples, separated by commas")
    gen: Flag = setting(True, "draw samples and measure their quality")
    n: Count = setting(64, "number of samples for each sampler")
    judge: str | None = setting(
        None,
        "language model that scores the samples: smollm2, a Hugging Face model folder, or a causal run",
        shown="none",
    )
    retokenise: Flag = setting(True, "the judge splits texts into its own tokens; false: it scores the run's token ids")
    transport: Flag = setting(True, "compare the hops and costs of samples with the coupling's prediction")
    coupling: Literal["own", "exact", "sinkhorn", "none"] = setting(
        "own", "how noise is paired with text in the row `coupled`; own: as in training"
    )
    ot_n: Count | None = setting(None, "sequences per OT batch of `coupling`", shown="as in training")
    eps: Number | None = setting(
        None, "entropic regularization of sinkhorn, relative to the largest cost", shown="as trained", ge=0
    )
    batch: Count | None = setting(None, "sequences per network call of a bound", shown="depends on the device")
    seed: Seed = setting(0, "random seed of draws and samples")
    precision: Precision = setting("auto", PRECISION)
    device: str = setting("auto", DEVICE)
    threads: ThreadCount | None = setting(None, THREADS, shown="as in training")
    model: str | None = setting(None, NETWORK, shown="the class that was saved")


class ReportSettings(CommandSettings):
    """Settings of `hopflow report`."""

    model: str | None = setting(None, NETWORK, shown="the class that was saved")


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


class DemoSettings(CommandSettings):
    """Settings of `hopflow demo`."""

    seed: Seed = setting(0, "random seed of both runs")


class OracleSettings(CommandSettings):
    """Settings of `hopflow oracle`."""

    analysis: Literal["all", "first", "second", "third"] = setting(
        "all", "which of the paper's three analyses to compute"
    )
    seed: Seed = setting(0, "random seed of the third analysis")


class PrepareSettings(CommandSettings):
    """Settings of `hopflow data prepare`."""

    tokens: str = setting(
        "char", "char, byte, morse, bpe:SIZE, gpt2, auto (depends on the size of the text), or a tokenizer file"
    )
    length: Length = setting(128, "tokens per sequence")
    holdout: Number = setting(0.02, "fraction of the documents kept for evaluation", ge=0, le=1)
    pack: Flag = setting(True, "concatenate documents; false pads each one")
    seed: Seed = setting(0, "random seed of the held-out split")
    cache: str | None = setting(None, "folder of the cache", shown="$HOPFLOW_CACHE")


class MorseSettings(CommandSettings):
    """Settings of `hopflow reproduce morse`."""

    size: Literal["laptop", "mini", "small"] = setting(
        "laptop", "laptop: minutes per run; mini, small (the paper's network): Shakespeare by characters, too"
    )
    seeds: Count = setting(3, "number of runs per recipe, seeds 0, 1, …")
    steps: Positive | None = setting(None, "training steps", shown="2000; 20000 for mini and small")
    samples: Count | None = setting(None, "samples per run", shown="1000; 3000 for mini and small")
    sampler_steps: Length = setting(1024, "sampler steps")
    minutes: Number | None = setting(None, "do not start a run that would end after this time", shown="no limit", gt=0)
    device: str = setting("auto", DEVICE)


class TextStudySettings(CommandSettings):
    """Settings of `hopflow reproduce text`."""

    budget: Literal["full", "laptop"] = setting("full", "full: the study on novels; laptop: two small variants")
    variants: Names = setting((), "only these variants, separated by commas", shown="all")
    seeds: Seeds = setting((), "only these seeds, separated by commas", shown="all")
    minutes: Number | None = setting(
        None, "time limit in minutes: do not start a run that would end later", shown="no limit", gt=0
    )
    expect: Number = setting(0.0, "expected minutes of a run, until a similar one has been timed on this device", ge=0)
    limit: Integer | None = setting(None, "largest number of runs; 0 trains the judge only", shown="all", ge=0)
    later: Names = setting((), "judges that score the stored samples later, with --judge, separated by commas")
    shared: Flag = setting(False, "another process uses the device: do not compare the speed of these runs")
    repeat: Flag = setting(False, "run a second time, into the subfolder repeated, to compare machines")
    commit: str | None = setting(None, "commit of the code, stored in the result files", shown="not stored")
    device: str = setting("auto", DEVICE)


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


COMMANDS: dict[str, type[CommandSettings]] = {
    "sample": SampleSettings,
    "infill": InfillSettings,
    "eval": EvalSettings,
    "report": ReportSettings,
    "demo": DemoSettings,
    "oracle": OracleSettings,
    "data prepare": PrepareSettings,
    "bench train": BenchTrainSettings,
    "bench sample": BenchSampleSettings,
    "bench eval": BenchEvalSettings,
    "bench ot": BenchOTSettings,
    "reproduce morse": MorseSettings,
    "reproduce text": TextStudySettings,
    "reproduce network": NetworkSettings,
}
