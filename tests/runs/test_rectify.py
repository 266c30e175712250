"""rectify and the pair store: the law of the pairs, and what is left after kills, cuts and changes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toys

import hopflow as hf
from hopflow import exact
from hopflow.runs.pair_store import DamagedPairs, PairStore, chunk_file

FLOW = hf.Flow(hf.Uniform(hf.Vocab(3)))


def perfect() -> exact.Perfect:
    return exact.Perfect(FLOW, toys.dirichlet(9, seed=1), 2)


def posterior(oracle: exact.Oracle):
    """The network whose softmax is the exact posterior of x1, also for coupled pairs."""

    def network(xt, t):
        out = torch.empty(*xt.shape, oracle.flow.vocab.data, dtype=torch.float64)
        for moment in t.unique():
            law, _ = oracle.predictive(oracle.at(float(moment)))
            rows = t == moment
            out[rows] = law[0][oracle.space.ids(xt[rows])].nan_to_num(1 / 3).log()
        return out

    return network


def draw(out: Path, n: int = 12, chunk: int | None = 4, **options) -> PairStore:
    network = options.pop("network", None) or perfect()
    return hf.rectify(network, FLOW, out=out, n=n, length=2, chunk=chunk, **{"steps": 3, "seed": 5, **options})


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("pairs-*.bin"))}


@pytest.mark.parametrize("steps", [1, 4])
def test_the_pairs_of_a_perfect_network_follow_the_joint_distribution_of_the_oracle(tmp_path, steps):
    n = 20_000
    store = hf.rectify(perfect(), FLOW, out=tmp_path / "s", n=n, length=2, steps=steps, seed=2)
    x0, x1 = store.pairs(np.arange(n))
    space = exact.Space(FLOW.vocab, 2)
    counts = torch.bincount(space.ids(x0) * 9 + space.ids(x1), minlength=81)
    oracle = exact.Oracle(FLOW, toys.dirichlet(9, seed=1), 2)
    expected = exact.rectify(oracle, steps).matrix(space).flatten()
    error = (expected * (1 - expected) / n).sqrt()
    assert ((counts / n - expected).abs() <= 4 * error + 1e-12).all()


def test_the_hops_that_the_pairs_predict_are_those_of_the_flow_trained_on_them(tmp_path):
    n = 20_000
    flow = replace(FLOW, prediction=hf.Plain())
    first = exact.Oracle(flow, toys.dirichlet(9, seed=1), 2)
    store = hf.rectify(posterior(first), flow, out=tmp_path / "s", n=n, length=2, steps=4, seed=3)
    second = replace(first, joint=exact.rectify(first, 4))  # the perfect network of these pairs
    drawn = hf.generate(posterior(second), flow, n=n, length=2, steps=64, seed=4).jumps.double()
    hops, error = store.hops()
    assert hops == pytest.approx(second.jumps(), abs=4 * error)
    assert hops == pytest.approx(float(drawn.mean()), abs=4 * (error**2 + float(drawn.var()) / n) ** 0.5 + 0.02)


def test_pair_i_does_not_depend_on_the_number_of_pairs_or_their_files(tmp_path):
    one, other = draw(tmp_path / "a", 12, 4), draw(tmp_path / "b", 6, 3)
    for a, b in zip(one.pairs(np.arange(6)), other.pairs(np.arange(6)), strict=True):
        assert torch.equal(a, b)


def test_facts_are_stored_with_the_pairs_in_a_new_folder(tmp_path):
    store = draw(tmp_path / "deep" / "er" / "s", about={"run": "runs/first"})
    assert store.header["about"] == {"run": "runs/first"}
    assert "about" not in draw(tmp_path / "s").header


def test_a_larger_n_appends_and_keeps_what_is_there(tmp_path):
    before = content(draw(tmp_path / "s", 8).folder)
    after = draw(tmp_path / "s", 10, None)
    assert len(after) == 12
    assert content(after.folder).items() >= before.items()
    assert content(after.folder) == content(draw(tmp_path / "whole", 12).folder)


def test_missing_files_and_leftovers_of_a_killed_process_are_replaced_by_the_same_pairs(tmp_path):
    store = draw(tmp_path / "s")
    before = content(store.folder)
    chunk_file(store.folder, 1).unlink()
    (store.folder / f".{chunk_file(store.folder, 1).name}.0123456789abcdef.tmp").write_bytes(b"half")
    assert len(PairStore.open(store.folder)) == 4  # the pairs before the gap
    again = draw(tmp_path / "s")
    assert content(again.folder) == before
    assert again.sha256 == store.sha256
    assert not list(store.folder.glob(".*.tmp"))


PROGRAM = """
    import sys, time
    sys.path.insert(0, {helpers!r})
    import toys
    import hopflow as hf
    from hopflow import exact

    flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    inner = exact.Perfect(flow, toys.dirichlet(9, seed=1), 2)

    class Perfect:  # the name of the class is part of the header
        def __call__(self, xt, t):
            time.sleep({pause})
            return inner(xt, t)

    hf.rectify(Perfect(), flow, out={out!r}, n=200, length=2, chunk=4, steps=3, seed=5, batch=4, device="cpu")
"""


def start(out: Path, pause: float) -> subprocess.Popen:
    helpers = str(Path(toys.__file__).parent)
    text = textwrap.dedent(PROGRAM.format(helpers=helpers, out=str(out), pause=pause))
    return subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_killed_and_parallel_processes_leave_every_pair_once(tmp_path):
    expected = content(draw(tmp_path / "whole", 200).folder)
    first = start(tmp_path / "s", 0.01)
    end = time.monotonic() + 120
    while not chunk_file(tmp_path / "s", 2).exists() and first.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    together = [start(tmp_path / "s", 0.001) for _ in range(2)]
    assert [one.wait(120) for one in together] == [0, 0]
    assert content(tmp_path / "s") == expected


def test_labels_are_equally_frequent_and_passed_to_the_network(tmp_path):
    seen = []

    def network(xt, t, labels=None):
        seen.append(labels)
        return torch.nn.functional.one_hot(labels[:, None].expand(xt.shape), 3) * 1e4

    store = draw(tmp_path / "s", 12, 12, network=network, labels=3)
    labels = store.labels(np.arange(12))
    assert labels.tolist() == [0, 1, 2] * 4
    assert torch.equal(store.pairs(np.arange(12))[1], labels[:, None].expand(-1, 2))
    assert all(one is not None for one in seen)


@pytest.mark.parametrize(
    ("change", "key"), [({"seed": 6}, "seed"), ({"steps": 4}, "sampler.steps"), ({"eta": 1.0}, "options.eta")]
)
def test_other_pairs_in_the_folder_are_refused_and_kept(tmp_path, change, key):
    before = content(draw(tmp_path / "s").folder)
    with pytest.raises(ValueError, match=f"has other pairs: {key} is .* Choose another out=FOLDER"):
        draw(tmp_path / "s", **change)
    assert content(tmp_path / "s") == before


def test_a_pair_store_refuses_pairs_of_another_network(tmp_path):
    model = hf.Transformer(FLOW.vocab, size="tiny")
    draw(tmp_path / "s", 4, network=model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    with pytest.raises(ValueError, match="has other pairs: network is"):
        draw(tmp_path / "s", 4, network=model)


def test_a_cut_file_a_changed_byte_and_a_changed_header_are_found(tmp_path):
    folder = draw(tmp_path / "s").folder
    file, header = chunk_file(folder, 1), folder / "store.json"
    whole, text = file.read_bytes(), header.read_text()
    file.write_bytes(whole[:-1])
    with pytest.raises(DamagedPairs, match=r"is damaged: it must have 48 bytes. Delete it to redraw it"):
        PairStore.open(folder)
    file.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(DamagedPairs, match="has changed since it was written"):
        PairStore.open(folder)
    file.write_bytes(whole)
    header.write_text(text.replace('"length": 2', '"length": 4'))
    with pytest.raises(DamagedPairs, match=r"store.json is damaged: its sha256 does not match"):
        PairStore.open(folder)
    header.write_text(text)
    assert len(PairStore.open(folder)) == 12


def test_a_missing_store_an_empty_one_and_another_folder_are_named(tmp_path):
    with pytest.raises(DamagedPairs, match=r"there is no pair store .*none: draw one with `hopflow rectify RUN out="):
        PairStore.open(tmp_path / "none")
    with pytest.raises(DamagedPairs, match=r"is not a pair store: it has no store.json"):
        PairStore.open(tmp_path)
    folder = draw(tmp_path / "s", 4).folder
    chunk_file(folder, 0).unlink()
    with pytest.raises(DamagedPairs, match="has no pairs yet"):
        PairStore.open(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep me")
    with pytest.raises(ValueError, match=r"contains letter.txt and is not a pair store"):
        draw(tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["letter.txt"]


def test_pairs_of_another_vocabulary_length_source_or_tokenizer_are_refused(tmp_path):
    store = draw(tmp_path / "s", tokenizer="a" * 64)
    store.check(FLOW, 2, None)
    wrong = (
        (hf.Flow(hf.Uniform(hf.Vocab(4))), 2, None, "pairs of Vocab.*the flow has Vocab"),
        (FLOW, 3, None, "pairs of 2 tokens, but the run has length=3: set length=2"),
        (hf.Flow(hf.BagOfWords(FLOW.vocab, (0.5, 0.25, 0.25))), 2, None, "pairs of another source"),
        (FLOW, 2, "b" * 64, "pairs of another tokenizer"),
    )
    for flow, length, tokenizer, message in wrong:
        with pytest.raises(ValueError, match=message):
            store.check(flow, length, tokenizer)


@pytest.mark.parametrize(("name", "value"), [("n", 0), ("length", 0), ("chunk", -1), ("labels", -1)])
def test_counts_below_1_are_refused(tmp_path, name, value):
    keys = {"n": 4, "length": 2, "out": tmp_path / "s", name: value}
    with pytest.raises(ValueError, match=f"{name} must be an integer ≥ 1, got {value}"):
        hf.rectify(perfect(), FLOW, **keys)
    assert not (tmp_path / "s").exists()


def test_a_coupled_bound_of_rectified_pairs_is_refused_with_the_reason():
    x1 = torch.zeros(4, 2, dtype=torch.int64)
    for bound in (hf.coupled_bound, hf.coupled_number):
        with pytest.raises(ValueError, match="information of the pairs, which is unknown"):
            bound(perfect(), FLOW, x1, coupling=hf.Rectified("pairs"), minibatch=2)
