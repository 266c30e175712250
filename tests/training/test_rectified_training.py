"""Training on a pair store: which pairs a step sees, fresh text among them, resuming, and several rounds."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import hopflow as hf
from hopflow.runs.ot_batch import Share
from hopflow.training.pairing.stored_pairs import StoredPairs

LENGTH, BATCH, PAIRS = 8, 8, 20
QUIET = {"eval_every": 0, "eval_rows": 0, "eval_samples": 0, "device": "cpu", "lr": 0.01, "seed": 3}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "t.txt"
    file.write_text("the dog sleeps on the old sofa and dreams of the cat; " * 40)
    return hf.data.load(file, length=LENGTH)


@pytest.fixture(scope="module")
def network(corpus):
    return small(corpus)


@pytest.fixture(scope="module")
def store(corpus, network, tmp_path_factory):
    return drawn(network, corpus, tmp_path_factory.mktemp("pairs") / "first")


def small(corpus) -> hf.Transformer:
    torch.manual_seed(0)
    return hf.Transformer(hf.Vocab(corpus.vocab_size), hf.Size(layers=1, width=8, heads=2), dropout=0.0)


def flow_of(corpus, **parts) -> hf.Flow:
    return hf.Flow(hf.BagOfWords.fit(corpus.counts), **parts)


def drawn(network, corpus, out: Path) -> hf.PairStore:
    keys = {"n": PAIRS, "length": LENGTH, "steps": 4, "seed": 1, "tokenizer": corpus.tokenizer.sha256}
    return hf.rectify(network, flow_of(corpus), out=out, **keys)


def batches(corpus, store, fresh: float = 0.0, share: Share | None = None, batch: int = BATCH) -> StoredPairs:
    flow = flow_of(corpus, coupling=hf.Rectified(str(store.folder), fresh))
    return StoredPairs(flow, corpus, batch, seed=5, share=share or Share())


def all_pairs(store) -> list[list[int]]:
    return torch.cat(store.pairs(np.arange(PAIRS)), 1).tolist()


def test_an_epoch_has_every_pair_once_and_the_next_one_another_order(corpus, store):
    found = batches(corpus, store)
    seen = torch.cat([torch.cat(found.step(step), 1) for step in range(5)])  # 40 rows are two epochs
    one, two = seen[:PAIRS].tolist(), seen[PAIRS:].tolist()
    assert sorted(one) == sorted(two) == sorted(all_pairs(store))
    assert one != two


def test_a_step_depends_on_its_number_only_and_processes_split_it(corpus, store):
    whole = batches(corpus, store, fresh=0.4)
    late = [torch.cat(batches(corpus, store, fresh=0.4).step(3), 1), torch.cat(whole.step(3), 1)]
    assert torch.equal(*late)
    halves = [batches(corpus, store, fresh=0.4, share=Share(rank, 2)).step(3) for rank in range(2)]
    assert torch.equal(torch.cat([torch.cat(half, 1) for half in halves]), late[1])


def test_fresh_pairs_are_a_share_of_text_with_noise_that_does_not_know_it(corpus, store):
    share, size = 0.3, 4000
    x0, x1 = batches(corpus, store, share, batch=size).step(0)
    known = {tuple(pair) for pair in all_pairs(store)}
    fresh = torch.tensor([tuple(pair) not in known for pair in torch.cat([x0, x1], 1).tolist()])
    count = float(fresh.double().mean())
    assert abs(count - share) < 4 * (share * (1 - share) / size) ** 0.5
    text = corpus.batch(5, 0, size)
    assert torch.equal(x1[fresh], text[fresh])
    noise, p0 = x0[fresh].flatten(), flow_of(corpus).source.token_probs()
    seen = torch.bincount(noise, minlength=corpus.vocab_size).double() / len(noise)
    assert ((seen - p0).abs() <= 4.5 * (p0 * (1 - p0) / len(noise)).sqrt()).all()
    agree = (x0 == x1)[fresh].double().mean(1)
    expected = float(p0[x1[fresh]].mean())
    assert abs(float(agree.mean()) - expected) < 4 * float(agree.std()) / len(agree) ** 0.5
    assert torch.equal(batches(corpus, store, 1.0).step(1)[1], corpus.batch(5, BATCH, BATCH))


def test_the_predicted_hops_count_both_kinds_of_pairs_and_are_logged_before_training(corpus, store, tmp_path, caplog):
    hops, _ = store.hops()
    x0, x1 = store.pairs(np.arange(PAIRS))
    assert hops == pytest.approx(float((x0 != x1).sum(1).double().mean()))
    text = str(batches(corpus, store, 0.5))
    assert f"{PAIRS} pairs of {store.folder} and a share of 0.5 of text with independent noise" in text
    independent = float((1 - flow_of(corpus).source.probs(corpus.batch(5, 0, 1024)).double()).sum(1).mean())
    assert f"predicted hops {(hops + independent) / 2:.2f} ±" in text
    with caplog.at_level(logging.INFO, "hopflow"):
        trained(corpus, store, tmp_path / "run", steps=2, fresh=0.0)
    assert any(f"predicted hops {hops:.2f}" in record.getMessage() for record in caplog.records)


def trained(corpus, store, out: Path, steps: int, fresh: float = 0.3, start=None) -> dict[str, torch.Tensor]:
    flow = flow_of(corpus, coupling=hf.Rectified(str(store.folder), fresh))
    hf.train(start or small(corpus), flow, corpus, out=out, steps=steps, batch=BATCH, **QUIET)
    return hf.from_pretrained(out).model.state_dict()


def test_a_run_on_pairs_resumes_with_the_same_bits_also_when_its_store_was_moved(corpus, store, tmp_path):
    whole = trained(corpus, store, tmp_path / "whole", 6)
    trained(corpus, store, tmp_path / "parts", 3)
    moved = hf.PairStore.open(shutil.copytree(store.folder, tmp_path / "moved"))
    again = trained(corpus, moved, tmp_path / "parts", 6)
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_a_run_is_not_continued_on_other_pairs(corpus, store, network, tmp_path):
    trained(corpus, store, tmp_path / "run", 2)
    grown = hf.PairStore.open(shutil.copytree(store.folder, tmp_path / "grown"))
    keys = {"length": LENGTH, "steps": 4, "seed": 1, "tokenizer": corpus.tokenizer.sha256}
    grown = hf.rectify(network, flow_of(corpus), out=grown.folder, n=2 * PAIRS, **keys)
    assert len(grown) == 2 * PAIRS
    with pytest.raises(ValueError, match="store"):
        trained(corpus, grown, tmp_path / "run", 4)


def test_several_rounds_start_from_the_run_before(corpus, store, tmp_path):
    pairs, start = store, None
    for number in (2, 3):
        out = tmp_path / f"round-{number}"
        trained(corpus, pairs, out, 3, start=start)
        loaded = hf.from_pretrained(out)
        assert loaded.flow.coupling == hf.Rectified(str(pairs.folder), 0.3)
        pairs = drawn(loaded.model, corpus, tmp_path / f"pairs-{number}")
        assert 0 < pairs.hops()[0] <= LENGTH
        start = loaded.model
    with pytest.raises(ValueError, match="Use nll_bound or reversal_bound"):
        hf.coupled_bound(loaded.model, loaded.flow, corpus.test[:4], coupling=loaded.flow.coupling, minibatch=2)
    assert hf.nll_bound(loaded.model, loaded.flow, corpus.test[:4], steps=4, draws=4).is_bound
    assert hf.reversal_bound(loaded.model, loaded.flow, corpus.test[:4], steps=4, paths=4).is_bound
