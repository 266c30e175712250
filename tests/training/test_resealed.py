"""A checkpoint with right digests and a content that makes no sense: refused with its reason, exit 2."""

import hashlib
import json
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SMALL, is_one_message, snapshot
from texts import Letters
from torch import Tensor

import hopflow as hf
from hopflow.models import Size, Transformer
from hopflow.runs import checkpoint
from hopflow.runs.checkpoint import Checkpoint, DamagedFile
from hopflow.runs.ot_batch import Share
from hopflow.training.settings import Settings
from hopflow.training.trainer import Trainer, task_for

KEYS = (*SMALL, "workers=0", "coupling=exact", "cost=embedding", "ot_ema=0.9", "weight_ema=0.9", "source=multimask")
SETTINGS = Settings.of(
    {"steps": 4, "batch": 4, "ot_batch": 8, "workers": 0, "ot_ema": 0.9, "weight_ema": 0.9, "warmup": 2}
)
Groups = dict[str, dict[str, Tensor]]


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    """After four steps; what its pairs were computed with is past."""
    corpus = Letters()
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    torch.manual_seed(0)
    model = Transformer(flow.vocab, Size(layers=1, width=16, heads=2))
    trainer = Trainer(model, task_for(model, flow, corpus, SETTINGS, Share()), SETTINGS, torch.device("cpu"), Share())
    for step in range(4):
        trainer.update(step)
    return trainer


@pytest.fixture(scope="module")
def saved(trainer) -> Groups:
    return {
        group: {name: tensor.clone() for name, tensor in tensors.items()} for group, tensors in trainer.state().items()
    }


@pytest.fixture
def groups(saved) -> Groups:
    return {group: dict(tensors) for group, tensors in saved.items()}


@pytest.fixture
def run(fox, hopflow, tmp_path) -> Path:
    result = hopflow("train", fox, *KEYS, "steps=4", "keep=1", f"out={tmp_path / 'run'}")
    assert result.code == 0, result.err
    return tmp_path / "run"


def resume(hopflow, fox: str, run: Path):
    return hopflow("train", fox, *KEYS, "steps=6", "keep=1", f"out={run}")


def reseal_tensors(run: Path, change: Callable[[Groups], object]) -> None:
    home = run / "checkpoints"
    found = checkpoint.latest(home)
    assert found is not None
    groups = {name: dict(tensors) for name, tensors in found.groups.items()}
    change(groups)
    config = checkpoint.folder_of(home, found.step) / "config.json"
    text = config.read_text()
    shutil.rmtree(config.parent)
    checkpoint.save(home, Checkpoint(found.step, groups, found.facts, lambda _: text))


def reseal_state(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = folder / "state.json"
    state = json.loads(file.read_text().rsplit("\n", 2)[0])
    change(state)
    body = json.dumps(state, indent=1, sort_keys=True)
    file.write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")


def each(group: str, ends: str, change: Callable[[Tensor], Tensor]) -> Callable[[Groups], object]:
    """Change every tensor of a group whose name ends so."""

    def changed(groups: Groups) -> None:
        found = {name: change(tensor) for name, tensor in groups[group].items() if name.endswith(ends)}
        assert found
        groups[group] |= found

    return changed


def without(group: str, ends: str) -> Callable[[Groups], object]:
    def changed(groups: Groups) -> None:
        kept = {name: tensor for name, tensor in groups[group].items() if not name.endswith(ends)}
        assert len(kept) < len(groups[group])
        groups[group] = kept

    return changed


def renamed(groups: Groups) -> None:
    groups["pairs"] = {f"first{name}": tensor for name, tensor in groups["pairs"].items()}


def far(groups: Groups) -> None:
    groups["pairs"] |= {f"{10**30}.{name.partition('.')[2]}": tensor for name, tensor in groups["pairs"].items()}


def put(group: str, name: str, tensor: Tensor) -> Callable[[Groups], object]:
    return lambda groups: groups[group].update({name: tensor})


def nan(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, float("nan"))


TENSORS: dict[str, tuple[Callable[[Groups], object], str]] = {
    "no optimizer state": (without("optimizer", ""), "has no optimizer state"),
    "moments in half precision": (each("optimizer", "exp_avg", Tensor.half), "torch.float16"),
    "moments that are single numbers": (each("optimizer", "exp_avg", lambda x: x.mean()), "of shape ()"),
    "moments of another shape": (each("optimizer", "exp_avg_sq", lambda x: x.flatten()[:1]), "of shape (1,)"),
    "no second moments": (without("optimizer", "exp_avg_sq"), "lacks exp_avg_sq"),
    "moments that are NaN": (each("optimizer", "exp_avg", nan), "not finite"),
    "negative second moments": (each("optimizer", "exp_avg_sq", lambda x: -x - 1), "negative"),
    "an optimizer of another kind": (put("optimizer", "table/momentum", torch.ones(2)), "momentum"),
    "step counts beyond the run": (each("optimizer", "/step", lambda x: x + 10), "between 1 and 4, got 14"),
    "step counts in half precision": (each("optimizer", "/step", Tensor.half), "torch.float16"),
    "weights that are NaN": (each("train", "weight", nan), "not finite"),
    "averaged weights that are NaN": (each("model", "weight", nan), "not finite"),
    "weights in half precision": (each("train", "weight", Tensor.half), "torch.float16"),
    "no table": (without("ot_ema", ""), "must contain the entry 'value'"),
    "a table that is NaN": (each("ot_ema", "", nan), "not finite"),
    "pairs beyond the vocabulary": (each("pairs", "x0", lambda x: x + 10**6), "token"),
    "negative pairs": (each("pairs", "x0", lambda x: -x - 1), "token"),
    "pairs that no source draws": (each("pairs", "x0", torch.zeros_like), "token 0"),
    "pairs that are fractions": (each("pairs", "x0", Tensor.float), "torch.float32"),
    "pairs without their numbers": (without("pairs", "numbers"), "numbers"),
    "pairs with too few numbers": (each("pairs", "numbers", lambda x: x[:2]), "numbers"),
    "pairs with numbers that are NaN": (each("pairs", "numbers", nan), "numbers"),
    "pairs of no OT batch": (renamed, "first"),
    "pairs of an OT batch far away": (far, "1000000000"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_invalid_tensors_of_a_checkpoint_are_refused(trainer, groups, case):
    change, reason = TENSORS[case]
    change(groups)
    with pytest.raises(ValueError, match=re.escape(reason)):
        trainer.load(Checkpoint(4, groups))


def test_unchanged_tensors_of_a_checkpoint_are_loaded(trainer, groups):
    trainer.load(Checkpoint(4, groups))
    trainer.update(4)
    trainer.settle()


def test_at_the_first_step_there_is_no_state_of_the_optimizer(trainer, groups):
    groups["optimizer"] = {}
    groups["pairs"] = {}
    trainer.load(Checkpoint(0, groups))
    trainer.update(0)
    trainer.settle()


def facts(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["facts"].update(values)


STATES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a list for facts": (lambda state: state.update(facts=[]), "facts"),
    "pairs for facts": (lambda state: state.update(facts=[["seconds", 1.0]]), "facts"),
    "a word for facts": (lambda state: state.update(facts="none"), "facts"),
    "a list for seconds": (facts(seconds=[1]), "seconds"),
    "a word for seconds": (facts(seconds="long"), "seconds"),
    "negative seconds": (facts(seconds=-1), "seconds"),
    "seconds beyond all": (facts(seconds=10**19), "seconds"),
    "an integer beyond every float": (facts(seconds=10**400), "more than 20 digits"),
    "a list for threads": (facts(threads=[2]), "threads"),
    "no threads": (facts(threads=0), "threads"),
    "a list for the version of torch": (facts(torch=["2"]), "torch"),
    "a number for the recipe": (facts(recipe_hash=7), "recipe_hash"),
    "a list for files": (lambda state: state.update(files=[]), "files"),
    "another step": (lambda state: state.update(step=3), "step"),
    "a size that is a word": (lambda state: state["files"]["model.safetensors"].update(bytes="many"), "model"),
}


@pytest.mark.parametrize("case", STATES)
def test_invalid_facts_of_a_checkpoint_are_refused(groups, tmp_path, case):
    change, reason = STATES[case]
    facts = {"seconds": 1.5, "threads": 1, "torch": "2", "recipe_hash": "0"}
    folder = checkpoint.save(tmp_path, Checkpoint(4, groups, facts))
    checkpoint.load(folder)
    reseal_state(folder, change)
    with pytest.raises(DamagedFile, match=reason):
        checkpoint.load(folder)
    with pytest.raises(DamagedFile, match="no checkpoint in"), pytest.warns(RuntimeWarning, match=reason):
        checkpoint.latest(tmp_path)


def test_a_changed_and_resealed_run_resumes_or_explains_why_not(hopflow, fox, run):
    reseal_tensors(run, lambda groups: None)
    newest = run / "checkpoints" / "step-000000004"
    reseal_state(newest, lambda state: None)
    for change, reason in (
        (lambda: reseal_tensors(run, without("optimizer", "")), "has no optimizer state"),
        (lambda: reseal_state(newest, lambda state: state.update(facts=[])), "no checkpoint in"),
    ):
        change()
        before = snapshot(run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = resume(hopflow, fox, run)
        assert result.code == 2, result.err
        assert is_one_message(result.message), result.err
        assert reason in result.message
        assert snapshot(run) == before


def test_an_unchanged_and_resealed_run_resumes(hopflow, fox, run):
    reseal_tensors(run, lambda groups: None)
    reseal_state(run / "checkpoints" / "step-000000004", lambda state: None)
    result = resume(hopflow, fox, run)
    assert result.code == 0, result.err
    assert checkpoint.steps(run / "checkpoints") == [6]
