"""The identity of an older run is completed by the defaults of the keys it lacks."""

from dataclasses import dataclass, field

import pytest

from hopflow.couplings import ExactOT, SinkhornOT
from hopflow.flow import Flow
from hopflow.runs.identity import flatten, recipe_hash, with_defaults
from hopflow.runs.run_folder import RunFolder, read_recipe
from hopflow.runs.storage import to_plain
from hopflow.sources import MultiMask
from hopflow.vocab import Vocab

SOURCE = MultiMask(Vocab(3, 3))


@dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclass(frozen=True)
class Outer:
    """A component with a number, a component whose default differs from its class's, and a list."""

    needed: int
    number: float = 0.5
    inner: Inner = Inner(size=7)
    values: tuple[int, ...] = field(default_factory=lambda: tuple(range(20)))


def identity(component) -> dict:
    return flatten("part", to_plain(component))


def test_nested_data_becomes_flat_keys_and_a_long_list_its_hash():
    flat = identity(Outer(3))
    assert flat["part.kind"] == "Outer"
    assert flat["part.inner.size"] == 7
    assert len(flat["part.values"]) == 64


@pytest.mark.parametrize(
    "removed", [("number",), ("inner.kind", "inner.size"), ("values",), ("number", "values")], ids=str
)
def test_a_missing_argument_is_completed_by_its_default(removed):
    complete = identity(Outer(3))
    old = {key: value for key, value in complete.items() if key.removeprefix("part.") not in removed}
    assert old != complete
    assert with_defaults(old, {}, {"part": Outer(3)}) == complete


def test_a_missing_argument_of_an_inner_component_is_completed_by_the_default_of_its_class():
    old = {key: value for key, value in identity(Outer(3)).items() if key != "part.inner.size"}
    assert with_defaults(old, {}, {"part": Outer(3)})["part.inner.size"] == 1


def test_a_missing_argument_without_default_stays_missing():
    old = {key: value for key, value in identity(Outer(3)).items() if key != "part.needed"}
    assert "part.needed" not in with_defaults(old, {}, {"part": Outer(3)})


def test_a_missing_argument_is_completed_by_its_default_and_not_by_the_requested_value():
    old = {key: value for key, value in identity(Outer(3)).items() if key != "part.number"}
    assert with_defaults(old, {}, {"part": Outer(3, number=2.0)})["part.number"] == 0.5


def test_arguments_of_another_class_are_not_completed_by_defaults():
    flow = Flow(SOURCE, coupling=ExactOT())
    old = flatten("flow", to_plain(flow))
    assert with_defaults(old, {}, {"flow": Flow(SOURCE, coupling=SinkhornOT())}) == old


def test_a_saved_setting_wins_over_its_default():
    assert with_defaults({"lr": 1.0}, {"lr": 0.1, "clip": 2.0}, {}) == {"lr": 1.0, "clip": 2.0}


def test_a_run_without_a_flow_is_completed_by_its_settings():
    assert with_defaults({"lr": 1.0}, {"clip": 2.0}, {"flow": None}) == {"lr": 1.0, "clip": 2.0}


def settle(path, asked):
    with RunFolder(path) as folder:
        return folder.settle(asked, {}, set(), lambda saved: with_defaults(saved, {"clip": 1.0}, {}))


def test_a_run_that_is_older_than_a_setting_is_resumed_with_its_default_and_the_same_hash(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.settle({"lr": 0.1}, {}, set())
    kept = settle(tmp_path, {"lr": 0.1, "clip": 1.0})
    assert kept == {"lr": 0.1}
    assert recipe_hash(kept) == read_recipe(tmp_path)["recipe_hash"]


def test_a_run_that_is_older_than_a_setting_is_not_resumed_with_another_value(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.settle({"lr": 0.1}, {}, set())
    with pytest.raises(ValueError, match=r"clip: 1.0 in the folder, 2.0 in this command"):
        settle(tmp_path, {"lr": 0.1, "clip": 2.0})
