"""What networks compute in: chosen in one place, recorded in every result, and the same numbers within their errors."""

import pytest
import torch
from torch import Tensor, nn
from toys import awake, generator

import hopflow as hf
from hopflow.bounds.coupled import coupled_bound
from hopflow.bounds.literal import literal_second_bound
from hopflow.bounds.nll import kappa_bound, nll_bound
from hopflow.bounds.precise import precise_perplexity
from hopflow.couplings import ExactOT
from hopflow.evaluation.transport import jumps
from hopflow.flow import Flow
from hopflow.models import Size, Transformer
from hopflow.network import network_reader
from hopflow.network.network import NetworkCaller, use_precision
from hopflow.sampling.generate import generate
from hopflow.sources import BagOfWords, Mask, MultiMask, Source, Uniform
from hopflow.vocab import Vocab

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
CPU = torch.device("cpu")


class Small(nn.Module):
    """Features and a head apart; it notes what each of them computed in."""

    def __init__(self, vocab: Vocab, width: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embedding, self.mix = nn.Embedding(vocab.size, width), nn.Linear(2 * width + 1, width)
            self.out = nn.Linear(width, vocab.data)
        self.trunk: set[torch.dtype] = set()
        self.heads: set[torch.dtype] = set()

    def features(self, xt: Tensor, t: Tensor) -> Tensor:
        e = self.embedding(xt)
        around = e.mean(1, keepdim=True).expand_as(e)
        mixed = self.mix(torch.cat([e, around, t[:, None, None].expand(*xt.shape, 1)], -1))
        self.trunk.add(mixed.dtype)
        return torch.tanh(mixed)

    def head(self, features: Tensor) -> Tensor:
        logits: Tensor = self.out(features)
        self.heads.add(logits.dtype)
        return logits

    def forward(self, xt: Tensor, t: Tensor) -> Tensor:
        return self.head(self.features(xt, t))


def sources(data: int = 20) -> dict[str, Source]:
    frequencies = tuple((torch.arange(1.0, data + 1) / torch.arange(1.0, data + 1).sum()).tolist())
    return {
        "mask": Mask(Vocab(data, 1)),
        "multimask": MultiMask(Vocab(data, data)),
        "uniform": Uniform(Vocab(data)),
        "bag of words": BagOfWords(Vocab(data), frequencies),
    }


def bounds(model, flow: Flow, x1: Tensor, **how) -> dict[str, hf.Estimate]:
    """Every bound that this flow has."""
    found = {"b0": nll_bound(model, flow, x1, **how), "b1": nll_bound(model, flow, x1, eta=1.0, **how)}
    found |= {f"bn{eta:g}": nll_bound(model, flow, x1, eta=eta, steps=8, **how) for eta in (0.0, 1.0)}
    found["end"] = nll_bound(model, flow, x1, end=0.01, **how)
    found["coupled_info"] = coupled_bound(model, flow, x1, ExactOT(), minibatch=4, **how)
    found["precise"] = precise_perplexity(model, flow, x1, **how)
    if flow.source.full:
        found["bk"] = kappa_bound(model, flow, x1, **how)
    if isinstance(flow.source, Mask):
        found["literal_second"] = literal_second_bound(model, flow, x1, **how)
    return found


# what is chosen


def test_auto_precision_is_the_type_of_the_weights_on_a_cpu():
    vocab = Vocab(5)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        with use_precision(Small(vocab).to(dtype), CPU) as name:
            assert name == str(dtype).removeprefix("torch.")
            assert not torch.is_autocast_enabled("cpu")
    with use_precision(lambda xt, t: xt, CPU) as name:
        assert name == "unknown"


@pytest.mark.parametrize(("asked", "found"), [("auto", "bf16"), ("bf16", "bf16"), ("float32", "float32")])
def test_autocast_of_the_caller_is_respected_unless_a_precision_is_passed(asked, found):
    model, flow = Small(Vocab(20)), Flow(Uniform(Vocab(20)))
    with torch.autocast("cpu", torch.bfloat16):
        out = generate(model, flow, n=2, length=5, steps=3, precision=asked)
        bound = nll_bound(model, flow, out.tokens, draws=2, precision=asked)
        assert torch.is_autocast_enabled("cpu")
    assert (out.precision, bound.dtype) == (found, found)
    assert model.trunk == {torch.bfloat16 if found == "bf16" else torch.float32}
    assert model.heads == {torch.float32}


@pytest.mark.parametrize("asked", ["auto", "float32", "bf16"])
def test_the_head_computes_in_the_type_of_its_weights(asked):
    model, flow = Small(Vocab(20, 1)), Flow(Mask(Vocab(20, 1)))
    out = generate(model, flow, n=3, length=6, steps=4, precision=asked)
    assert out.precision == ("bf16" if asked == "bf16" else "float32")
    for found in bounds(model, flow, torch.zeros(8, 6, dtype=torch.long), draws=2, precision=asked).values():
        assert found.dtype == out.precision
    assert model.trunk == {torch.bfloat16 if asked == "bf16" else torch.float32}
    assert model.heads == {torch.float32}


def test_a_float64_network_stays_in_float64():
    model, flow = Small(Vocab(20)).double(), Flow(Uniform(Vocab(20)))
    for asked in ("auto", "float32", "bf16"):
        assert generate(model, flow, n=1, length=4, steps=2, precision=asked).precision == "float64"
        assert nll_bound(model, flow, torch.zeros(4, 4, dtype=torch.long), draws=2, precision=asked).dtype == "float64"
    assert model.trunk == model.heads == {torch.float64}


def test_unknown_precision_and_compile_values_are_rejected():
    model, flow = Small(Vocab(20)), Flow(Uniform(Vocab(20)))
    with pytest.raises(ValueError, match="one of auto, float32, bf16, got 'half'"):
        generate(model, flow, n=1, length=4, precision="half")
    with pytest.raises(ValueError, match="one of auto, float32, bf16"):
        nll_bound(model, flow, torch.zeros(4, 4, dtype=torch.long), precision="fp16")
    with pytest.raises(ValueError, match="compile must be True, False or 'auto'"):
        generate(model, flow, n=1, length=4, compile="yes")


def test_jumps_and_evaluation_rows_record_the_precision():
    model, flow = Small(Vocab(20)), Flow(Uniform(Vocab(20)))
    assert jumps(model, flow, n=2, length=4, steps=3, precision="bf16").dtype == "bf16"
    x1 = torch.randint(20, (16, 4), generator=generator(0))
    rows = hf.evaluate(model, flow, x1, precision="bf16", n=4, steps=2, eta=0.0, seconds=0.0)
    found = {row.dtype for row in rows if row.more.get("sampler") != "the text itself"}
    assert found == {"bf16"}
    plain = hf.evaluate(model, flow, x1, n=4, steps=2, eta=0.0, seconds=0.0)
    assert {row.dtype for row in plain} == {"float32"}


# what does not change the numbers


@pytest.mark.parametrize("source", sources().values(), ids=sources())
def test_bounds_from_features_and_head_equal_those_from_full_logits_for_any_batch(source):
    model, flow = Small(source.vocab), Flow(source)
    x1 = torch.randint(20, (8, 6), generator=generator(1))
    apart, of_few = bounds(model, flow, x1, draws=2), bounds(model, flow, x1, draws=2, batch=7)
    whole = bounds(lambda xt, t: model(xt, t), flow, x1, draws=2)
    for name, found in apart.items():
        assert found.nats == pytest.approx(whole[name].nats, rel=1e-5), name
        assert found.nats == pytest.approx(of_few[name].nats, rel=1e-5), name
        assert found.stderr == pytest.approx(whole[name].stderr, rel=1e-3), name


@pytest.mark.parametrize("source", sources().values(), ids=sources())
def test_bounds_in_bf16_agree_with_float32_within_a_tenth_of_their_error(source):
    model, flow = awake(Transformer(source.vocab, Size(2, 32, 2))), Flow(source)
    x1 = torch.randint(20, (16, 12), generator=generator(2))
    full, low = (bounds(model, flow, x1, draws=4, precision=name) for name in ("float32", "bf16"))
    for name, found in low.items():
        assert abs(found.nats - full[name].nats) <= 0.1 * full[name].stderr, name
    assert low["b0"].nats != full["b0"].nats


# compiling


@pytest.fixture
def compiled(monkeypatch) -> list[object]:
    """What was compiled; the compiler itself takes a minute."""
    bodies: list[object] = []

    def keep(body, dynamic):
        bodies.append(body)
        return body

    monkeypatch.setattr(torch, "compile", keep)
    return bodies


def test_on_a_cpu_sampling_compiles_only_with_compile_true(compiled, monkeypatch):
    monkeypatch.setattr(network_reader, "COMPILE_FROM_CALLS", 1)
    model, flow = Small(Vocab(20)), Flow(Uniform(Vocab(20)))
    generate(model, flow, n=2, length=4, steps=4)
    generate(model, flow, n=2, length=4, steps=4, compile=False)
    assert not compiled
    generate(model, flow, n=2, length=4, steps=4, compile=True)
    assert len(compiled) == 1


def test_auto_compiles_on_a_gpu_from_a_number_of_expected_calls(compiled, monkeypatch):
    monkeypatch.setattr(NetworkCaller, "device", torch.device("cuda"))
    monkeypatch.setattr(network_reader, "TRITON_WORKS", True)
    model, flow = Small(Vocab(20, 1)), Flow(Mask(Vocab(20, 1)))
    calls = int(generate(model, flow, n=8, length=6, steps=64, batch=4).calls.sum()) // 4
    assert not compiled
    monkeypatch.setattr(network_reader, "COMPILE_FROM_CALLS", calls + 2)
    generate(model, flow, n=8, length=6, steps=64, batch=4)
    assert not compiled
    monkeypatch.setattr(network_reader, "COMPILE_FROM_CALLS", calls - 2)
    generate(model, flow, n=8, length=6, steps=64, batch=4)
    assert len(compiled) == 1
    monkeypatch.setattr(network_reader, "TRITON_WORKS", False)  # where torch could not compile
    generate(model, flow, n=8, length=6, steps=64, batch=4)
    assert len(compiled) == 1


# on a GPU


@gpu
@pytest.mark.parametrize("name", sources())
def test_bounds_on_a_gpu_are_in_bf16_and_agree_with_float32_within_a_tenth_of_their_error(name):
    source = sources(2000)[name]
    flow = Flow(source)
    model = awake(Transformer(source.vocab, Size(6, 384, 6))).cuda()
    x1 = torch.randint(2000, (256, 64), generator=generator(2)).cuda()
    full, low = (bounds(model, flow, x1, draws=4, precision=asked) for asked in ("float32", "auto"))
    for quantity, found in low.items():
        assert found.dtype == "bf16"
        assert abs(found.nats - full[quantity].nats) <= 0.1 * full[quantity].stderr, quantity


@gpu
@pytest.mark.parametrize("name", sources())
def test_a_cuda_graph_draws_the_same_tokens_as_separate_kernels(name, monkeypatch):
    source = sources(50)[name]
    model, flow = awake(Transformer(source.vocab, Size(2, 64, 2))).cuda(), Flow(source)
    how = {"n": 40, "length": 12, "steps": 40, "batch": 16, "seed": 1, "compile": False}
    recorded = generate(model, flow, **how)
    assert recorded.precision == "bf16"
    monkeypatch.setattr(network_reader, "RECORD_AT_CALL", 1 << 30)
    plain = generate(model, flow, **how)
    assert torch.equal(recorded.x0, plain.x0)
    assert float((recorded.tokens == plain.tokens).double().mean()) > 0.98
