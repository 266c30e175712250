"""Networks of other projects: their logits, the flows they become, and what the command refuses."""

import copy
import json
import math
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import numpy
import pytest
import torch
from other_projects import made_weights, outputs, sedd_log_scores, tokenizer_json
from safetensors.torch import save_file

import hopflow as hf
from hopflow import exact
from hopflow.adapters import tensor_files, unpickle_tensors
from hopflow.adapters.dit_weights import NetworkWeights
from hopflow.adapters.import_weights import ImportOptions, import_weights
from hopflow.adapters.layouts import LAYOUTS
from hopflow.adapters.tensor_files import PROGRAM, StoredTensors, read_tensors
from hopflow.cli.import_weights import LAYOUTS as LISTED
from hopflow.models.dit import EXAMPLES, DiT, TimeInput
from hopflow.runs.storage import from_plain, to_plain
from hopflow.system.child_process import PythonProcess

ROWS, HEADS, TOKENS = 9, 2, 8
"""Rows of an embedding with a mask, for eight tokens; a uniform source has no mask."""
T = torch.tensor([0.0, 0.0004, 0.3, 0.9, 1.0])


@pytest.fixture
def tiny_tokenizer(tmp_path) -> Path:
    file = tmp_path / "words.json"
    file.write_text(json.dumps(tokenizer_json()))
    return file


def time_input(layout: str, t: torch.Tensor) -> torch.Tensor:
    """The time input of each project in the state that hopflow calls t, written out."""
    if layout == "flow_matching":
        return t
    if layout == "gidd":
        return (1 - t.double()).clamp(1e-4, 1 - 1e-4)
    return torch.tensor([-math.log(max(float(k), 1e-3)) for k in t])


def options(layout: str, **more) -> ImportOptions:
    own = {"mdlm": {"time": True}, "gidd": {"uniform": 0.0}, "flow_matching": {"source": "mask"}}.get(layout, {})
    return ImportOptions(**{"tokenizer": "none", "length": 6, **own, **more})


def imported(tmp_path: Path, layout: str, weights: dict[str, torch.Tensor], **more):
    save_file(weights, tmp_path / "made.safetensors")
    return import_weights(layout, tmp_path / "made.safetensors", out=tmp_path / "run", options=options(layout, **more))


def states(rows: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(rows, (len(T), 6), generator=torch.Generator().manual_seed(seed))


# -- the same logits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_logits_are_those_of_the_other_project(tmp_path, layout):
    weights = made_weights(layout, ROWS)
    run = imported(tmp_path, layout, weights)
    xt = states(ROWS)
    logits = hf.from_pretrained(tmp_path / "run").model(xt, T)
    theirs = outputs(layout, weights, HEADS, xt, time_input(layout, T))
    assert theirs.std() > 0.5
    data = run.flow.vocab.data
    assert data == (ROWS if layout == "duo" else TOKENS)
    assert (logits - theirs[..., :data]).abs().max() < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_clock_matters_and_is_the_projects_own(tmp_path, layout):
    model = imported(tmp_path, layout, made_weights(layout, ROWS)).model
    xt = states(ROWS)
    assert isinstance(model, DiT)
    assert (model(xt, T) - model(xt, torch.full_like(T, 0.5))).abs().max() > 1e-2


def test_a_network_without_time_conditioning_is_always_told_zero(tmp_path):
    weights = made_weights("mdlm", ROWS)
    model = imported(tmp_path, "mdlm", weights, time=None).model
    assert type(model) is hf.Transformer
    assert not model.time
    xt = states(ROWS)
    theirs = outputs("mdlm", weights, HEADS, xt, torch.zeros(len(T)))
    assert (model(xt, T) - theirs[..., :TOKENS]).abs().max() < 1e-5


def test_features_and_head_run_apart_and_only_where_needed(tmp_path):
    run = imported(tmp_path, "duo", made_weights("duo", ROWS))
    xt = states(ROWS)
    model = run.model
    assert model.supports_partial_features()
    with torch.no_grad():
        whole = model(xt, T)
        partial = model.begin_features(xt, T)
        row, position = torch.tensor([0, 3, 3]), torch.tensor([5, 0, 2])
        assert torch.allclose(
            model.head(model.finish_features(partial, row, position)), whole[row, position], atol=1e-5
        )


def test_a_mask_in_the_middle_keeps_the_ids_of_the_tokenizer(tmp_path):
    weights = made_weights("mdlm", TOKENS)
    run = imported(tmp_path, "mdlm", weights, mask=3)
    assert run.flow.vocab == hf.Vocab(TOKENS, 1)
    xt = states(TOKENS)
    theirs = outputs("mdlm", weights, HEADS, xt, time_input("mdlm", T))
    ours = run.model(torch.where(xt == 3, TOKENS, xt), T)
    kept = [i for i in range(TOKENS) if i != 3]
    assert (ours[..., kept] - theirs[..., kept]).abs().max() < 1e-5
    assert (ours.softmax(-1)[..., 3] == 0).all()
    drawn = hf.generate(run.model, run.flow, n=200, length=6, steps=4, seed=0).tokens
    assert 3 not in drawn.unique()
    assert drawn.max() < TOKENS


def test_rows_without_a_token_are_left_out(tmp_path, tiny_tokenizer):
    weights = made_weights("gidd", 12)
    run = imported(tmp_path, "gidd", weights, tokenizer=str(tiny_tokenizer))
    assert run.flow.vocab == hf.Vocab(TOKENS, 1)
    xt = states(ROWS)
    theirs = outputs("gidd", weights, HEADS, xt, time_input("gidd", T))
    assert (run.model(xt, T) - theirs[..., :TOKENS]).abs().max() < 1e-5
    assert any("3 rows" in text for text in run.remarks)


@pytest.mark.parametrize("assumed", [True, False])
def test_an_assumed_number_of_heads_is_named(tmp_path, assumed):
    weights = made_weights("mdlm", ROWS, width=64 * HEADS)
    if assumed:
        del weights["rotary_emb.inv_freq"]  # its length is half the width of a head
    run = imported(tmp_path, "mdlm", weights)
    assert any("64 numbers per head were assumed" in text for text in run.remarks) == assumed


@pytest.mark.parametrize("scaled", [True, False])
def test_the_scores_of_sedd_are_the_imported_probabilities_times_a_known_factor(tmp_path, scaled):
    weights = made_weights("sedd", ROWS)
    run = imported(tmp_path, "sedd", weights)
    xt = torch.where(torch.arange(6) % 2 == 0, TOKENS, states(TOKENS))
    t = torch.tensor([0.01, 0.2, 0.4, 0.6, 0.8])
    scores = sedd_log_scores(weights, HEADS, xt, -t.log(), scaled).exp()[..., :TOKENS]
    masked = xt == TOKENS
    theirs = scores[masked] / scores[masked].sum(-1, keepdim=True)
    assert (run.model(xt, t).softmax(-1)[masked] - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_time_input_is_stored_and_has_finite_values_at_both_ends(example):
    assert from_plain(TimeInput, to_plain(example)) == example
    assert torch.isfinite(example.value(torch.tensor([0.0, 1.0]))).all()


# -- the flows ---------------------------------------------------------------------------------------------------------

FLOWS = {
    "mdlm": ("Mask", "Linear", "Carry"),
    "duo": ("Uniform", "Linear", "Evidence"),
    "sedd": ("Mask", "Linear", "Carry"),
    "flow_matching": ("Mask", "Linear", "Plain"),
    "gidd": ("Mask", "Linear", "Carry"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_flow_is_that_of_the_project(tmp_path, layout):
    imported(tmp_path, layout, made_weights(layout, ROWS))
    flow = hf.from_pretrained(tmp_path / "run").flow
    assert (type(flow.source).__name__, type(flow.schedule).__name__, type(flow.prediction).__name__) == FLOWS[layout]


def test_flow_matching_has_the_schedule_of_its_exponent_and_either_source(tmp_path):
    run = imported(tmp_path, "flow_matching", made_weights("flow_matching", ROWS), source="uniform", exponent=2.0)
    assert run.flow == hf.Flow(hf.Uniform(hf.Vocab(ROWS)), hf.Polynomial(2.0), hf.Plain())


def tiny(tmp_path: Path, layout: str) -> tuple[hf.Flow, torch.nn.Module, exact.Oracle]:
    """An imported network on two positions and three tokens, with its oracle."""
    run = imported(tmp_path, layout, made_weights(layout, 3 if layout == "duo" else 4, width=8, layers=1), length=2)
    q = torch.full((9,), 1 / 9, dtype=torch.float64)
    return run.flow, run.model, exact.Oracle(run.flow, q, 2, copy.deepcopy(run.model).double())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_samples_of_an_imported_network_have_the_law_of_the_oracle(tmp_path, layout):
    flow, model, oracle = tiny(tmp_path, layout)
    n = 20_000
    drawn = hf.generate(model, flow, n=n, length=2, steps=3, seed=3, batch=4096).tokens
    law = oracle.law(steps=3)
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9) / n
    assert ((counts - law).abs() < 4 * (law * (1 - law) / n).sqrt()).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps", [None, 5])
def test_the_bound_of_an_imported_network_agrees_with_the_oracle(tmp_path, layout, steps):
    flow, model, oracle = tiny(tmp_path, layout)
    if steps is None and not flow.prediction.has_finite_bounds(flow.source):
        pytest.skip("with Plain, bounds in continuous time are infinite")
    x1 = oracle.space.data.repeat(40, 1)
    found = hf.nll_bound(model, flow, x1, steps=steps, draws=16, batch=4096)
    target = exact.bound(oracle, eta=0.0, steps=steps).mean()
    assert found.is_bound
    assert abs(found.nats - target) < 4 * found.draw_stderr
    assert target > oracle.cross_entropy(steps=steps)  # a bound on the law of its own samples


def duo_step(probs: torch.Tensor, xt: torch.Tensor, alpha_t: float, alpha_s: float) -> torch.Tensor:
    """Duo's ancestral update: the posterior of its uniform noise with the network's probabilities in place of x1."""
    v = probs.shape[-1]
    here = torch.nn.functional.one_hot(xt, v)
    ratio = alpha_t / alpha_s
    above = alpha_t * v * probs * here + (ratio - alpha_t) * here
    above = above + (alpha_s - alpha_t) * probs + (1 - ratio) * (1 - alpha_s) / v
    return above / (alpha_t * v * probs.gather(-1, xt[..., None]) + 1 - alpha_t)


def test_euler_steps_with_eta_1_are_the_sampler_of_duo(tmp_path):
    _, _, oracle = tiny(tmp_path, "duo")
    weights = made_weights("duo", 3, width=8, layers=1)
    states = oracle.space.data
    law, steps = torch.full((9,), 1 / 9, dtype=torch.float64), 4
    for n in range(steps):
        k = torch.full((9,), n / steps)
        probs = outputs("duo", weights, HEADS, states, time_input("duo", k)).softmax(-1)
        each = duo_step(probs, states, n / steps, (n + 1) / steps)
        assert torch.allclose(each.sum(-1), torch.ones(9, 2, dtype=torch.float64))
        joint = (each[:, 0, :, None] * each[:, 1, None, :]).flatten(1)  # (from, to)
        law = law @ joint
    assert (oracle.law(eta=1.0, steps=steps) - law).abs().max() < 1e-6


def duo_loss(probs: torch.Tensor, xt: torch.Tensor, x1: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
    """The integrand of Duo's bound per unit of alpha: its divergence of reverse rates, summed over tokens."""
    v = probs.shape[-1]
    here = torch.nn.functional.one_hot(x1, v).double()
    of_net, of_data = (alpha * v * p + 1 - alpha for p in (probs, here))
    rate, true = (each / each.gather(-1, xt[..., None]) / (alpha * v) for each in (of_net, of_data))
    terms = true * (true / rate).log() - true + rate
    return terms.scatter(-1, xt[..., None], 0.0).sum(-1)


def test_the_bound_with_eta_1_is_the_bound_of_duo(tmp_path):
    _, _, oracle = tiny(tmp_path, "duo")
    weights = made_weights("duo", 3, width=8, layers=1)
    states = oracle.space.data  # 9 states, also the data
    nodes, sizes = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(24))
    theirs = torch.zeros(9, dtype=torch.float64)
    edges = torch.tensor([1e-9, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9, 0.99, 0.9999, 1 - 1e-6, 1 - 1e-9])
    for low, high in pairwise(edges.double()):
        for node, size in zip(nodes, sizes, strict=True):
            alpha = (low + high) / 2 + (high - low) / 2 * node
            logits = outputs("duo", weights, HEADS, states, time_input("duo", alpha.expand(9)))
            probs = logits.softmax(-1)
            for i, x1 in enumerate(states):
                each = duo_loss(probs, states, x1.expand(9, 2), alpha).sum(-1)
                noisy = torch.where(states == x1, alpha + (1 - alpha) / 3, (1 - alpha) / 3).prod(-1)
                theirs[i] += (high - low) / 2 * size * (noisy * each).sum()
    assert (exact.bound(oracle, eta=1.0) - theirs).abs().max() < 1e-5


# -- files -------------------------------------------------------------------------------------------------------------


def checkpoint(weights: dict[str, torch.Tensor], prefix: str = "backbone.", **more) -> dict[str, object]:
    """What Lightning stores, without the objects."""
    state = {f"{prefix}{name}": value for name, value in weights.items()}
    return {"state_dict": state, "optimizer_states": [{"state": {0: {"step": torch.tensor(5.0)}}}], **more}


def averages(weights: dict[str, torch.Tensor]) -> dict[str, object]:
    kept = [value for name, value in weights.items() if not name.startswith("rotary_emb")]
    return {"decay": 0.9999, "num_updates": 12, "shadow_params": kept}


def test_a_checkpoint_of_lightning_has_averaged_weights_and_a_step(tmp_path):
    raw, ema = made_weights("mdlm", ROWS), made_weights("mdlm", ROWS, seed=1)
    torch.save(checkpoint(raw, ema=averages(ema), global_step=7), tmp_path / "mdlm.ckpt")
    run = import_weights("mdlm", tmp_path / "mdlm.ckpt", out=tmp_path / "run", options=options("mdlm"))
    assert run.averages
    assert [step.name for step in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000007"]
    xt = states(ROWS)
    theirs = outputs("mdlm", ema, HEADS, xt, time_input("mdlm", T))[..., :TOKENS]
    assert (run.model(xt, T) - theirs).abs().max() < 1e-5


def test_a_checkpoint_of_the_older_format_and_weights_of_the_last_step(tmp_path):
    raw, ema = made_weights("sedd", ROWS), made_weights("sedd", ROWS, seed=1)
    content = {"optimizer": {}, "model": raw, "ema": averages(ema), "step": 3}
    torch.save(content, tmp_path / "checkpoint.pth", _use_new_zipfile_serialization=False)
    chosen = options("sedd", weights="raw")
    run = import_weights("sedd", tmp_path / "checkpoint.pth", out=tmp_path / "run", options=chosen)
    assert not run.averages
    xt = states(ROWS)
    theirs = outputs("sedd", raw, HEADS, xt, time_input("sedd", T))[..., :TOKENS]
    assert (run.model(xt, T) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize("prefix", ["", "backbone.", "_orig_mod.", "module._orig_mod.", "backbone._orig_mod.", "dit."])
def test_prefixes_of_wrappers_and_other_parts_of_a_trainer_are_left_out(tmp_path, prefix):
    weights = made_weights("duo", ROWS)
    more = {"noise.empty": torch.zeros(()), "teacher.vocab_embed.embedding": torch.zeros(ROWS, 16)}
    named = {f"{prefix}{name}": value for name, value in weights.items()}
    run = imported(tmp_path, "duo", {**named, **(more if prefix else {})})
    xt = states(ROWS)
    assert (run.model(xt, T) - outputs("duo", weights, HEADS, xt, time_input("duo", T))).abs().max() < 1e-5


def test_what_a_config_of_the_hub_says_is_used(tmp_path, tiny_tokenizer):
    weights = {k: v for k, v in made_weights("mdlm", ROWS, heads=4).items() if not k.startswith("rotary_emb")}
    save_file({f"backbone.{name}": value for name, value in weights.items()}, tmp_path / "model.safetensors")
    config = {"n_heads": 4, "model_length": 24, "time_conditioning": True, "cond_dim": 6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    chosen = ImportOptions(tokenizer=str(tiny_tokenizer))
    run = import_weights("mdlm", tmp_path, out=tmp_path / "run", options=chosen)
    assert (run.model.size.heads, run.length, type(run.model)) == (4, 24, DiT)
    xt = states(ROWS)
    theirs = outputs("mdlm", weights, 4, xt, time_input("mdlm", T))[..., :TOKENS]
    assert (run.model(xt, T) - theirs).abs().max() < 1e-5


def test_a_tokenizer_gets_the_tokens_that_only_the_network_has(tmp_path, tiny_tokenizer):
    run = imported(tmp_path, "duo", made_weights("duo", ROWS), tokenizer=str(tiny_tokenizer))
    found = hf.from_pretrained(tmp_path / "run").tokenizer
    assert found.size == run.flow.vocab.data == ROWS
    assert found.encode("the red owl") == [0, 1, 2]
    assert found.decode([2, 8]) == "owl [PAD]"


@pytest.mark.parametrize("layout", ["sedd", "flow_matching"])
def test_a_mask_of_the_tokenizer_is_a_data_token_where_the_project_adds_its_own(tmp_path, layout):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer_json(("the", "red", "[MASK]", "owl", "a", "grey", "ram", "[UNK]"))))
    weights = made_weights(layout, ROWS)
    run = imported(tmp_path, layout, weights, tokenizer=str(file))
    assert run.flow.vocab == hf.Vocab(TOKENS, 1)
    xt = states(ROWS)
    theirs = outputs(layout, weights, HEADS, xt, time_input(layout, T))[..., :TOKENS]
    assert (run.model(xt, T) - theirs).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_length", 0, "length must be ≥ 1"),
        ("model_length", 10**12, "length must be ≥ 1 and ≤ 1048576"),
        ("n_heads", -2, "heads must be ≥ 1"),
        ("p_uniform", 2, "uniform must"),
    ],
)
def test_a_config_with_impossible_numbers_is_refused(tmp_path, key, value, message):
    save_file(made_weights("gidd", ROWS), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"p_uniform": 0.0, key: value}))
    with pytest.raises(ValueError, match=message):
        import_weights("gidd", tmp_path, out=tmp_path / "run", options=ImportOptions(tokenizer="none"))
    assert not (tmp_path / "run").exists()


def test_a_safetensors_file_whose_first_bytes_look_like_a_pickle_is_read(tmp_path):
    weights = {"a": torch.ones(2)}
    file = tmp_path / "a.safetensors"
    save_file(weights, file)
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].ljust(0x0280)  # the bytes 80 02, as of a pickle
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    assert file.read_bytes()[:2] == b"\x80\x02"
    assert read_tensors(file, "").tensors["a"].tolist() == [1.0, 1.0]


def test_a_mask_is_found_by_its_name(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer_json(("the", "red", "[MASK]", "owl", "a", "grey", "ram", "[UNK]"))))
    run = imported(tmp_path, "mdlm", made_weights("mdlm", TOKENS), tokenizer=str(file))
    assert run.flow.vocab == hf.Vocab(TOKENS, 1)
    assert any("token 2 is the mask" in text for text in run.remarks)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_imported_run_is_sampled_infilled_and_evaluated(tmp_path, monkeypatch, hopflow, tiny_tokenizer, layout):
    monkeypatch.chdir(tmp_path)
    save_file(made_weights(layout, ROWS), "made.safetensors")
    own = {"gidd": ["uniform=0"]}.get(layout, [])
    done = hopflow("import", layout, "made.safetensors", f"tokenizer={tiny_tokenizer}", "length=8", *own)
    assert done.code == 0, done.message
    drawn = hopflow("sample", "runs/made", "n=2", "steps=4")
    assert drawn.code == 0, drawn.message
    filled = hopflow("infill", "runs/made", "the red [MASK:3] ram", "steps=4")
    assert filled.out.startswith("the red")
    Path("text.txt").write_text("the red owl greets a grey ram " * 20)
    measured = hopflow("eval", "runs/made", "data=text.txt", "n=4", "rows=8", "draws=2", "paths=2", "steps=4")
    assert measured.code == 0, measured.message
    assert json.loads(Path("runs/made/eval.json").read_text())["rows"]


def test_a_report_of_an_imported_run_can_be_written(tmp_path, monkeypatch, hopflow, tiny_tokenizer):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    imported(tmp_path, "mdlm", made_weights("mdlm", ROWS), tokenizer=str(tiny_tokenizer))
    assert hopflow("report", "run").code == 0
    assert "mdlm" in Path("run/report.html").read_text()


def test_a_path_that_is_not_convex_is_imported_as_a_network_only(tmp_path, hopflow, tiny_tokenizer):
    run = imported(tmp_path, "gidd", made_weights("gidd", ROWS), uniform=0.2, tokenizer=str(tiny_tokenizer))
    assert run.flow is None
    model = hf.from_pretrained(tmp_path / "run").model
    xt = states(ROWS)
    theirs = outputs("gidd", made_weights("gidd", ROWS), HEADS, xt, time_input("gidd", T))[..., :TOKENS]
    assert (model(xt, T) - theirs).abs().max() < 1e-5
    for command in ("sample", "eval"):
        refused = hopflow(command, tmp_path / "run")
        assert refused.code == 2
        assert "changes with time" in refused.message


def test_the_help_lists_the_layouts():
    assert re.split(r", | or ", LISTED) == list(LAYOUTS)


# -- what is refused ---------------------------------------------------------------------------------------------------


class RunsCode:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


def change(layout: str, name: str, value: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Made weights with one tensor replaced, or left out."""
    weights = made_weights(layout, ROWS)
    if value is None:
        del weights[name]
        return weights
    return {**weights, name: value}


NORM = "blocks.1.norm2.weight"
BAD = {
    "missing": (lambda: change("mdlm", NORM, None), f"missing {NORM}"),
    "extra": (lambda: change("mdlm", "blocks.1.extra", torch.ones(2)), "unexpected blocks.1.extra"),
    "extra next to it": (
        lambda: {**{f"model.{k}": v for k, v in made_weights("mdlm", ROWS).items()}, "labels": torch.ones(2)},
        "unexpected labels",
    ),
    "shape": (lambda: change("mdlm", NORM, torch.ones(3)), f"{NORM} has shape [3], expected [16]"),
    "nan": (lambda: change("mdlm", NORM, torch.full((16,), torch.nan)), f"{NORM} contains values that are not finite"),
    "integers": (lambda: change("mdlm", NORM, torch.ones(16, dtype=torch.int64)), "not finite numbers"),
    "another rotary base": (
        lambda: change("mdlm", "rotary_emb.inv_freq", torch.tensor([1.0, 0.5, 0.2, 0.1])),
        "does not have the values of a rotary embedding",
    ),
    "a scaled slow rotation": (
        lambda: change("mdlm", "rotary_emb.inv_freq", torch.tensor([1.0, 0.1, 0.01, 0.0005])),
        "does not have the values of a rotary embedding",
    ),
    "another layout": (lambda: made_weights("flow_matching", ROWS), "it has no vocab_embed.embedding"),
    "one network twice": (
        lambda: {f"{p}{k}": v.clone() for p in ("", "_orig_mod.") for k, v in made_weights("mdlm", ROWS).items()},
        "names that differ only in _orig_mod.",
    ),
    "a name of two lines": (
        lambda: change("mdlm", "blocks.1.a\nhopflow: all is well", torch.ones(2)),
        "unexpected blocks.1.a⏎hopflow: all is well",
    ),
    "two networks": (
        lambda: {f"{p}.{k}": v.clone() for p in "ab" for k, v in made_weights("mdlm", ROWS).items()},
        "it has 2 networks",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path, monkeypatch, hopflow, case):
    monkeypatch.chdir(tmp_path)
    weights, message = BAD[case]
    save_file(weights(), "made.safetensors")
    refused(hopflow, message, "mdlm", "made.safetensors", "tokenizer=none")


def refused(hopflow, message: str, *words: object) -> str:
    """The command ends with one message, which is returned, exit code 2, and no folder."""
    own = any(str(word).startswith("out=") for word in words)
    found = hopflow("import", *words, *([] if own else ["out=out/run"]))
    assert found.code == 2, found.err
    assert message in found.message
    assert len(found.message.splitlines()) <= 6
    assert "Traceback" not in found.err
    assert not Path("out").exists()
    return found.message


def test_a_pickle_with_objects_is_refused_and_runs_no_code(tmp_path, monkeypatch, hopflow):
    monkeypatch.chdir(tmp_path)
    content = checkpoint(made_weights("mdlm", ROWS), hyper_parameters=RunsCode(tmp_path / "canary"))
    torch.save(content, "evil.ckpt")
    found = refused(hopflow, "contains objects besides tensors (posix.mkdir)", "mdlm", "evil.ckpt")
    assert "then hopflow import mdlm evil-tensors.pt" in found
    assert not Path("canary").exists()


def test_a_damaged_file_of_any_kind_is_refused(tmp_path, monkeypatch, hopflow):
    monkeypatch.chdir(tmp_path)
    torch.save(checkpoint(made_weights("mdlm", ROWS)), "whole.ckpt")
    save_file(made_weights("mdlm", ROWS), "whole.safetensors")
    whole, tensors = Path("whole.ckpt").read_bytes(), Path("whole.safetensors").read_bytes()
    Path("cut.ckpt").write_bytes(whole[: len(whole) // 2])
    Path("cut.safetensors").write_bytes(tensors[: len(tensors) // 2])
    Path("text.pt").write_text("not weights")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    Path("huge.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    Path("empty.pt").write_bytes(b"")
    refused(hopflow, "is damaged, truncated or not a file of torch.save", "mdlm", "cut.ckpt")
    for name in ("cut.safetensors", "text.pt", "huge.safetensors", "empty.pt"):
        refused(hopflow, "neither a complete safetensors file nor a file of torch.save", "mdlm", name)


def test_an_archive_with_compressed_parts_is_refused(tmp_path, monkeypatch, hopflow):
    monkeypatch.chdir(tmp_path)
    torch.save(checkpoint(made_weights("mdlm", ROWS)), "made.ckpt")
    with ZipFile("made.ckpt") as made, ZipFile("packed.ckpt", "w", ZIP_DEFLATED) as packed:
        for name in made.namelist():
            packed.writestr(name, made.read(name))
    refused(hopflow, "its parts are compressed", "mdlm", "packed.ckpt", "tokenizer=none")


@pytest.mark.parametrize("steps", [-5, 10**30])
def test_an_impossible_number_of_steps_is_left_out(tmp_path, steps):
    torch.save({"state_dict": made_weights("mdlm", ROWS), "global_step": steps}, tmp_path / "made.ckpt")
    import_weights("mdlm", tmp_path / "made.ckpt", out=tmp_path / "run", options=options("mdlm"))
    assert hf.from_pretrained(tmp_path / "run").folder.name == "step-000000000"


def test_a_file_is_read_if_python_has_no_bytecode_of_its_modules_yet(tmp_path, monkeypatch):
    def start(*arguments, **more):
        return PythonProcess("-X", f"pycache_prefix={tmp_path / 'bytecode'}", *arguments, **more)

    monkeypatch.setattr(tensor_files, "PythonProcess", start)
    torch.save({"state_dict": {"a": torch.ones(2)}}, tmp_path / "a.pt")
    assert read_tensors(tmp_path / "a.pt", "").tensors["a"].tolist() == [1.0, 1.0]


def test_a_checkpoint_that_needs_more_memory_than_its_size_is_refused(tmp_path, monkeypatch, hopflow):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {"a": torch.zeros(1).expand(1 << 36)}}, "huge.pt")  # 256 GiB from four bytes
    refused(hopflow, "describes more data than it has bytes", "mdlm", "huge.pt")


@pytest.mark.parametrize(
    "content", [[1, 2], {"state_dict": {}}, {"state_dict": {"a": 1}}, torch.zeros(3), {3: torch.zeros(1)}]
)
def test_a_checkpoint_without_a_network_is_refused(tmp_path, content):
    with pytest.raises(unpickle_tensors.Refused) as error:
        unpickle_tensors.copy(content, tmp_path)
    assert error.value.kind == "shape"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["sparse", "complex", "meta"])
def test_a_tensor_that_is_not_a_plain_array_is_refused(tmp_path, kind):
    value = {
        "sparse": torch.eye(2).to_sparse(),
        "complex": torch.zeros(2, dtype=torch.complex64),
        "meta": torch.zeros(2, device="meta"),
    }[kind]
    with pytest.raises(unpickle_tensors.Refused):
        unpickle_tensors.copy({"a": value}, tmp_path)


def test_averages_of_another_network_are_refused():
    other = tuple(averages(made_weights("mdlm", ROWS, layers=1))["shadow_params"])
    stored = StoredTensors(Path("made.ckpt"), made_weights("mdlm", ROWS), other)
    with pytest.raises(ValueError, match="set weights=raw"):
        NetworkWeights.of(LAYOUTS["mdlm"], stored, averages=True)


MISTAKES = {
    "an unknown layout": (["mdml", "{file}"], "did you mean 'mdlm'?"),
    "no file": (["mdlm", "nowhere.pt"], "No such file"),
    "a folder without weights": (["mdlm", "{folder}"], "has no file of weights"),
    "an unknown setting": (["mdlm", "{file}", "masks=3"], "did you mean 'mask'?"),
    "a setting of another layout": (["mdlm", "{file}", "exponent=2"], "exponent is not a setting of the layout mdlm"),
    "no share of uniform noise": (["gidd", "{file}"], "set uniform=0 or uniform=0.1"),
    "a mask out of range": (["mdlm", "{file}", "tokenizer=none", "mask=99"], "from 0 to 8, got 99"),
    "heads that do not divide": (["mdlm", "{file}", "tokenizer=none", "heads=3"], "is that of 2 heads"),
    "the uniform graph": (["sedd", "{file}", "source=uniform"], "SEDD with the uniform graph cannot be imported"),
    "a tokenizer made from a text": (["mdlm", "{file}", "tokenizer=char"], "choose gpt2, byte, none"),
    "a tokenizer with other tokens": (["mdlm", "{file}", "tokenizer=byte"], "or another tokenizer="),
    "no averages": (["mdlm", "{file}", "tokenizer=none", "weights=ema"], "has no averaged weights"),
    "a clock that is not used": (["mdlm", "{file}", "tokenizer=none", "smallest=0.1"], "set time=true"),
    "a folder inside a file": (["mdlm", "{file}", "out={file}/run"], "this is a file, not a folder"),
    "a length of zero": (["mdlm", "{file}", "length=0"], "length must be an integer"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_message(tmp_path, monkeypatch, hopflow, case):
    monkeypatch.chdir(tmp_path)
    save_file(made_weights("mdlm", ROWS), "made.safetensors")
    (tmp_path / "empty").mkdir()
    words, message = MISTAKES[case]
    refused(hopflow, message, *(word.format(file="made.safetensors", folder="empty") for word in words))


def test_an_existing_folder_is_left_alone(tmp_path, monkeypatch, hopflow):
    monkeypatch.chdir(tmp_path)
    save_file(made_weights("mdlm", ROWS), "made.safetensors")
    Path("runs/made").mkdir(parents=True)
    found = hopflow("import", "mdlm", "made.safetensors", "tokenizer=none")
    assert (found.code, "choose another folder with out=FOLDER" in found.message) == (2, True)
    assert not list(Path("runs/made").iterdir())


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "open('new', 'w')",
        "import os; open(os.getcwd() + '/allowed/../new', 'w')",
        "import os; os.open('kept', os.O_RDONLY | os.O_TRUNC)",
        "import os; os.remove('kept')",
        "import ctypes; ctypes.CDLL(None)",
        "permit('ctypes.call_function'); import os; os.remove('kept')",
    ],
)
def test_the_process_that_reads_pickles_ends_when_it_is_misused(tmp_path, code):
    (tmp_path / "kept").write_text("kept")
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    start = f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r}); import unpickle_tensors as u"
    start += "; from pathlib import Path"
    forbid = (
        f"permit = u.forbid(Path({str(allowed)!r})); open({str(allowed / 'file')!r}, 'w').close(); print('allowed')"
    )
    found = subprocess.run(
        [sys.executable, "-c", f"{start}\n{forbid}\n{code}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 3, found.stderr
    assert found.stderr.startswith("refused: ")
    assert (tmp_path / "kept").read_text() == "kept"
    assert not (tmp_path / "new").exists()
