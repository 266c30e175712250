"""Every device gives the logits and gradients of the CPU, and bf16 stays near them."""

import copy

import pytest
import torch
from toys import generator

from hopflow.models import Causal, DiT, Size, Transformer
from hopflow.models.dit import TotalNoise
from hopflow.runs.pretrained import from_pretrained, save_pretrained
from hopflow.vocab import Vocab

DEVICES = [
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")),
    pytest.param("mps", marks=pytest.mark.skipif(not torch.backends.mps.is_available(), reason="no MPS device here")),
    "cpu",
]
SIZE = Size(layers=2, width=64, heads=2)
VOCAB = Vocab(31, 7)
KINDS = {
    "timed": lambda: Transformer(VOCAB, SIZE, dropout=0.0),
    "timeless": lambda: Transformer(VOCAB, SIZE, dropout=0.0, time=False, recompute=True),
    "dit": lambda: DiT(VOCAB, SIZE, dropout=0.0, time_input=TotalNoise(), condition_width=48),
    "causal": lambda: Causal(VOCAB.size, SIZE, dropout=0.0),
}
each_device = pytest.mark.parametrize("device", DEVICES)
each_kind = pytest.mark.parametrize("kind", KINDS)


def network(kind: str) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = KINDS[kind]()
        for parameter in made.parameters():
            parameter.data += torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5
    return made


def inputs(kind: str, device: str) -> list[torch.Tensor]:
    xt = torch.randint(VOCAB.size, (5, 16), generator=generator(0))
    t = torch.rand(5, generator=generator(1))
    return [x.to(device) for x in ((xt,) if kind == "causal" else (xt, t))]


def gradients(model: torch.nn.Module, *at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(*at).float()
    logits.log_softmax(-1)[..., 0].sum().backward()
    return logits.detach().cpu(), model.embedding.weight.grad.cpu()


@each_device
@each_kind
def test_logits_and_gradients_on_a_device_match_the_cpu(device, kind):
    model = network(kind)
    here = gradients(copy.deepcopy(model), *inputs(kind, "cpu"))
    there = gradients(copy.deepcopy(model).to(device), *inputs(kind, device))
    torch.testing.assert_close(there, here, rtol=5e-3, atol=5e-4)  # measured on an H200: up to 1.4e-4


@each_device
@each_kind
def test_logits_under_bf16_autocast_stay_close_to_float32(device, kind):
    model = network(kind)
    here = gradients(copy.deepcopy(model), *inputs(kind, "cpu"))
    with torch.autocast(device, torch.bfloat16):
        there = gradients(copy.deepcopy(model).to(device), *inputs(kind, device))
    for found, exact in zip(there, here, strict=True):
        assert float((found - exact).norm() / exact.norm()) < 0.05


@each_device
def test_a_network_is_saved_from_and_loaded_to_a_device(device, tmp_path):
    model = network("timed").to(device)
    found = from_pretrained(save_pretrained(tmp_path, model), device=device).model
    assert found.table.device.type == device
    assert torch.equal(found.table, model.table)


@each_device
def test_sequences_are_generated_on_a_device(device):
    tokens = network("causal").to(device).generate(3, 5, generator(0))
    assert tokens.device.type == device
    assert bool((tokens < VOCAB.size).all())
