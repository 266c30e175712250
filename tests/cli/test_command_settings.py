"""One declaration per setting: parsing, help, `config keys` and tables follow from it, and Python has its defaults."""

import inspect
from dataclasses import asdict, fields, is_dataclass

import pytest
import torch
import typer

import hopflow as hf
from hopflow import demo
from hopflow.bench import bounds as bench_bounds
from hopflow.bench import ot as bench_ot
from hopflow.bench import sample as bench_sample
from hopflow.bench import serve as bench_serve
from hopflow.bench import training_run
from hopflow.cli import app
from hopflow.cli.build_sampler import build_sampler, evaluated_sampler, sampling_options
from hopflow.cli.command_help import CommandWithSettings
from hopflow.cli.command_settings import (
    COMMANDS,
    BenchOTSettings,
    DemoSettings,
    EvalSettings,
    InfillSettings,
    MorseSettings,
    OracleSettings,
    PrepareSettings,
    SampleSettings,
)
from hopflow.cli.component_names import component_names
from hopflow.cli.setting_types import one_of
from hopflow.cli.settings_help import NONE, as_typed, commands, example, settings_list, settings_of, settings_table
from hopflow.cli.settings_parser import parse_settings
from hopflow.cli.train_help import most_used
from hopflow.data.build_tokenizer import token_choices
from hopflow.data.load_corpus import load
from hopflow.evaluation import tightness
from hopflow.evaluation.suite import Suite
from hopflow.models.sizes import SIZES
from hopflow.recipes import Recipe, text_file
from hopflow.recipes.components import FAMILIES, members
from hopflow.reproduce import morse
from hopflow.sampling.samplers import Grid, Sampler


def defaults_of(function) -> dict[str, object]:
    """The defaults of a function's keywords, or of a dataclass's fields."""
    if is_dataclass(function):
        return {field.name: field.default for field in fields(function)}
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


# -- defaults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declaration", "function", "without"),
    [
        (EvalSettings, Suite, {"device", "threads", "model", "sampler", "per_call", "grid", "refresh", "metric"}),
        (PrepareSettings, load, set()),
        (MorseSettings, morse.run, set()),
        (DemoSettings, demo.run, set()),
        (OracleSettings, tightness.run, {"analysis"}),
        (BenchOTSettings, bench_ot.run, set()),
    ],
)
def test_a_command_and_its_python_function_have_the_same_defaults(declaration, function, without):
    declared = {name: field.default for name, field in declaration.model_fields.items() if name not in without}
    assert declared == {name: defaults_of(function)[name] for name in declared}


def test_sample_and_generate_have_the_same_defaults():
    flow = hf.Flow(hf.Mask(hf.Vocab(3, 1)))
    out = hf.generate(hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2)), flow, n=1, length=2)
    declared = SampleSettings()
    assert out.sampler == build_sampler(declared.sampler, {})
    assert out.steps == declared.steps
    assert out.eta == declared.eta
    assert asdict(out.filter) == {name: getattr(declared, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    assert out.draw == declared.draw
    again = hf.generate(hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2)), flow, n=1, length=2, seed=0)
    assert torch.equal(out.x0, again.x0)
    assert declared.seed == 0


@pytest.mark.parametrize(
    ("command", "case"),
    [
        ("bench train", training_run.TrainingCase),
        ("bench sample", bench_sample.SamplingCase),
        ("bench serve", bench_serve.ServingCase),
        ("bench eval", bench_bounds.BoundsCase),
    ],
)
@pytest.mark.parametrize(("device", "key"), [("cpu", "cpu"), ("cuda", "gpu")])
def test_a_bench_has_the_declared_defaults_on_each_device(command, case, device, key):
    made = case.on(torch.device(device))
    for name, field in COMMANDS[command].model_fields.items():
        if name not in ("device", "source"):
            extra = field.json_schema_extra or {}
            assert getattr(made, name) == extra.get(key, field.default), name


def test_the_defaults_of_train_name_the_recipe_they_belong_to():
    lines = {line.name: line.default for line in settings_of("train")}
    assert set(lines) == set(asdict(Recipe()))
    on_cpu, on_gpu = text_file.text(), text_file.text_gpu()
    assert lines["batch"] == f"{on_cpu.batch} (text), {on_gpu.batch} (text_gpu), {Recipe().batch} (Recipe)"
    for name, value in asdict(on_cpu).items():
        assert (NONE[name] if value is None and name in NONE else as_typed(value)) in lines[name]


# -- parsing -----------------------------------------------------------------------------------------------------------


def test_typed_settings_are_kept_apart_from_defaults():
    settings = parse_settings(["n=2", "grid=0,0.5,1", "compile=false"], SampleSettings)
    assert settings.typed() == {"n": 2, "grid": (0.0, 0.5, 1.0), "compile": False}
    assert settings.typed("n") == {"grid": (0.0, 0.5, 1.0), "compile": False}
    assert settings.steps == 32


@pytest.mark.parametrize("text", ["1.0", "1_000", "²", " 5", "+5", "0x10", "1e3"])
def test_an_integer_has_digits_only(text):
    with pytest.raises(ValueError, match="n must be an integer ≥ 1"):
        parse_settings([f"n={text}"], SampleSettings)


@pytest.mark.parametrize("text", ["yes", "1", "True", "on", "TRUE"])
def test_a_flag_is_true_or_false_only(text):
    with pytest.raises(ValueError, match="cut must be true or false, got "):
        parse_settings([f"cut={text}"], SampleSettings)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("precision=fp16", "precision must be auto, float32 or bf16, got fp16; did you mean 'bf16'?"),
        ("draw=gumble32", "draw must be categorical or gumbel32, got gumble32; did you mean 'gumbel32'?"),
        ("top_p=", "top_p must be a number > 0 and ≤ 1, got ''."),
    ],
)
def test_an_error_names_the_setting_what_is_allowed_and_what_was_meant(word, message):
    with pytest.raises(ValueError, match="must be") as error:
        parse_settings([word], SampleSettings)
    assert str(error.value) == message


@pytest.mark.parametrize("command", COMMANDS)
def test_every_declared_default_is_allowed(command):
    declaration = COMMANDS[command]
    for name, field in declaration.model_fields.items():
        if field.default not in (None, ()):
            assert getattr(parse_settings([f"{name}={as_typed(field.default)}"], declaration), name) == field.default


# -- samplers ----------------------------------------------------------------------------------------------------------


def test_help_lists_the_samplers_and_grids_that_exist():
    own = {
        family: {n for n, cls in members(family).items() if cls.__module__.startswith("hopflow.")}
        for family in (Sampler, Grid)
    }
    assert {*component_names("Sampler", "sampling.samplers", "sampling.planners")} == own[Sampler]
    assert {*component_names("Grid", "sampling.samplers")} == own[Grid]
    allowed = {line.name: line.allowed for line in settings_of("sample")}
    assert allowed["sampler"].startswith("euler, random_order, confidence, ")  # other tests define samplers as well
    assert allowed["grid"] == "even, cosine, or times from 0 to 1 such as 0,0.3,1"


def test_a_wrong_name_of_a_sampler_is_reported_with_the_names_that_exist():
    with pytest.raises(
        ValueError, match=r"sampler must be euler, random_order, confidence.*got eular; did you mean 'euler'"
    ):
        parse_settings(["sampler=eular"], SampleSettings)


@pytest.mark.parametrize(
    ("word", "sampler"),
    [
        ("confidence:4", hf.Confidence(4)),
        ("margin", hf.Margin(1)),
        ("left_to_right:2", hf.LeftToRight(2)),
        ("entropy_bound:0.3", hf.EntropyBound(0.3)),
    ],
)
def test_planners_have_names_with_a_number_after_a_colon(word, sampler):
    words = [f"sampler={word}"]
    assert sampling_options(parse_settings(words, SampleSettings))["sampler"] == sampler
    assert evaluated_sampler(parse_settings(words, EvalSettings)) == sampler


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sampler=confidence:a"], "sampler=confidence:a: 'a' is not a number"),
        (["sampler=confidence:1,2"], "takes 1 number after the colon"),
        (["sampler=confidence:0"], "must be an integer ≥ 1, got 0"),
        (["sampler=entropy_bound:-1"], "must be a finite number ≥ 0, got -1"),
        (["sampler=confidence", "per_call=4"], "sampler=random_order; sampler=confidence takes k after a colon"),
        (["sampler=margin", "steps=4"], "sampler=euler; sampler=margin takes k after a colon"),
    ],
)
def test_a_wrong_planner_has_one_message(words, message):
    with pytest.raises(ValueError, match=message):
        sampling_options(parse_settings(words, SampleSettings))


@pytest.mark.parametrize("words", [["sampler=random_order:4"], ["sampler=random_order", "per_call=4"]])
def test_numbers_after_a_colon_are_fields_of_the_sampler(words):
    assert sampling_options(parse_settings(words, SampleSettings))["sampler"] == hf.RandomOrder(4)
    assert sampling_options(parse_settings(words, InfillSettings))["sampler"] == hf.RandomOrder(4)
    assert evaluated_sampler(parse_settings(words, EvalSettings)) == hf.RandomOrder(4)


def test_eval_has_one_sampler_for_each_number_of_steps():
    assert evaluated_sampler(parse_settings(["steps=8,16"], EvalSettings)) is None  # euler
    sampler = evaluated_sampler(parse_settings(["steps=8,16", "grid=cosine"], EvalSettings))
    assert sampler(16) == hf.Euler(16, hf.CosineGrid())
    assert evaluated_sampler(parse_settings(["grid=0,0.3,1"], EvalSettings)) == hf.Euler.at((0.0, 0.3, 1.0))


def test_eval_refuses_a_setting_of_another_sampler():
    with pytest.raises(ValueError, match="grid is a setting of sampler=euler; sampler=random_order has per_call"):
        evaluated_sampler(parse_settings(["sampler=random_order", "grid=cosine"], EvalSettings))


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", commands())
def test_config_keys_lists_the_settings_of_every_command(hopflow, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = hopflow("config", "keys", *command.split())
    assert result.code == 0
    listed = {line.split()[0] for line in result.out.splitlines() if line[:1].strip()}
    assert {line.name for line in settings_of(command)} <= listed
    assert all(len(line) <= 80 for line in result.out.splitlines())


def test_config_keys_of_an_unknown_command_names_the_nearest(hopflow):
    result = hopflow("config", "keys", "bench", "trian")
    assert result.code == 2
    assert "did you mean 'bench train'?" in result.message


def commands_of(group, before=""):
    """The names of all commands, such as `bench ot`, with their classes."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, f"{before}{name} ")
        else:
            yield before + name, type(command)


def test_every_command_with_settings_is_declared():
    found = {name for name, cls in commands_of(typer.main.get_command(app)) if cls is CommandWithSettings}
    assert found == set(commands())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_the_settings(hopflow, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = hopflow(*command.split(), "--help")
    assert result.code == 0
    assert result.out.rstrip().endswith(settings_list(command).rstrip())
    for line in settings_of(command):
        assert f"\n  {line.name} " in result.out
        assert line.help


def test_help_of_train_shows_the_most_used_settings_as_declared(hopflow, monkeypatch):
    """They are read from the source code, because `--help` does not import torch."""
    monkeypatch.setenv("COLUMNS", "80")
    result = hopflow("train", "--help")
    assert result.out.rstrip().endswith(settings_list("train").rstrip())
    assert "hopflow config keys train" in result.out
    declared = {field.name: field for field in fields(Recipe)}
    on_cpu, on_gpu = text_file.text(), text_file.text_gpu()
    for name, cpu, gpu, help, choices in most_used():
        assert f"\n  {name} " in result.out
        assert (cpu, gpu) == (getattr(on_cpu, name), getattr(on_gpu, name))
        assert help == declared[name].metadata["help"]
        own = (
            {n for n, cls in members(FAMILIES[name]).items() if cls.__module__.startswith("hopflow.")}
            if choices
            else ()
        )
        assert choices == tuple(sorted(own))
        assert bool(choices) == (name in FAMILIES)


def test_help_of_train_names_every_size_and_tokenizer():
    declared = {field.name: field.metadata["help"] for field in fields(Recipe)}
    assert one_of(tuple(SIZES)) in declared["size"]
    assert token_choices() in declared["tokens"]


@pytest.mark.parametrize("command", ["", "compare", "list", "config", "config show", "doctor", *commands()])
def test_help_fits_80_columns_and_shows_no_python_types(hopflow, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    page = hopflow(*command.split(), "--help").out
    assert page.startswith(f"Usage: {f'hopflow {command}'.strip()} [OPTIONS]")
    assert max(map(len, page.splitlines())) <= 80
    for leak in ("<bool>", "<str>", "list[", "{RUN}", "[required]"):
        assert leak not in page


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_setting_is_a_setting_of_the_command(command):
    typed = example(command)
    assert typed is None or parse_settings([typed], COMMANDS[command])


@pytest.mark.parametrize("command", commands())
def test_the_markdown_table_has_a_row_for_each_setting(hopflow, command):
    lines = settings_table(command).splitlines()
    assert lines[:2] == ["| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    assert [line.split("|")[1].strip(" `") for line in lines[2:]] == [line.name for line in settings_of(command)]
    assert hopflow("config", "keys", *command.split(), "--markdown").out == settings_table(command)


PROBES = ("-1", "0", "0.5", "1", "2", "3", "1024", "65537", "1048576", "1048577", "1e30")
ACCEPTED = {
    "1 2 3 1024 65537 1048576 1048577": (
        "sample: n per_call top_k batch; infill: n per_call top_k batch; eval: rows per_call; rectify: n batch; "
        "serve: n queue body; "
        "import: heads; bench train: steps; reproduce morse: steps; reproduce network: steps batch rows"
    ),
    "1 2 3 1024 65537 1048576": (
        "sample: length steps; infill: length steps; eval: length steps; rectify: steps length; serve: steps length; "
        "import: length; data prepare: length; bench train: length; bench sample: length steps; "
        "bench serve: length steps; bench eval: length; reproduce morse: sampler_steps"
    ),
    "1 2 3 1024": (
        "sample: threads; infill: threads; eval: draws n ot_n batch threads; rectify: threads; serve: threads; "
        "bench train: batch; bench sample: n; bench serve: n clients; bench eval: n draws; bench ot: n; "
        "reproduce morse: seeds samples; reproduce network: samples"
    ),
    "0 1 2 3 1024 65537 1048576 1048577": (
        "sample: seed; infill: seed; eval: paths seed; rectify: seed; import: mask; demo: seed; oracle: seed; "
        "data prepare: seed; bench train: seed; bench sample: seed; bench serve: seed; bench eval: seed; "
        "bench ot: seed; reproduce text: seeds limit; reproduce rectified: seeds limit"
    ),
    "0 1 2 3 1024": "serve: port",
    "2 3 1024 65537 1048576 1048577": (
        "bench train: tokens; bench sample: tokens; bench serve: tokens; bench eval: tokens"
    ),
    "0 0.5 1 2 3 1024 65537 1048576 1048577 1e30": (
        "sample: eta refresh temperature; infill: eta refresh temperature; "
        "eval: error seconds eta refresh temperature eps; rectify: eta temperature; "
        "reproduce text: expect; reproduce rectified: expect"
    ),
    "0.5 1 2 3 1024 65537 1048576 1048577 1e30": (
        "import: exponent; reproduce morse: minutes; reproduce text: minutes; reproduce rectified: minutes; "
        "reproduce network: minutes"
    ),
    "0.5": "import: smallest",
    "0 0.5": "import: uniform",
    "0 0.5 1": "sample: min_p; infill: min_p; data prepare: holdout",
    "0.5 1": "sample: top_p; infill: top_p",
}


def is_accepted(command: str, key: str, text: str) -> bool:
    try:
        parse_settings([f"{key}={text}"], COMMANDS[command])
    except ValueError:
        return False
    return True


def test_every_number_has_the_range_that_it_is_meant_to_have():
    found = {}
    for command, cls in COMMANDS.items():
        for key in cls.model_fields:
            accepted = tuple(text for text in PROBES if is_accepted(command, key, text))
            if accepted not in (PROBES, ()):  # texts and words
                found.setdefault(" ".join(accepted), {}).setdefault(command, []).append(key)
    written = {
        accepted: "; ".join(f"{command}: {' '.join(keys)}" for command, keys in commands.items())
        for accepted, commands in found.items()
    }
    assert written == ACCEPTED


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("sample", "RUN [KEY=VALUE]..."),
        ("data prepare", "SOURCE [KEY=VALUE]..."),
        ("data fetch", "NAME"),
        ("compare", "RUN..."),
        ("report", "RUN... [KEY=VALUE]..."),
    ],
)
def test_the_help_of_a_command_begins_with_what_to_type(hopflow, command, arguments):
    usage = hopflow(*command.split(), "--help").out.splitlines()[0]
    assert usage == f"Usage: hopflow {command} [OPTIONS] {arguments}"
