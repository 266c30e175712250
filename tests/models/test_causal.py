import math
from itertools import product

import pytest
import torch
from torch.nn.functional import cross_entropy
from toys import generator
from unchecked import unchecked

from hopflow.models import SIZES, Causal, Size, causal

SMALL = Size(layers=2, width=8, heads=2)
TOKENS = 5


def model(tokens=TOKENS, seed=0, size=SMALL, **more) -> Causal:
    """With random numbers where training starts from zero."""
    torch.manual_seed(seed)
    network = Causal(tokens, size, **{"dropout": 0.0, **more}).double()
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator(1), dtype=torch.float64)
            parameter += noise * parameter.shape[-1] ** -0.5
    return network


def batch(rows=3, length=6, seed=2):
    return torch.randint(TOKENS, (rows, length), generator=generator(seed))


@pytest.mark.parametrize("size", SIZES)
def test_the_number_of_parameters_matches_a_count_by_hand(size):
    layers, width, tokens = SIZES[size].layers, SIZES[size].width, 1000
    with torch.device("meta"):
        counted = sum(parameter.numel() for parameter in Causal(tokens, size).parameters())
    block = 4 * width * width + (8 * width * width + 5 * width) + 4 * width
    assert counted == tokens * width + width + layers * block + 2 * width + width * tokens + tokens


def test_a_new_network_finds_every_sequence_equally_likely():
    network = Causal(TOKENS, SMALL).double()
    assert network.nll(batch()).tolist() == pytest.approx([6 * math.log(TOKENS)] * 3)


@pytest.mark.parametrize("position", range(6))
def test_a_token_changes_the_predictions_of_later_tokens_only(position):
    network, x = model(), batch(1)
    changed = x.clone()
    changed[0, position] = (x[0, position] + 1) % TOKENS
    before, after = network(x)[0], network(changed)[0]
    assert torch.equal(before[: position + 1], after[: position + 1])
    assert bool((before[position + 1 :] != after[position + 1 :]).any(-1).all())


def test_the_probabilities_of_all_sequences_add_up_to_one():
    network = model(tokens=3)
    everything = torch.tensor(list(product(range(3), repeat=5)))
    nats = network.nll(everything).detach()
    assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-12)
    assert float(nats.std()) > 0.1  # and it is not the uniform law


def test_the_nats_of_a_sequence_are_the_sum_of_those_of_its_tokens_also_in_chunks(monkeypatch):
    monkeypatch.setattr(causal, "CHUNK", 4 * TOKENS)
    network, x = model(), batch()
    tokens = cross_entropy(network(x).flatten(0, 1), x.flatten(), reduction="none").view(x.shape)
    torch.testing.assert_close(network.nll(x), tokens.sum(1))
    keep = torch.rand(x.shape, generator=generator(3)) < 0.5
    torch.testing.assert_close(network.nll(x, keep), (tokens * keep).sum(1))
    parameters = list(network.parameters())
    chunked, whole = (torch.autograd.grad(loss, parameters) for loss in (network.nll(x).sum(), tokens.sum()))
    torch.testing.assert_close(chunked, whole)


def test_the_nll_from_the_terms_of_the_loss_kernels_is_that_of_chunks_of_logits(monkeypatch):
    """The path of a GPU, with the terms computed by torch."""
    network, x = model(), batch()
    parameters = list(network.parameters())
    chunked = network.nll(x)
    expected = torch.autograd.grad(chunked.sum(), parameters)
    monkeypatch.setattr(causal, "head_kernels", lambda head, features: object())
    found = network.nll(x)
    torch.testing.assert_close(found, chunked)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), parameters), expected)


def test_a_token_outside_keep_adds_nothing_to_the_nll():
    network, x = model(), batch()
    with torch.no_grad():
        network.head.bias[0] = -torch.inf
    x[:, -1] = 0
    keep = torch.ones(x.shape, dtype=torch.bool)
    assert network.nll(x)[0] == torch.inf
    keep[x == 0] = False
    assert bool(network.nll(x, keep).isfinite().all())


def test_the_logits_are_the_head_of_the_features():
    network = model()
    assert torch.equal(network(batch()), network.head(network.features(batch())))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_activations_changes_no_gradient(dropout):
    def gradients(recompute):
        network = model(dropout=dropout, recompute=recompute)
        torch.manual_seed(9)
        network.nll(batch()).sum().backward()
        return [parameter.grad for parameter in network.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_generation_at_temperature_0_takes_the_most_likely_tokens():
    network = model()
    tokens = network.generate(3, 7, temperature=0.0)
    assert torch.equal(network(tokens).argmax(-1), tokens)


def test_sequences_are_generated_with_their_probabilities():
    network = model(tokens=3, dropout=0.5).train()  # dropout rests while drawing
    everything = torch.tensor(list(product(range(3), repeat=3)))
    drawn = network.generate(4000, 3, generator(4))
    assert network.training
    found = torch.bincount(drawn @ torch.tensor([9, 3, 1]), minlength=27)
    expected = 4000 * (-network.eval().nll(everything)).exp().detach()
    chi_squared = float(((found - expected) ** 2 / expected).sum())
    assert chi_squared < 54.1  # 26 degrees of freedom, p = 0.001


def test_the_same_generator_draws_the_same_sequences():
    network = model()
    assert torch.equal(network.generate(2, 5, generator(0)), network.generate(2, 5, generator(0)))


def test_every_parameter_has_a_gradient_after_a_few_steps():
    torch.manual_seed(0)
    network = Causal(TOKENS, SMALL, dropout=0.0).double()
    adam = torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(4):
        adam.zero_grad()
        loss = network.nll(batch(8)).mean()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses == sorted(losses, reverse=True)
    assert all(bool(parameter.grad.any()) for parameter in network.parameters())


@pytest.mark.parametrize("x", [torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 3)], ids=["length 0", "floats"])
def test_inputs_that_are_not_token_ids_are_rejected(x):
    with pytest.raises(ValueError, match="token ids"):
        unchecked(Causal.features)(model(), x)


@pytest.mark.parametrize("bad", [{"n": 0}, {"length": 0}, {"temperature": -1.0}, {"temperature": float("inf")}])
def test_impossible_arguments_of_generate_are_rejected(bad):
    with pytest.raises(ValueError, match=r"n and length must|temperature"):
        model().generate(**{"n": 1, "length": 2, **bad})


def test_an_empty_vocabulary_is_rejected():
    with pytest.raises(ValueError, match="vocab_size must be an integer ≥ 1, got 0"):
        Causal(0, SMALL)
