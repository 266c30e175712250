"""hopflow rectify, and hopflow train on its pairs: what they print and refuse."""

import json
from pathlib import Path

import pytest

import hopflow as hf
from hopflow.recipes import Recipe, build

DOG = "the dog sleeps on the old sofa and dreams of the cat; " * 40
QUICK = {
    "length": 16,
    "holdout": 0.1,
    "batch": 8,
    "steps": 2,
    "workers": 0,
    "device": "cpu",
    "eval_every": 0,
    "eval_samples": 0,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A text and a run from the bag of its letters."""
    folder = tmp_path_factory.mktemp("rectify")
    (folder / "dog.txt").write_text(DOG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(folder / "cache"))
        build(Recipe(data=str(folder / "dog.txt"), source="bag_of_words", eval_rows=0, **QUICK)).train(out=folder / "a")
    return folder


@pytest.fixture(autouse=True)
def in_a_folder(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def train(hopflow, home: Path, *words: str):
    settings = [f"{key}={value}" for key, value in QUICK.items()]
    return hopflow("train", str(home / "dog.txt"), "source=bag_of_words", *settings, "eval_rows=2", *words)


def test_pairs_are_drawn_then_trained_on_from_the_first_run_with_fresh_text(hopflow, home):
    result = hopflow("rectify", str(home / "a"), "n=32", "steps=4", "out=pairs", "--json", "pairs.json")
    assert result.code == 0, result.err
    numbers, store = json.loads(Path("pairs.json").read_text()), hf.PairStore.open("pairs")
    assert (numbers["pairs"], numbers["predicted_jumps"]) == (32, pytest.approx(store.hops()[0]))
    hops = f"{store.hops()[0]:.2f}"
    assert f"predicted hops:     {hops} ±" in result.out
    assert f"coupling=rectified:pairs init={home / 'a'}" in result.out.replace("\n", "")
    result = train(hopflow, home, "coupling=rectified:pairs", "fresh=0.3", f"init={home / 'a'}", "out=b")
    assert result.code == 0, result.err
    before, _, after = result.err.partition("step 1/2")
    assert "32 pairs of pairs and a share of 0.3 of text with independent noise: predicted hops" in before
    assert after
    assert hf.from_pretrained("b").flow.coupling == hf.Rectified("pairs", 0.3)


def test_wrong_stores_are_refused_before_anything_is_written(hopflow, home):
    assert hopflow("rectify", str(home / "a"), "n=8", "steps=2", "out=pairs").code == 0
    for words, message in (
        (["coupling=rectified:nothing"], "there is no pair store nothing"),
        (["coupling=rectified"], "coupling=rectified needs a store: coupling=rectified:STORE"),
        (["coupling=rectified:pairs", "fresh=2"], "fresh must be a share from 0 to 1"),
        (["coupling=rectified:pairs", "tokens=byte"], "pairs of"),
    ):
        result = train(hopflow, home, *words, "out=c")
        assert result.code == 2, (words, result.err)
        assert message in " ".join(result.err.split())
        assert not Path("c").exists()
