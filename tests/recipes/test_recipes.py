"""Recipes: every one of them trains, stops, goes on, samples and is evaluated, in a size for tests."""

import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_recipes import TEXT, shrunk

import hopflow as hf
from hopflow.recipes import Recipe, build, named, names, requirements, resolve, seconds_per_step
from hopflow.recipes.components import FAMILIES, choose, members
from hopflow.recipes.paper_numbers import paper_values
from hopflow.recipes.requirements import pace
from hopflow.runs.metrics import read
from hopflow.runs.pretrained import from_pretrained


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fox.txt"
    file.write_text(TEXT)
    return str(file)


@pytest.mark.parametrize("name", names())
def test_every_recipe_trains_stops_goes_on_samples_and_is_evaluated(name, text, tmp_path):
    recipe = shrunk(named(name), text, steps=1)
    out = tmp_path / "run"
    build(recipe).train(out=out)
    run = build(replace(recipe, steps=2)).train(out=out)
    assert [row["step"] for row in read(out / "metrics.jsonl")] == [0, 1]
    loaded = from_pretrained(out)
    if recipe.model == "causal":
        assert run.last["nll"] > 0
        assert loaded.flow is None
        return
    assert run.last["b0_ppl"] > 1
    sample = hf.generate(loaded.model, loaded.flow, n=2, length=16, steps=2, seed=0)
    assert loaded.tokenizer.decode(sample.tokens[0].tolist())
    estimate = hf.nll_bound(loaded.model, loaded.flow, build(recipe).corpus.test[:2], draws=2)
    assert estimate.is_bound


def test_a_recipe_says_every_key_and_comes_back_from_what_a_run_stores(text, tmp_path):
    recipe = shrunk(named("dfm_mmf_exact_ema_laptop"), text, steps=1)
    build(recipe).train(out=tmp_path / "run")
    assert resolve(str(tmp_path / "run")) == replace(recipe, out=str(tmp_path / "run"))
    assert Recipe.read(json.loads(json.dumps(asdict(recipe)))) == recipe


def test_the_recipes_of_a_family_differ_in_what_their_names_say():
    def difference(one, other):
        left, right = asdict(named(one)), asdict(named(other))
        return {key for key in left if left[key] != right[key]} - {"name"}

    assert difference("dfm_b", "dfm_b_sinkhorn") == {"coupling"}
    assert difference("dfm_b_exact", "dfm_b_exact_ema") == {"ot_ema"}
    assert difference("dfm_mmf_exact", "dfm_mmf_exact_ot4096") == {"ot_batch"}
    assert difference("dfm_o", "dfm_n") == {"objective"}
    assert difference("dfm_n", "dfm_n_1024") == {"length"}
    assert difference("morse", "morse_exact") == {"coupling"}
    assert difference("shakespeare", "morse") == {"tokens"}


def test_the_paper_s_sizes_are_the_paper_s():
    recipe = named("dfm_mmf_exact_ema")
    assert (recipe.size, recipe.length, recipe.batch, recipe.steps) == ("small", 128, 512, 400_000)
    assert (recipe.lr, recipe.warmup, recipe.clip, recipe.beta1, recipe.beta2) == (3e-4, 2500, 1.0, 0.9, 0.999)
    assert (recipe.ot_ema, recipe.weight_decay, recipe.dropout) == (0.99999, 0.0, 0.1)


def test_an_average_of_the_table_changes_the_pairs_only_where_the_cost_reads_it(text, tmp_path):
    found = {}
    for name in ("dfm_mmf_exact_laptop", "dfm_mmf_exact_ema_laptop"):
        out = tmp_path / name
        build(replace(shrunk(named(name), text, steps=12), ahead=0, lr=0.05)).train(out=out)
        found[name] = [row["loss"] for row in read(out / "metrics.jsonl")]
    one, other = found.values()
    assert one[0] == other[0]
    assert one != other


@pytest.mark.parametrize("key", FAMILIES)
def test_every_component_has_a_name_in_lower_case(key):
    for name, kind in members(FAMILIES[key]).items():
        assert name == name.lower()
        assert isinstance(kind, type)


def test_names_take_numbers_after_a_colon():
    assert choose("objective", "bound:1") == hf.Bound(1.0)
    assert choose("schedule", "polynomial:2") == hf.Polynomial(2.0)
    assert choose("coupling", "sinkhorn", cost=hf.Hamming(), eps=0.5).eps == 0.5


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sorce": "mask"}, "did you mean 'source'"),
        ({"flow.source": "mask"}, "did you mean 'source'"),
        ({"source": "multi_mask"}, "did you mean 'multimask'"),
        ({"coupling": "exakt"}, "did you mean 'exact'"),
        ({"learning_rate": "1"}, "did you mean 'lr'"),
        ({"no_such_key": "1"}, "more .`hopflow config keys`"),
        ({"lr": "fast"}, "lr=fast: expected a number"),
        ({"steps": "many"}, "steps=many: "),
        ({"steps": "-1"}, "steps must be an integer ≥ 1, got -1"),
        ({"steps": "1.5"}, "steps=1.5: "),
        ({"lr": "nan"}, "lr must be a number > 0, got nan"),
        ({"lr": "0"}, "lr must be a number > 0, got 0"),
        ({"ot_batch": "100"}, "multiple of batch"),
        ({"holdout": "2"}, "holdout must be a fraction ≥ 0 and < 1"),
        ({"objective": "bound:x"}, "not a number"),
        ({"objective": "bound:1,2,3"}, "number"),
        ({"model": "gpt"}, "model=gpt is unknown"),
        ({"weight_ema": "1"}, "weight_ema must be a number ≥ 0 and < 1, got 1"),
        ({"source": "uniform:0.5"}, "uniform takes no number after the colon"),
        ({"source": "mixed:2"}, r"must lie in \[0, 1\], got 2"),
        ({"source": "mixed:nan"}, r"must lie in \[0, 1\], got nan"),
        ({"source": "mixed:0.1,1"}, "mixed takes 1 number after the colon"),
        ({"source": "mixed:half"}, "'half' is not a number"),
        ({"rate": "linear"}, "constant, cosine"),
        ({"time": "maybe"}, "time=maybe"),
        ({"length": "0"}, "length must be an integer ≥ 1, got 0"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_way_out(keys, said):
    with pytest.raises(ValueError, match=said):
        resolve("morse_laptop", keys)


def test_an_unknown_recipe_is_named_with_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'dfm_mmf_exact'"):
        named("dfm_mmf_exakt")


def test_a_recipe_of_one_s_own_is_a_toml_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "dfm_mmf_laptop"\nlr = 2e-3\ncoupling = "exact"\nsteps = 50\n')
    recipe = resolve(str(file), {"steps": "60"})
    assert recipe == replace(named("dfm_mmf_laptop"), name="mine", lr=2e-3, coupling="exact", steps=60)


@pytest.mark.parametrize(
    "content",
    [
        "lr = ",
        'lr = "fast"',
        "steps = 1.5",
        "steps = true",
        "base = 3",
        'base = "no_such"',
        'unknown = "x"',
        "[lr]\nx = 1",
        "source = \"__import__('os')\"",
        'objective = "os.system"',
        "lr = nan",
        "\x00",
        "a = " + "[" * 2000,
    ],
)
def test_a_toml_file_that_is_no_recipe_is_refused(tmp_path, content):
    file = tmp_path / "bad.toml"
    file.write_text(content)
    with pytest.raises(ValueError):
        resolve(str(file))


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Recipe)]) | st.text(max_size=8), st.text(max_size=8)))
def test_fuzzed_overrides_give_a_recipe_or_one_message(keys):
    with suppress(ValueError):
        assert isinstance(resolve("morse_laptop", keys), Recipe)


def test_a_text_of_one_s_own_starts_from_masks_with_nothing_to_couple(text):
    recipe = resolve(text)
    assert (recipe.name, recipe.data, recipe.source, recipe.coupling) == ("fox", text, "mask", "independent")
    with pytest.raises(FileNotFoundError):
        build(resolve("missing.txt"))


def test_the_defaults_for_a_text_follow_the_device_unless_they_are_named(text, monkeypatch):
    def defaults(**keys):
        found = resolve(text, keys)
        assert replace(found, name=found.base, data="docs", device="auto") == named(found.base)
        return found.base

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (defaults(), defaults(device="cuda"), defaults(base="text_gpu")) == ("text", "text_gpu", "text_gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (defaults(), defaults(device="cpu"), defaults(base="text")) == ("text_gpu", "text", "text")
    with pytest.raises(ValueError, match="did you mean 'text_gpu'"):
        resolve(text, {"base": "text_gpus"})
    with pytest.raises(ValueError, match="base is only for text files"):
        resolve("morse_laptop", {"base": "text"})


def test_a_run_keeps_the_defaults_it_started_with_on_another_device(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"steps": "1", "length": "16", "size": "micro", "eval_rows": "0", "eval_samples": "0", "compile": "false"}
    started = build(resolve(text, {**small, "base": "text_gpu"}))
    started.train()
    assert resolve(text).base == "text_gpu"  # there is no GPU here
    assert resolve(text, {"out": "runs/fox"}).lr == named("text_gpu").lr
    assert resolve("runs/fox") == replace(started.recipe, out="runs/fox")
    assert resolve(text, fresh=True).base == resolve(text, {"out": "runs/other"}).base == "text"


def test_timing_a_step_changes_neither_the_network_nor_the_random_state(text):
    built = build(shrunk(named("text"), text, steps=5))
    weights = {name: value.clone() for name, value in built.model.state_dict().items()}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert seconds_per_step(built) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, weights[name]) for name, value in built.model.state_dict().items())


def test_a_step_that_needs_too_much_memory_is_timed_with_fewer_sequences(text, monkeypatch):
    tried = []

    def only_two_fit(built, sequences):
        tried.append(sequences)
        if sequences > 2:
            raise torch.OutOfMemoryError("none left")
        return 0.5, 100

    monkeypatch.setattr(sys.modules["hopflow.recipes.requirements"], "_try", only_two_fit)
    built = build(replace(shrunk(named("text"), text), batch=8))
    planned = requirements(built)
    assert tried == [4, 2]  # on a CPU a plan times 4 sequences
    assert planned.seconds == pytest.approx(built.recipe.steps * 0.5 * 8 / 2)


@pytest.mark.parametrize("cost", ["token_matrix", "token_matrix:"])
def test_a_cost_from_a_table_needs_its_file(cost, text):
    with pytest.raises(ValueError, match="needs a file with a table: cost=token_matrix:FILE"):
        build(Recipe(data=str(text), length=8, coupling="exact", cost=cost))


def test_a_head_for_x0_is_refused_where_the_network_has_none(text):
    for model in ("convolutional", "causal"):
        recipe = shrunk(named("text"), text, model=model, predict_x0=True)
        with pytest.raises(ValueError, match=f"predict_x0=true needs model=transformer, got model={model}"):
            build(recipe)


def test_recipes_with_a_coupling_have_a_head_for_x0_except_from_masks(text):
    with_head = {"dfm_b_exact_laptop", "dfm_b_sinkhorn_laptop", "morse_exact_laptop", "shakespeare_exact_laptop"}
    without = {"dfm_b_laptop", "dfm_mmf_exact_laptop", "morse_laptop", "dfm_o_laptop"}
    for name in with_head | without:
        assert (build(shrunk(named(name), text)).model.x0_head is not None) == (name in with_head), name
    assert build(shrunk(named("dfm_b_exact_laptop"), text, predict_x0=False)).model.x0_head is None
    assert build(shrunk(named("dfm_b_exact_laptop"), text, model="convolutional")).recipe.predict_x0 is None
    assert Recipe.read({"predict_x0": "auto"}).predict_x0 is None


@pytest.mark.parametrize("stored", [False, None], ids=["without a head", "older than the setting"])
def test_a_run_without_a_head_for_x0_goes_on_without_one(stored, text, tmp_path):
    out = str(tmp_path / "run")
    recipe = shrunk(named("dfm_b_exact_laptop"), text, steps=1, predict_x0=False)
    build(recipe).train(out=out)
    if stored is None:
        file = tmp_path / "run" / "recipe.json"
        content = json.loads(file.read_text())
        del content["recipe"]["predict_x0"]
        file.write_text(json.dumps(content))
    keys = {key: value for key, value in asdict(recipe).items() if key not in ("predict_x0", "name", "base")}
    for word, more in ((out, {}), ("dfm_b_exact_laptop", {**keys, "out": out})):
        build(resolve(word, {**more, "steps": 2})).train(out=out)
        assert from_pretrained(out).model.x0_head is None
    assert resolve("dfm_b_exact_laptop", {**keys, "out": out}, fresh=True).predict_x0 is None


def test_weights_of_a_run_without_a_head_for_x0_start_a_run_with_one(text, tmp_path):
    recipe = shrunk(named("dfm_b_laptop"), text, steps=1)
    build(recipe).train(out=tmp_path / "first")
    tuned = build(replace(recipe, init=str(tmp_path / "first"), coupling="exact")).model
    assert tuned.x0_head is not None
    first = from_pretrained(tmp_path / "first").model.state_dict()
    state = tuned.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.items())


def test_weights_can_be_taken_from_another_run(text, tmp_path):
    recipe = shrunk(named("dfm_mmf_laptop"), text, steps=2)
    build(recipe).train(out=tmp_path / "first")
    tuned = build(replace(recipe, init=str(tmp_path / "first"), seed=5))
    first = from_pretrained(tmp_path / "first").model.state_dict()
    assert all(torch.equal(value, first[name]) for name, value in tuned.model.state_dict().items())
    with pytest.raises(ValueError, match="init="):
        build(replace(recipe, init=str(tmp_path / "first"), size="mini"))


def test_a_plan_says_what_it_takes_and_what_the_coupling_gains(text):
    built = build(shrunk(named("morse_exact_laptop"), text, steps=10))
    planned = requirements(built)
    assert planned.parameters == sum(p.numel() for p in built.model.parameters())
    assert planned.tokens == 10 * 4 * 16
    assert 0 < planned.ot_gain < 1
    assert planned.memory_bytes > 16 * planned.parameters
    assert planned.seconds > 0


@pytest.mark.parametrize(
    ("workers", "ahead", "coupling", "seconds"),
    [
        (1, 2, 1.5, 1.0),  # half of a coupling per step, hidden behind it
        (1, 2, 3.0, 1.5),  # not hidden
        (2, 2, 3.0, 1.0),
        (2, 1, 3.0, 1.5),  # one OT batch ahead keeps one worker busy
        (0, 2, 1.5, 1.75),  # in place
        (1, 0, 1.5, 1.75),
    ],
)
def test_a_plan_adds_the_time_of_couplings_that_steps_cannot_hide(workers, ahead, coupling, seconds):
    recipe = Recipe(batch=32, ot_batch=64, workers=workers, ahead=ahead)
    assert pace(recipe, 1.0, coupling) == pytest.approx(seconds)


def test_a_plan_s_checkpoint_is_as_large_as_the_real_one(text, tmp_path):
    recipe = shrunk(named("dfm_mmf_exact_ema_laptop"), text, steps=1)
    planned = requirements(build(recipe))
    build(recipe).train(out=tmp_path / "run")
    folder = max((tmp_path / "run" / "checkpoints").iterdir())
    real = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert planned.checkpoint_bytes == pytest.approx(real, rel=0.05)


def test_the_paper_s_values_belong_to_recipes_and_name_their_table():
    rows = paper_values()
    assert {row["recipe"] for row in rows} <= set(names())
    assert all(row["table"].startswith("Table") and row["value"] > 0 for row in rows)
    (value,) = [
        row["value"]
        for row in rows
        if row["recipe"] == "dfm_b_exact_ema" and row.get("judge") == "gpt2-large" and row.get("steps") == 32
    ]
    assert value == 182.4
    assert {row["is_bound"] for row in rows if row["quantity"] == "coupled"} == {False}


PASSED_ON = {
    "transformer": {"dropout": 0.25, "time": False, "recompute": True, "predict_x0": True},
    "convolutional": {"dropout": 0.25, "time": False},
    "causal": {"dropout": 0.25, "recompute": True},
}


@pytest.mark.parametrize(("model", "key"), [(model, key) for model, keys in PASSED_ON.items() for key in keys])
def test_a_setting_of_a_network_is_passed_on_to_it(text, model, key):
    recipe = replace(shrunk(named("text"), text, steps=1), model=model, source="bag_of_words")
    default = getattr(Recipe(), key) or False  # predict_x0: none means off for independent pairs
    for value in (PASSED_ON[model][key], default):
        assert getattr(build(replace(recipe, **{key: value})).model, key) == value


LOADED = {"data": "a.txt", "tokens": "bytes", "length": 9, "holdout": 0.25, "pack": False}


def test_the_settings_of_a_text_are_passed_on_to_its_corpus(text, monkeypatch):
    seen = []

    def load(*given, **keys):
        seen.append({**dict(zip(("data", "tokens", "length"), given, strict=True)), **keys})
        raise ValueError("enough was seen")

    monkeypatch.setattr("hopflow.data.load", load)
    with pytest.raises(ValueError, match="enough"):
        build(replace(named("text"), **LOADED), offline=True, progress=print)
    assert seen == [{**LOADED, "offline": True, "progress": print}]


PROBES = (-1, 0, 0.5, 1, 2, 1024, 1 << 20, (1 << 20) + 1)
ACCEPTED = {
    "1 2 1024 1048576 1048577": "steps batch accumulate log_every save_every keep eval_steps length masks",
    "0 1 2 1024 1048576 1048577": "ahead warmup seed eval_every eval_rows eval_samples",
    "0 0.5 1 2 1024 1048576 1048577": "weight_decay save_minutes eps",
    "0 0.5 1": "fresh",
    "0.5 1 2 1024 1048576 1048577": "lr adam_eps clip",
    "0 0.5": "ot_ema weight_ema beta1 beta2 holdout dropout label_dropout",
    "1 2 1024": "threads",
    "0 1 2": "workers",
    "1024 1048576": "ot_batch",  # a multiple of the batch
}


def is_accepted(key: str, value: float) -> bool:
    try:
        Recipe(**{key: value})
    except ValueError:
        return False
    return True


def test_every_number_of_a_recipe_has_the_range_that_it_is_meant_to_have():
    found: dict[str, list[str]] = {}
    for key, hint in get_type_hints(Recipe).items():
        if {int, float} & {hint, *get_args(hint)}:
            is_float = float in {hint, *get_args(hint)}
            probes = [float(value) if is_float else value for value in PROBES if is_float or value != 0.5]
            accepted = [f"{value:.7g}" for value in probes if is_accepted(key, value)]
            if len(accepted) < len(probes):
                found.setdefault(" ".join(accepted), []).append(key)
    assert {accepted: set(keys) for accepted, keys in found.items()} == {
        accepted: set(keys.split()) for accepted, keys in ACCEPTED.items()
    }


@pytest.mark.parametrize("kind", ["pipe", "endless", "terabyte"])
def test_a_toml_file_that_is_special_or_huge_is_not_read(tmp_path, kind):
    file = tmp_path / "mine.toml"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.touch()
        os.truncate(file, 1 << 40)
    with pytest.raises(ValueError, match=r"mine\.toml is not a TOML file: it (is|has)"):
        resolve(str(file))


def test_a_negative_eps_is_refused_in_python_as_on_the_command_line():
    with pytest.raises(ValueError, match="eps must be a number ≥ 0, got -1"):
        Recipe(eps=-1.0)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("coupling", "rectifid", "rectified:STORE"),
        ("cost", "token_matix", "token_matrix:FILE"),
        ("cost", "token_matrix", "cost=token_matrix needs a file: cost=token_matrix:FILE"),
        ("coupling", "rectified", "coupling=rectified needs a store: coupling=rectified:STORE"),
    ],
)
def test_a_component_with_a_file_is_named_as_it_is_typed(key, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        choose(key, text)
