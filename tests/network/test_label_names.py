"""Labels of a network: the checks before it is called, and names on the command line."""

import pytest
import torch
from unchecked import unchecked

import hopflow as hf
from hopflow.network.label_names import label_number
from hopflow.network.network import check_labels, label_count


class Labelled(torch.nn.Module):
    labels = 2

    def forward(self, xt, t, labels):
        return torch.zeros(*xt.shape, 3)


class Plain(torch.nn.Module):
    def forward(self, xt, t):
        return torch.zeros(*xt.shape, 3)


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (Labelled(), None, r"has 2 labels: pass labels=…, one integer from 0 to 1 per sequence, or -1"),
        (Labelled(), torch.tensor([0, 2]), "integers from 0 to 1, or -1 for no label, got 2"),
        (Labelled(), torch.tensor([0, -2]), "got -2"),
        (Labelled(), torch.tensor([0.0, float("nan")]), "labels must be integers of shape"),
        (Labelled(), [0, 1], r"one label per sequence, got \[0, 1\]"),
        (Labelled(), torch.tensor([0]), r"one label per sequence \(2\), got 1"),
        (Plain(), torch.tensor([0, 1]), "this Plain has no labels: leave labels out"),
        (lambda xt, t: xt, torch.tensor([0, 1]), "this network has no labels"),
        (hf.Transformer(hf.Vocab(3), "micro"), torch.tensor([0, 1]), "this Transformer has no labels"),
        (lambda xt, t, labels: xt, torch.tensor([0, -2]), "integers from 0, or -1"),
    ],
)
def test_wrong_labels_are_refused_with_what_is_allowed(model, labels, message):
    with pytest.raises(ValueError, match=message):
        unchecked(check_labels)(model, labels, 2)


def test_labels_of_a_network_without_the_attribute_are_accepted_if_it_takes_three_arguments():
    assert label_count(lambda xt, t, labels: xt) is None
    check_labels(lambda xt, t, labels: xt, torch.tensor([5, -1]), 2)
    check_labels(lambda xt, t, labels: xt, None, 2)


@pytest.mark.parametrize(("word", "number"), [("cat", 1), ("0", 0), ("-1", -1), ("1", 2), ("2", 2)])
def test_a_label_is_named_by_its_name_before_its_number(word, number):
    assert label_number(word, ("ant", "cat", "1"), 3) == number


@pytest.mark.parametrize("word", ["cot", "3", "-2", "1.0", ""])
def test_an_unknown_label_is_refused_with_the_known_ones(word):
    with pytest.raises(ValueError, match=r"labels are ant, cat, 1; -1: no label"):
        label_number(word, ("ant", "cat", "1"), 3)


# the transformer


@pytest.mark.parametrize("time", [True, False])
def test_a_transformer_with_labels_depends_on_them_and_starts_like_one_without(time):
    torch.manual_seed(0)
    model = hf.Transformer(hf.Vocab(4), "micro", labels=3, time=time, dropout=0.0).double().eval()
    xt, t, labels = torch.randint(4, (3, 5)), torch.rand(3).double(), torch.tensor([0, 2, -1])
    assert torch.equal(model(xt, t, labels), torch.zeros(3, 5, 4).double())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    found = model(xt, t, labels)
    for row, label in enumerate(labels.tolist()):
        alone = model(xt, t, torch.full((3,), label))
        assert torch.allclose(found[row], alone[row])
        assert label == 2 or not torch.allclose(alone, model(xt, t, torch.full((3,), 2)))
    assert torch.equal(model(xt, t), model(xt, t, torch.full((3,), -1)))
    assert torch.equal(model(xt, 1 - t, labels), found) is not time
    partial = model.begin_features(xt, t, labels)
    row, position = torch.tensor([0, 1, 2]), torch.tensor([4, 0, 2])
    assert torch.allclose(model.finish_features(partial, row, position), model.features(xt, t, labels)[row, position])


def test_the_weights_of_a_transformer_without_labels_do_not_depend_on_the_argument():
    made = []
    for labels in (0, 3):
        torch.manual_seed(0)
        made.append(hf.Transformer(hf.Vocab(4), "micro", labels=labels).state_dict())
    assert set(made[1]) - set(made[0]) == {"label_embedding.embedding.weight"}
    assert all(torch.equal(made[1][name], value) for name, value in made[0].items())


@pytest.mark.parametrize("labels", [-1, True, 1 << 21])
def test_the_number_of_labels_is_an_integer(labels):
    with pytest.raises(ValueError, match="labels must be the number of labels"):
        unchecked(hf.Transformer)(hf.Vocab(4), "micro", labels=labels)


def test_a_saved_network_keeps_its_labels_and_their_names(tmp_path):
    flow = hf.Flow(hf.Uniform(hf.Vocab(4)))
    model = hf.Transformer(flow.vocab, "micro", labels=3)
    hf.save_pretrained(tmp_path / "a", model, flow, label_names=("ant", "bee"))
    found = hf.from_pretrained(tmp_path / "a")
    assert (found.model.labels, found.label_names) == (3, ("ant", "bee"))
    assert "labels     ant, bee" in str(found)
    hf.save_pretrained(tmp_path / "b", model, flow)
    assert hf.from_pretrained(tmp_path / "b").label_names == ()
    for names, message in ((("a", "b", "c", "d"), "4 names, but the network has 3"), (("a", "a"), "'a' twice")):
        with pytest.raises(ValueError, match=message):
            hf.save_pretrained(tmp_path / "c", model, flow, label_names=names)
