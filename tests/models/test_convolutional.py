"""The convolutional network: what a position reads, and that its folder rebuilds it."""

import pytest
import torch

import hopflow as hf
from hopflow.models import Convolutional, Size
from hopflow.recipes import Recipe, build

VOCAB = hf.Vocab(data=5, masks=2)
SIZE = Size(2, 8, 2)


@pytest.mark.parametrize("time", [True, False])
def test_a_position_reads_three_neighbours_per_layer_on_each_side(time):
    torch.manual_seed(0)
    model, t = Convolutional(VOCAB, SIZE, time=time).eval(), torch.tensor([0.4])
    xt = torch.randint(VOCAB.size, (1, 21))
    changed = xt.clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCAB.size
    moved = (model(xt, t) != model(changed, t)).any(2)[0]
    assert moved.nonzero().flatten().tolist() == list(range(10 - 6, 10 + 7))


def test_t_matters_only_with_time_true():
    xt = torch.randint(VOCAB.size, (2, 9))
    for time in (True, False):
        model = Convolutional(VOCAB, SIZE, time=time).eval()
        same = torch.equal(model(xt, torch.tensor([0.1, 0.1])), model(xt, torch.tensor([0.9, 0.9])))
        assert same is not time


def test_a_saved_network_is_rebuilt_from_its_folder(tmp_path):
    model = Convolutional(VOCAB, SIZE, dropout=0.25, time=False)
    flow = hf.Flow(hf.MultiMask(VOCAB))
    found = hf.from_pretrained(hf.save_pretrained(tmp_path / "saved", model, flow))
    assert isinstance(found.model, Convolutional)
    assert (found.model.size, found.model.dropout, found.model.time) == (SIZE, 0.25, False)
    xt, t = torch.randint(VOCAB.size, (3, 12)), torch.rand(3)
    assert torch.equal(found.model(xt, t), model.eval()(xt, t))


def test_a_flow_with_another_vocabulary_is_rejected(tmp_path):
    other = hf.Flow(hf.MultiMask(hf.Vocab(data=6, masks=2)))
    with pytest.raises(ValueError, match="they must be equal"):
        hf.save_pretrained(tmp_path, Convolutional(VOCAB, SIZE), other)


def test_a_recipe_can_choose_the_convolutional_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path))
    (tmp_path / "a.txt").write_text("abc " * 200)
    keys = {"length": 16, "size": "micro", "dropout": 0.5, "time": False}
    model = build(Recipe(data=str(tmp_path / "a.txt"), model="convolutional", **keys)).model
    assert isinstance(model, Convolutional)
    assert (model.size.width, model.dropout, model.time) == (64, 0.5, False)
    assert model.table.shape == (model.vocab.size, 64)
