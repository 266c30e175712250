"""NetworkCaller: features and head, compilation, precision, batch size and evaluation mode in one place."""

import pytest
import torch
from torch import nn
from toys import awake, generator

from hopflow.costs import OneStepLikelihood
from hopflow.flow import Flow
from hopflow.kernels.fused_head import Bf16x3Head
from hopflow.models import Size, Transformer
from hopflow.network.network import GPU_TOKENS, LOGITS_PER_TOKEN, TOKENS, FullPrecisionHead, NetworkCaller
from hopflow.paths import PathSample
from hopflow.sources import Mask
from hopflow.vocab import Vocab

CPU, GPU = torch.device("cpu"), torch.device("cuda")
VOCAB = Vocab(7, 1)


def transformer() -> Transformer:
    torch.manual_seed(0)
    return awake(Transformer(VOCAB, Size(layers=1, width=16, heads=2), dropout=0.5))


def tokens_and_times(rows: int = 3, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    xt = torch.randint(VOCAB.size, (rows, length), generator=generator(1))
    return xt, torch.rand(rows, generator=generator(2))


def test_logits_are_computed_in_evaluation_mode_with_times_of_the_right_type():
    model = transformer().train()
    xt, t = tokens_and_times()
    logits = NetworkCaller(model).logits(xt, t.double())
    assert model.training
    assert not logits.requires_grad
    assert torch.equal(logits, model.eval()(xt, t))


def test_a_plain_function_gets_times_in_the_chosen_type():
    found = []
    network = NetworkCaller(lambda xt, t: found.append(t.dtype) or xt, plain_time=torch.float64)
    network.logits(*tokens_and_times())
    assert found == [torch.float64]


def test_losses_use_the_head_of_the_network_and_inference_one_in_full_precision():
    model = transformer()
    assert NetworkCaller(model, VOCAB.data).head is model.head
    assert not NetworkCaller(model, VOCAB.data).chunks_head
    inference = NetworkCaller(model, VOCAB.data, precision="bf16")
    assert isinstance(inference.head, FullPrecisionHead)
    assert inference.head is inference.head
    assert inference.chunks_head
    with inference.inference(CPU) as name:
        xt, t = tokens_and_times()
        features = inference.features(xt, t).flatten(0, 1)
        assert name == "bf16"
        assert inference.head(features).dtype == torch.float32
        assert model.head(features).dtype == torch.bfloat16
        assert not torch.is_grad_enabled()
        assert not model.training


def test_without_a_precision_autocast_is_left_as_it_is():
    caller = NetworkCaller(transformer())
    with torch.autocast("cpu", torch.bfloat16), caller.inference(CPU) as name:
        assert name == "bf16"
    with caller.inference(CPU) as name:
        assert name == "float32"


def test_compile_compiles_the_features_and_keeps_the_head(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda body, dynamic: compiled.append((body, dynamic)) or body)
    model = transformer()
    caller = NetworkCaller(model)
    caller.compile()
    assert compiled == [(model.features, False)]
    xt, t = tokens_and_times()
    with caller.evaluation_mode():
        assert torch.equal(caller.features(xt, t), model.features(xt, t))


def test_a_module_without_a_head_is_compiled_in_place():
    class WithoutHead(nn.Module):
        def compile(self, *arguments, **options):
            self.compiled = arguments, options

    model = WithoutHead()
    NetworkCaller(model).compile(mode="x")
    assert model.compiled == ((), {"mode": "x"})


def test_a_batch_has_a_number_of_tokens_and_fewer_with_large_full_logits():
    model = transformer()
    for device, tokens in ((CPU, TOKENS), (GPU, GPU_TOKENS)):
        assert NetworkCaller(model, 50_257).batch_size(128, device) == tokens // 128
        full = NetworkCaller(lambda xt, t: xt, 50_257).batch_size(128, device)
        assert full == tokens * LOGITS_PER_TOKEN // 50_257 // 128
        assert NetworkCaller(lambda xt, t: xt, 2).batch_size(128, device) == tokens // 128
    assert NetworkCaller(model, 5).batch_size(1 << 20, CPU) == 1


def test_all_positions_runs_the_head_everywhere_with_the_same_scores():
    model, flow = transformer().eval(), Flow(Mask(VOCAB))
    x1 = torch.randint(VOCAB.data, (4, 6), generator=generator(3))
    xt = torch.where(torch.rand(4, 6, generator=generator(4)) < 0.5, x1, VOCAB.data)
    t, rest = torch.full((4,), 0.5), torch.full((4, 1), 0.5)
    sample = PathSample(torch.full_like(x1, VOCAB.data), x1, xt, t, rest, torch.ones_like(rest))
    rows = []
    model.head.register_forward_hook(lambda head, inputs, out: rows.append(len(inputs[0])))
    scores = [flow.ask(NetworkCaller(model, VOCAB.data, all_positions=every), sample).log_p1 for every in (False, True)]
    torch.testing.assert_close(*scores)
    assert rows == [int((xt == VOCAB.data).sum()), xt.numel()]


def test_features_computed_before_are_used_and_the_network_is_not_called_again():
    model, flow = transformer().eval(), Flow(Mask(VOCAB))
    xt, t = torch.full((3, 5), VOCAB.data), torch.full((3,), 0.5)
    sample = PathSample(xt, torch.zeros_like(xt), xt, t, torch.full((3, 1), 0.5), torch.ones(3, 1))
    expected = flow.ask(model, sample).log_p1
    features = model.features(xt, t)
    model.features = lambda *_: pytest.fail("called again")
    assert torch.equal(flow.ask(NetworkCaller(model, VOCAB.data), sample, features=features).log_p1, expected)


def test_one_step_likelihood_calls_the_network_without_dropout_and_restores_its_mode():
    model = transformer().train()
    x0, x1 = torch.full((4, 5), VOCAB.data), torch.randint(VOCAB.data, (4, 5), generator=generator(5))
    cost = OneStepLikelihood(batch=3).paired(x0, x1, network=model)
    assert model.training
    log_p = model.eval()(x0, torch.zeros(4)).log_softmax(-1)
    torch.testing.assert_close(cost, -log_p.gather(2, x1[..., None])[..., 0].sum(1).detach())


def test_a_network_with_another_number_of_outputs_is_rejected():
    caller = NetworkCaller(transformer(), VOCAB.data + 1, precision="auto")
    with pytest.raises(ValueError, match="data tokens only: it must return 8 logits per position, got 7"):
        caller.head(torch.zeros(2, 16))
    assert not Bf16x3Head.supports(caller.model.head)  # a CPU has no such head
