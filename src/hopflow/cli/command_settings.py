"""Settings of every command but train: name, type, range, default and help, each declared once.

Parsing, did-you-mean, `--help`, `hopflow config keys COMMAND` and the tables of the documentation follow from here.
The settings of train are the fields of `recipes.Recipe`. Defaults that Python functions have as well are held equal by
tests/cli/test_command_settings.py.
"""

from typing import Literal

from .bench_settings import (
    BenchEvalSettings,
    BenchOTSettings,
    BenchSampleSettings,
    BenchServeSettings,
    BenchTrainSettings,
)
from .reproduce_settings import MorseSettings, NetworkSettings, RectifiedStudySettings, TextStudySettings
from .setting_types import (
    DEVICE,
    CommandSettings,
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
    Texts,
    ThreadCount,
    Times,
    setting,
)

PRECISION = "float type of all layers before the output head, which is float32; auto: bf16 on a GPU that supports it"
THREADS = "CPU threads of torch"
NETWORK = "your own network class, package.module:Class; its code is imported and run"


class SampleSettings(CommandSettings):
    """Settings of `hopflow sample`."""

    n: Positive = setting(4, "number of sequences")
    length: Length | None = setting(None, "tokens per sequence", shown="as trained")
    cut: Flag = setting(False, "true: print each text only up to its first end-of-text token")
    steps: Length = setting(32, "sampler steps")
    eta: Number = setting(
        0.0, "strength of the corrector, which replaces some tokens by new noise; 0: off, fewest hops", ge=0
    )
    sampler: SamplerName = setting(
        "euler", "sampling algorithm; confidence:4, margin:4 and left_to_right:4 fill four masks per network call"
    )
    per_call: Positive = setting(
        1, "only for sampler=random_order: tokens drawn per network call; more than 1 is faster and less exact"
    )
    grid: Times = setting("even", "only for sampler=euler: the times of its steps")
    refresh: Number = setting(
        0.0, "only for sampler=euler: expected number of times that each position is drawn anew; at most steps", ge=0
    )
    label: Names = setting(
        (),
        "only for a network with labels, which needs it: label of each sequence, by name or number; several, separated "
        "by commas, are used in turn; -1: no label",
        shown="none",
    )
    guidance: Number = setting(1.0, "classifier-free guidance for label and prompt; 1: off")
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
    seed: Seed = setting(0, "random seed; the same samples on every device and for every batch, up to rounding")
    batch: Positive | None = setting(None, "sequences per network call", shown="depends on the device")
    compile: FlagOrAuto = setting("auto", "compile the network; auto: on a GPU, for large jobs")
    precision: Precision = setting("auto", PRECISION)
    device: str = setting("auto", DEVICE)
    threads: ThreadCount | None = setting(None, THREADS, shown="as in training")
    model: str | None = setting(None, NETWORK, shown="the class that was saved")


class RectifySettings(CommandSettings):
    """Settings of `hopflow rectify`."""

    n: Positive = setting(8192, "number of pairs, rounded up to full files of 1,024 pairs")
    steps: Length = setting(128, "sampler steps")
    out: str | None = setting(None, "folder of the pairs", shown="RUN-pairs")
    length: Length | None = setting(None, "tokens per sequence", shown="as trained")
    eta: Number = setting(0.0, "strength of the corrector; above 0 the pairs have more hops", ge=0)
    temperature: Number = setting(1.0, "softmax temperature", ge=0)
    seed: Seed = setting(0, "random seed; pair i depends on the seed and i only")
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
    paths: Integer = setting(
        8, "for the bound br: paths from text back to noise per sequence, at least 2; 0: do not compute br", ge=0
    )
    steps: Integers = setting((32,), "sampler steps; several numbers are separated by commas")
    eta: Numbers = setting(
        (0.0, 1.0), "corrector strengths, separated by commas; samplers without a corrector use 0 only"
    )
    sampler: SamplerName = setting(
        "euler",
        "sampling algorithm; euler has the bounds bn and, if refresh=0, br; confidence, margin, left_to_right and "
        "entropy_bound have the exact value `planned`",
    )
    per_call: Positive = setting(
        1, "only for sampler=random_order: tokens drawn per network call; more than 1 is faster and less exact"
    )
    grid: Times = setting("even", "only for sampler=euler: the times of its steps")
    refresh: Number = setting(
        0.0, "only for sampler=euler: expected number of times that each position is drawn anew; at most steps", ge=0
    )
    temperature: Numbers = setting((1.0,), "softmax temperatures of the samples, separated by commas")
    gen: Flag = setting(True, "draw samples and measure their quality")
    n: Count = setting(64, "number of samples for each sampler")
    judge: str | None = setting(
        None,
        "language model that scores the samples: smollm2, a Hugging Face model folder, or a run with model=causal",
        shown="none",
    )
    metric: Names = setting(
        (),
        "further metrics of the samples, separated by commas: uniqueness, novelty, smiles_validity, or your own "
        "function, package.module:function",
        shown="none",
    )
    retokenise: Flag = setting(
        True, "true: the judge tokenizes the texts itself; false: it scores the token ids of the run"
    )
    transport: Flag = setting(
        True, "compare the hops and costs of samples with those predicted from pairs of noise and text"
    )
    coupling: Literal["own", "exact", "sinkhorn", "none"] = setting(
        "own", "coupling of the quantity `coupled`, the paper's number, which is not a bound; own: as in training"
    )
    ot_n: Count | None = setting(None, "sequences per OT batch of `coupling`", shown="as in training, at most 64")
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


class ImportSettings(CommandSettings):
    """Settings of `hopflow import`."""

    out: str | None = setting(None, "folder of the run", shown="runs/ and the name of the file")
    tokenizer: str = setting("gpt2", "gpt2, byte, none, or the path of a tokenizer.json")
    length: Length | None = setting(None, "tokens per sequence", shown="as in config.json, or 1024")
    heads: Positive | None = setting(None, "attention heads", shown="as in the file, or width / 64")
    weights: Literal["auto", "ema", "raw"] = setting(
        "auto", "averaged weights or those of the last step; auto: averaged if the file has them"
    )
    mask: Integer | None = setting(
        None,
        "row of the mask in the embedding table",
        shown="[MASK] in the tokenizer, or the row after its tokens",
        ge=0,
    )
    source: Literal["mask", "uniform"] | None = setting(
        None, "only for flow_matching and sedd: source of the flow", shown="by the rows of the embedding table"
    )
    time: Flag | None = setting(
        None, "only for mdlm: true for networks with time_conditioning", shown="as in config.json, or false"
    )
    smallest: Number | None = setting(
        None,
        "only for mdlm, duo and sedd: smallest k in training, the probability that a token is text",
        shown="0.001",
        gt=0,
        lt=1,
    )
    exponent: Number | None = setting(
        None, "only for flow_matching: exponent n of its scheduler, k = t^n", shown="1", gt=0
    )
    uniform: Number | None = setting(
        None,
        "only for gidd: p_uniform of its training; above 0 the network cannot be sampled or evaluated",
        shown="as in config.json",
        ge=0,
        lt=1,
    )


class ServeSettings(CommandSettings):
    """Settings of `hopflow serve`."""

    host: str = setting("127.0.0.1", "address to listen on; one that other machines can reach needs token=")
    port: Integer = setting(8231, "port; 0: any free port", ge=0, le=65535)
    token: str | None = setting(None, "secret that requests must contain, as Authorization: Bearer TOKEN", shown="none")
    steps: Length = setting(1024, "largest number of sampler steps of a request")
    length: Length = setting(1024, "largest number of tokens per sequence")
    n: Positive = setting(16, "largest number of sequences of a request")
    queue: Positive = setting(64, "requests accepted at a time, running or waiting; one more gets status 429")
    body: Positive = setting(65_536, "largest number of bytes of a request")
    label: str | None = setting(
        None, "label of all sequences, for a network with labels: its name or number; -1 for no label", shown="none"
    )
    device: str = setting("auto", DEVICE)
    threads: ThreadCount | None = setting(None, THREADS, shown="as in training")
    model: str | None = setting(None, NETWORK, shown="the class that was saved")


class DemoSettings(CommandSettings):
    """Settings of `hopflow demo`."""

    seed: Seed = setting(0, "random seed of both runs")


class OracleSettings(CommandSettings):
    """Settings of `hopflow oracle`."""

    analysis: Literal["all", "first", "second", "third"] = setting(
        "all", "which of the paper's three numerical examples to compute"
    )
    seed: Seed = setting(0, "random seed of the third analysis")


class PrepareSettings(CommandSettings):
    """Settings of `hopflow data prepare`."""

    tokens: str = setting(
        "char", "char, byte, morse, bpe:SIZE, gpt2, auto (depends on the size of the text), or a tokenizer file"
    )
    length: Length | None = setting(None, "tokens per sequence", shown="128; for a file of rows, the longest")
    holdout: Number = setting(0.02, "fraction of the documents kept for evaluation", ge=0, le=1)
    pack: Flag = setting(True, "concatenate documents; false pads each one")
    seed: Seed = setting(0, "random seed of the held-out split")
    cache: str | None = setting(None, "folder of the cache", shown="$HOPFLOW_CACHE")


COMMANDS: dict[str, type[CommandSettings]] = {
    "sample": SampleSettings,
    "infill": InfillSettings,
    "eval": EvalSettings,
    "report": ReportSettings,
    "rectify": RectifySettings,
    "serve": ServeSettings,
    "import": ImportSettings,
    "demo": DemoSettings,
    "oracle": OracleSettings,
    "data prepare": PrepareSettings,
    "bench train": BenchTrainSettings,
    "bench sample": BenchSampleSettings,
    "bench serve": BenchServeSettings,
    "bench eval": BenchEvalSettings,
    "bench ot": BenchOTSettings,
    "reproduce morse": MorseSettings,
    "reproduce text": TextStudySettings,
    "reproduce rectified": RectifiedStudySettings,
    "reproduce network": NetworkSettings,
}
