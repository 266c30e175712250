"""FlowLoss for a training loop of one's own: what it draws, and that its mean is the loss of the flow."""

import math

import pytest
import torch
from toys import generator
from unchecked import unchecked

import hopflow as hf

VOCAB = hf.Vocab(3, masks=1)
X1 = torch.arange(24).reshape(8, 3) % 3


def loss_of(flow: hf.Flow) -> hf.FlowLoss:
    torch.manual_seed(0)
    return hf.FlowLoss(hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2)), flow)


def test_the_loss_of_a_drawn_batch_is_that_of_the_flow():
    loss = loss_of(hf.Flow(hf.Mask(VOCAB)))
    batch = loss.draw(X1, generator(1))
    expected = loss.flow.loss(loss.model(batch.sample.xt, batch.sample.t), batch.sample)
    assert torch.allclose(loss(batch), expected)
    # a new network predicts every token with the same probability; only masked positions cost
    assert torch.allclose(loss(batch), (batch.sample.xt == 3).sum(1) * math.log(3))


def test_each_part_of_time_is_drawn_once_in_random_order():
    t = loss_of(hf.Flow(hf.Mask(VOCAB))).draw(X1, generator(1)).sample.t
    assert sorted((t * 8).ceil().int().tolist()) == list(range(1, 9))
    assert t.tolist() != sorted(t.tolist())
    assert len({round(float(x * 8) % 1, 4) for x in t}) == 8  # and within its part at random


def test_the_share_of_data_is_k_on_average():
    flow = hf.Flow(hf.Mask(VOCAB), schedule=hf.Polynomial(2.0))
    loss = hf.FlowLoss(torch.nn.Identity(), flow)
    sample = loss.draw(torch.zeros(20_000, 4, dtype=torch.int64), generator(2)).sample
    k = (sample.xt == 0).double().mean(1)
    error = (k - sample.t.double() ** 2).std() / len(k) ** 0.5
    assert abs(float((k - sample.t.double() ** 2).mean())) < 4 * float(error)


@pytest.mark.parametrize("cost", [hf.Hamming(), hf.SquaredEmbedding()], ids=str)
def test_the_coupling_of_the_flow_pairs_the_sequences(cost):
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)), coupling=hf.ExactOT(cost))
    loss = loss_of(flow)
    sample = loss.draw(X1, generator(3)).sample
    assert torch.equal(sample.x1, X1)
    rows = flow.source.sample(*X1.shape, generator=generator(3))
    expected = flow.coupling.pair(rows, X1, embedding=loss.model.table).x0
    assert torch.equal(sample.x0, expected)
    assert not torch.equal(sample.x0, rows)


def test_one_generator_makes_one_batch():
    loss = loss_of(hf.Flow(hf.MultiMask(hf.Vocab(3, masks=3))))
    first, same, other = (loss.draw(X1, generator(seed)).sample for seed in (5, 5, 6))
    assert torch.equal(first.xt, same.xt)
    assert torch.equal(first.t, same.t)
    assert not torch.equal(first.t, other.t)


def test_the_parameters_of_a_flow_loss_are_those_of_the_network():
    loss = loss_of(hf.Flow(hf.Mask(VOCAB)))
    loss(loss.draw(X1)).mean().backward()
    assert {id(p) for p in loss.parameters()} == {id(p) for p in loss.model.parameters()}
    assert any(p.grad is not None and bool(p.grad.any()) for p in loss.model.parameters())


def test_labels_reach_the_network_and_couplings_stay_within_them():
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)), coupling=hf.ExactOT())
    torch.manual_seed(0)
    model = hf.Transformer(flow.vocab, hf.Size(layers=1, width=16, heads=2), labels=2)
    loss, labels = hf.FlowLoss(model, flow), torch.arange(8) % 2
    sample = loss.draw(X1, generator(3), labels=labels).sample
    rows = flow.source.sample(*X1.shape, generator=generator(3))
    for label in (0, 1):
        drawn, paired = rows[labels == label], sample.x0[labels == label]
        assert sorted(map(tuple, drawn.tolist())) == sorted(map(tuple, paired.tolist()))
    assert torch.equal(sample.labels, labels)
    seen = []
    model.label_embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    loss(loss.draw(X1, labels=labels))
    assert torch.equal(seen[0], labels)
    with pytest.raises(ValueError, match="the network has 2 labels: pass labels="):
        loss.draw(X1)
    with pytest.raises(ValueError, match="has no labels"):
        loss_of(flow).draw(X1, labels=labels)


def test_padding_does_not_count():
    loss = loss_of(hf.Flow(hf.Mask(VOCAB)))
    keep = torch.tensor([True, False, True]).expand(8, 3)
    batch = loss.draw(X1, generator(1), keep=keep)
    assert torch.allclose(loss(batch), ((batch.sample.xt == 3) & keep).sum(1) * math.log(3))


def test_wrong_arguments_are_named():
    flow = hf.Flow(hf.Mask(VOCAB))
    with pytest.raises(ValueError, match="the network has Vocab"):
        hf.FlowLoss(hf.Transformer(hf.Vocab(5, masks=1), "micro"), flow)
    loss = loss_of(flow)
    with pytest.raises(ValueError, match="3"):
        loss.draw(X1 + 1)  # the mask is no data token
    for wrong in ([[1]], torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match="x1 must be a tensor of token ids"):
            unchecked(hf.FlowLoss.draw)(loss, wrong)
    rectified = hf.FlowLoss(loss.model, hf.Flow(hf.Mask(VOCAB), coupling=hf.Rectified("store")))
    with pytest.raises(ValueError, match="rectified pairs are read from store"):
        rectified.draw(X1)
