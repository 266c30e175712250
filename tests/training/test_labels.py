"""Training with labels: which label each row has, how many are left out, and couplings within labels."""

import pytest
import torch

import hopflow as hf
from hopflow.models import Size
from hopflow.runs.metrics import read
from hopflow.runs.ot_batch import Share
from hopflow.training.labels import RowLabels
from hopflow.training.settings import Settings
from hopflow.training.tasks import FlowTask
from hopflow.training.train import train

SIZE = Size(layers=1, width=16, heads=2)
KEYS = {"workers": 0, "eval_every": 0, "eval_samples": 2, "eval_rows": 4, "eval_steps": 2, "threads": 1, "batch": 8}


@pytest.fixture
def corpus(tmp_path):
    """Rows of one token each, and the label is the token."""
    tokens = torch.arange(4).repeat(20)[:, None].expand(80, 6).clone()
    return hf.data.rows(tokens, labels=[f"token {int(i)}" for i in tokens[:, 0]], cache=tmp_path / "cache")


def network(labels=4):
    torch.manual_seed(0)
    return hf.Transformer(hf.Vocab(4), SIZE, labels=labels, dropout=0.0)


def flow(coupling=None):
    return hf.Flow(hf.Uniform(hf.Vocab(4)), coupling=coupling or hf.ExactOT())


def task(corpus, share=None, **keys):
    return FlowTask(network(), flow(), corpus, Settings(**{**KEYS, **keys}), share or Share())


def test_every_row_has_its_label_and_some_labels_are_left_out(corpus):
    labels = torch.cat([task(corpus, label_dropout=0.25).batch(step).sample.labels for step in range(40)])
    tokens = torch.cat([task(corpus).batch(step).sample.x1[:, 0] for step in range(40)])
    dropped = labels == -1
    assert torch.equal(labels[~dropped], tokens[~dropped])
    assert abs(float(dropped.double().mean()) - 0.25) < 4 * (0.25 * 0.75 / 320) ** 0.5
    none = torch.cat([task(corpus, label_dropout=0.0).batch(step).sample.labels for step in range(4)])
    assert torch.equal(none, tokens[: len(none)])


def test_processes_share_the_labels_of_one_batch(corpus):
    complete = task(corpus, ot_batch=16).batch(3).sample.labels
    settings = Settings(**{**KEYS, "ot_batch": 16})
    shares = [RowLabels.of(network(), flow(), corpus, settings, Share(rank, 2)) for rank in (0, 1)]
    halves = [share.of_step(3, None) for share in shares]
    assert torch.equal(torch.cat(halves), complete)


def test_pairs_stay_within_labels(corpus):
    one = task(corpus, ot_batch=40, label_dropout=0.0)
    assert one._pairing._groups is not None
    x1, groups = one._rows(0), one.labels.of_ot_batch(0)
    assert torch.equal(x1[:, 0], groups)
    found = one._pairing._draw(0).uniforms(6)
    source = flow().source.at(found)
    steps = [one.batch(step).sample for step in range(5)]
    x0, labels = torch.cat([s.x0 for s in steps]), torch.cat([s.labels for s in steps])
    for label in range(4):  # the source rows of a label are those that were drawn for it, in another order
        drawn, paired = source[groups == label], x0[labels == label]
        assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, paired.tolist()))


def test_a_run_with_labels_is_resumed_to_the_bit_and_stores_their_names(corpus, tmp_path):
    train(network(), flow(), corpus, out=tmp_path / "whole", steps=6, **KEYS)
    train(network(), flow(), corpus, out=tmp_path / "parts", steps=3, **KEYS)
    train(network(), flow(), corpus, out=tmp_path / "parts", steps=6, **KEYS)
    ends = [hf.from_pretrained(tmp_path / name) for name in ("whole", "parts")]
    assert ends[0].label_names == ("token 0", "token 1", "token 2", "token 3")
    assert all(torch.equal(a, b) for a, b in zip(*(end.model.state_dict().values() for end in ends), strict=True))
    row = read(tmp_path / "whole" / "metrics.jsonl")[-1]
    assert row["b0_n"] == len(corpus.test_labels[:4])


def test_data_with_labels_trains_a_network_without(corpus):
    one = FlowTask(network(labels=0), flow(), corpus, Settings(**KEYS), Share())
    assert one.batch(0).sample.labels is None


@pytest.mark.parametrize(
    ("labels", "given", "coupling", "message"),
    [
        (4, None, None, "the network has 4 labels, and the data has none"),
        (2, "own", None, r"the data has 4 labels, but the network has 2: build it with labels=4"),
        (4, "own", hf.ExactOT(hf.OneStepLikelihood()), "reads the network"),
    ],
)
def test_labels_that_do_not_fit_are_refused_before_a_folder_is_written(
    corpus, tmp_path, labels, given, coupling, message
):
    data = corpus if given else hf.data.rows(torch.zeros(8, 6, dtype=torch.int64), vocab=4, cache=tmp_path / "cache")
    with pytest.raises(ValueError, match=message):
        train(network(labels), flow(coupling), data, out=tmp_path / "run", **KEYS)
    assert not (tmp_path / "run").exists()


def test_rectified_pairs_have_the_labels_they_were_drawn_for(corpus, tmp_path):
    model = network()
    with torch.no_grad():
        model.head.bias[:] = torch.tensor([3.0, 0.0, 0.0, 0.0])
    source = flow(hf.Independent())
    store = hf.rectify(model, source, out=tmp_path / "pairs", n=16, length=6, steps=2)
    assert store.labels(torch.arange(16).numpy()).tolist() == [0, 1, 2, 3] * 4
    coupled = hf.Flow(source.source, coupling=hf.Rectified(str(tmp_path / "pairs"), fresh=0.5))
    one = FlowTask(model, coupled, corpus, Settings(**{**KEYS, "label_dropout": 0.0}), Share())
    sample = one.batch(1).sample
    real = (sample.x1 == sample.x1[:, :1]).all(1) & (sample.x1[:, 0] == sample.labels)
    x0, x1 = store.pairs(torch.arange(16).numpy())
    stored = {(tuple(a), tuple(b), i % 4) for i, (a, b) in enumerate(zip(x0.tolist(), x1.tolist(), strict=True))}
    for row in range(8):
        pair = tuple(sample.x0[row].tolist()), tuple(sample.x1[row].tolist()), int(sample.labels[row])
        assert bool(real[row]) or pair in stored
    assert int(real.sum()) > 0


@pytest.mark.parametrize(
    ("drawn_for", "names", "message"),
    [
        (6, (), "pairs of 6 labels, the network has 4"),  # label 4 would train the embedding of no label
        (4, ("a", "b", "c", "d"), "pairs of the labels a, b, c, d, the data has token 0, token 1"),
    ],
)
def test_rectified_pairs_of_other_labels_are_refused(corpus, tmp_path, drawn_for, names, message):
    folder = tmp_path / "pairs"
    independent = flow(hf.Independent())
    hf.rectify(network(drawn_for), independent, out=folder, n=12, length=6, steps=2, label_names=names)
    rectified = hf.Flow(independent.source, coupling=hf.Rectified(str(folder)))
    with pytest.raises(ValueError, match=message):
        train(network(), rectified, corpus, out=tmp_path / "run", **KEYS)
    assert not (tmp_path / "run").exists()
