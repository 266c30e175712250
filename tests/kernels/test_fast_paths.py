"""hopflow's kernels on a GPU match torch's operations, forward and backward."""

import copy

import pytest
import torch
import toys
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import hopflow as hf
from hopflow import kernels
from hopflow.kernels import residual_norm, short_attention
from hopflow.kernels.fused_head import PAD, Bf16x3Head, fused_score_terms, head_kernels, is_plain_linear
from hopflow.kernels.gelu_mlp import gelu_mlp
from hopflow.models.attention import rotated
from hopflow.runs.checkpoint import latest
from hopflow.runs.ot_batch import Share
from hopflow.sampling.random_draws import categorical
from hopflow.scores import _terms
from hopflow.training.averages import Ema
from hopflow.training.settings import Settings
from hopflow.training.tasks import FlowTask
from hopflow.training.trainer import NotFinite, Trainer

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
LOOSE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Relative errors allowed in these types."""


def apart(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


class Capped(nn.Linear):
    """A custom head that is also a linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30 * torch.tanh(super().forward(x) / 30)


def test_kernels_replace_only_linear_layers_without_subclass_or_hooks():
    hooked = [nn.Linear(4, 5) for _ in range(4)]
    hooked[0].register_forward_hook(lambda layer, given, out: 2 * out)
    hooked[1].register_forward_pre_hook(lambda layer, given: given)
    hooked[2].register_full_backward_hook(lambda layer, given, out: given)
    hooked[3].register_full_backward_pre_hook(lambda layer, out: out)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
    assert is_plain_linear(nn.Linear(4, 5))
    assert not any(map(is_plain_linear, (Capped(4, 5), *hooked, normed, torch.relu)))


def test_kernels_do_not_support_a_cpu():
    head = nn.Linear(4, 5)
    assert head_kernels(head, torch.zeros(3, 4)) is None
    assert not Bf16x3Head.supports(head)
    assert not short_attention.supports(torch.zeros(1, 8, 3, 1, 64, dtype=torch.bfloat16))
    assert not residual_norm.supports(torch.zeros(1, 8, 64, dtype=torch.bfloat16))


@gpu
def test_a_head_that_also_predicts_masks_is_rejected():
    corpus = hf.data.load("docs", tokens="char", length=32, offline=True)
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    model = hf.Transformer(flow.vocab, "tiny").cuda()
    model.head = nn.Linear(128, flow.vocab.size).cuda()
    with pytest.raises(ValueError, match="data token"):
        hf.generate(model, flow, n=1, length=8, steps=2)
    task = FlowTask(model, flow, corpus, Settings(batch=2, workers=0), Share())
    with pytest.raises(ValueError, match="data token"):
        Trainer(model, task, Settings(batch=2, device="cuda"), torch.device("cuda"), Share()).update(0)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "v"), [(777, 50_257), (33, 17), (1, 64), (130, 2 * PAD)])
@pytest.mark.parametrize("biased", [True, False])
def test_score_terms_of_a_linear_head_and_their_gradients_match_float64(dtype, n, v, biased):
    torch.manual_seed(0)
    features, head = torch.randn(n, 48, device="cuda", requires_grad=True), nn.Linear(48, v, bias=biased).cuda()
    xt, x1 = torch.randint(0, v + 2 * PAD, (n,), device="cuda"), torch.randint(0, v, (n,), device="cuda")
    x1[::3] = xt[::3].clamp(max=v - 1)
    upstream = torch.randn(n, 3, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found = fused_score_terms(head_kernels(head, features), features, head, xt, x1)
    exact_input, exact_head = features.detach().double().requires_grad_(), nn.Linear(48, v, bias=biased).cuda().double()
    exact_head.load_state_dict(head.state_dict())
    exact = _terms(exact_head(exact_input), xt, x1)
    there = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(found), there)
    assert apart(found[there], exact[there]) < LOOSE[dtype]
    for three in (found, exact):
        (torch.where(there, three, 0.0) * upstream).sum().backward()
    pairs = [(features, exact_input), *zip(head.parameters(), exact_head.parameters(), strict=True)]
    assert all(apart(mine.grad, theirs.grad) < LOOSE[dtype] for mine, theirs in pairs)
    with pytest.raises(RuntimeError):
        found.sum().backward()


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(3, 128, 12, 64), (2, 100, 2, 32), (1, 1, 1, 64), (5, 17, 3, 64)], ids=str)
def test_short_attention_and_its_gradient_match_float64(dtype, shape):
    b, length, heads, width = shape
    torch.manual_seed(0)
    qkv = torch.randn(b, length, 3, heads, width, device="cuda", dtype=dtype, requires_grad=True)
    angle = torch.randn(length, width // 2, device="cuda")
    rotary = angle.cos(), angle.sin()
    assert short_attention.supports(qkv)
    found = short_attention.attention(qkv, *rotary)
    exact_input = qkv.detach().double().requires_grad_()
    both, values = exact_input.split([2, 1], 2)
    q, k = rotated(both, tuple(x.double() for x in rotary)).permute(2, 0, 3, 1, 4)
    exact = scaled_dot_product_attention(q, k, values[:, :, 0].transpose(1, 2)).transpose(1, 2).flatten(2)
    upstream = torch.randn_like(found)
    found.backward(upstream)
    exact.backward(upstream.double())
    assert apart(found, exact) < LOOSE[dtype]
    row, position = torch.randint(0, b, (9,), device="cuda"), torch.randint(0, length, (9,), device="cuda")
    queries, keys_values = qkv.detach()[row, position, 0], qkv.detach()[:, :, 1:]
    single = short_attention.attention_at(queries, keys_values, row, position, *rotary)
    assert apart(single, exact.detach()[row, position]) < LOOSE[dtype]
    # with a single position only values have a gradient: the rest is zero
    assert apart(qkv.grad, exact_input.grad) < LOOSE[dtype]


@gpu
@pytest.mark.parametrize("biased", [True, False])
def test_a_bf16x3_head_is_as_precise_as_float32(biased):
    torch.manual_seed(0)
    head, features = nn.Linear(768, 5_003, bias=biased).cuda(), torch.randn(100, 768, device="cuda")
    assert Bf16x3Head.supports(head)
    exact = nn.functional.linear(features.double(), head.weight.double(), head.bias.double() if biased else None)
    with torch.no_grad():
        assert apart(Bf16x3Head(head)(features), exact) < 1e-5
    assert apart(head.to(torch.bfloat16)(features.to(torch.bfloat16)), exact) > 1e-3  # the error of bf16 alone


@gpu
def test_tokens_drawn_from_a_bf16x3_head_equal_those_of_categorical():
    """The same u finds the same token, except where rounding moves it across a boundary."""
    torch.manual_seed(0)
    head, features = nn.Linear(64, 5_003).cuda(), 3 * torch.randn(20_000, 64, device="cuda")
    u = torch.rand(20_000, dtype=torch.float64, device="cuda")
    xt, shift = torch.randint(0, 5_200, (20_000,), device="cuda"), 4 * torch.rand(20_000, device="cuda")
    shift = torch.where(xt < 5_003, shift, 0.0)
    with torch.no_grad():
        found, sound = Bf16x3Head(head).draw(features, xt, shift, u)
        logits = Bf16x3Head(head)(features)
        logits[xt < 5_003, xt[xt < 5_003]] += shift[xt < 5_003]
        expected = categorical(logits.log_softmax(1), u)
        assert bool(sound)
        assert float((found == expected).double().mean()) > 0.999
        assert int((found - expected).abs().max()) <= 5_002
        p = logits.double().softmax(1)
        above, own = (x.gather(1, found[:, None])[:, 0] for x in (p.cumsum(1), p))
        below = above - own
        assert bool(((u > below - 1e-5) & (u < above + 1e-5)).all())
        features[7] = float("nan")
        assert not bool(Bf16x3Head(head).draw(features, xt, shift, u)[1])


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(3, 50, 96, 384), (2, 1, 33, 1100)], ids=str)
def test_gelu_mlp_and_its_gradients_match_float64(dtype, shape):
    b, length, width, inner = shape
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(width, inner), nn.Linear(inner, width + 1)]).cuda()
    x = torch.randn(b, length, width, device="cuda", requires_grad=True)
    exact_layers, exact_input = copy.deepcopy(layers).double(), x.detach().double().requires_grad_()
    first, second = exact_layers
    exact = second(nn.functional.gelu(first(exact_input), approximate="tanh"))
    with torch.autocast("cuda", dtype):
        with torch.no_grad():
            assert apart(gelu_mlp(x, *layers), exact) < LOOSE[dtype]
        found = gelu_mlp(x, *layers)
    upstream = torch.randn_like(found)
    found.backward(upstream)
    exact.backward(upstream.double())
    assert apart(found, exact) < LOOSE[dtype]
    pairs = [(x, exact_input), *zip(layers.parameters(), exact_layers.parameters(), strict=True)]
    assert all(apart(mine.grad, theirs.grad) < LOOSE[dtype] for mine, theirs in pairs)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(3, 128, 768), (2, 37, 100), (1, 1, 64)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_residual_norm_and_its_gradients_match_float64(dtype, shape, shared, dropout):
    torch.manual_seed(0)
    x, given = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    each = torch.randn(1 if shared else shape[0], 1, 3 * shape[2], device="cuda").chunk(3, -1)
    gate, scale, shift = (part.requires_grad_() for part in each)  # slices of a larger tensor, like a layer's output
    seed, ones = torch.tensor(1 << 61 | 12345, device="cuda"), torch.ones_like(given)
    rest = (1.0, seed if dropout else None, dropout, 1e-5)
    kept = residual_norm._residual_norm(torch.zeros_like(x), ones, torch.ones_like(gate), scale, shift, *rest, dtype)[
        0
    ].detach()
    out, seen, _ = residual_norm._residual_norm(x, given, gate, scale, shift, *rest, torch.float32)
    exact_input = [part.detach().double().requires_grad_() for part in (x, given, gate, scale, shift)]
    exact = exact_input[0] + exact_input[2] * (exact_input[1] * torch.where(kept > 0, 1 / (1 - dropout), 0.0))
    exact_seen = nn.functional.layer_norm(exact, shape[-1:]) * (1 + exact_input[3]) + exact_input[4]
    assert seen.dtype == torch.float32
    assert apart(out, exact) < LOOSE[dtype]
    assert apart(seen, exact_seen) < LOOSE[dtype]
    upstream = [torch.randn(shape, device="cuda", dtype=kind) for kind in (dtype, torch.float32)]
    torch.autograd.backward([out, seen], upstream)
    torch.autograd.backward([exact, exact_seen], [part.double() for part in upstream])
    assert all(
        apart(a.grad, b.grad) < LOOSE[dtype] for a, b in zip((x, given, gate, scale, shift), exact_input, strict=True)
    )


@gpu
def test_dropout_is_random_and_depends_on_the_seed_only():
    def kept(seed: int) -> torch.Tensor:
        x, ones = torch.zeros(64, 128, 768, device="cuda", dtype=torch.bfloat16), torch.ones(1, 1, 768, device="cuda")
        given, seed_there = torch.ones_like(x), torch.tensor(seed, device="cuda")
        return (
            residual_norm._residual_norm(x, given, ones, ones, ones, 0.0, seed_there, 0.1, 1e-5, x.dtype)[0].double()
            > 0
        )

    one, again, other = (kept(seed).double() - 0.9 for seed in (5, 5, 6))
    assert torch.equal(one, again)
    variance, n = 0.09, one.numel()
    assert abs(float(one.mean())) < 4 * (variance / n) ** 0.5
    for lagged in (other, one.roll(1, 2), one.roll(1, 1), one.roll(1, 0), one.roll(256, 2)):
        assert abs(float((one * lagged).mean())) < 4 * variance / n**0.5
    for dim in (0, 1, 2):
        sums = one.sum(dim) / (variance * one.shape[dim]) ** 0.5
        assert float(sums.var()) == pytest.approx(1, abs=5 * (2 / sums.numel()) ** 0.5 + 0.05)


@gpu
@pytest.mark.parametrize("shape", [(7, 20), (50_257, 768), (3, 5_000)], ids=str)
@pytest.mark.parametrize("n", [9, 700])
def test_embedding_costs_are_the_same_with_and_without_the_lookup_kernel(n, shape):
    torch.manual_seed(0)
    table = 1 + torch.randn(shape, device="cuda")
    x0, x1 = torch.randint(0, shape[0], (2, n, 70), device="cuda")
    cost = hf.SquaredEmbedding()
    found = cost.cost_matrix(x0, x1, table)
    with kernels.using(embedding=False):
        exact = cost.cost_matrix(x0, x1, table)
    assert torch.equal(found.pairwise, exact.pairwise)
    torch.testing.assert_close(found.rows, exact.rows, rtol=1e-5, atol=0)
    torch.testing.assert_close(found.columns, exact.columns, rtol=1e-5, atol=0)


@gpu
@pytest.mark.parametrize("sound", [0.0, 1.0])
def test_the_average_of_a_large_table_matches_torch_lerp(sound):
    torch.manual_seed(0)
    first, then = torch.randn(2, 50_257, 96, device="cuda")
    average = Ema(first, 0.9)
    before = average.value
    average.update(then, 100, torch.tensor(sound, device="cuda"))
    torch.testing.assert_close(average.value, first.lerp(then, 0.1 * sound))
    assert sound or torch.equal(average.value, first)
    assert torch.equal(before, first)


@gpu
@pytest.mark.parametrize("timed", [False, True])
def test_dropout_of_a_network_follows_torch_manual_seed(timed):
    vocab = hf.Vocab(50, 1)
    torch.manual_seed(0)
    model = toys.awake(hf.Transformer(vocab, "tiny", dropout=0.5, time=timed)).cuda()
    xt, t = torch.randint(0, 51, (4, 32), device="cuda"), torch.rand(4, device="cuda")

    def features(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with torch.autocast("cuda", torch.bfloat16):
            return model.features(xt, t)

    assert torch.equal(features(1), features(1))
    assert not torch.equal(features(1), features(2))
    model.eval()
    assert torch.equal(features(1), features(2))


@gpu
@pytest.mark.parametrize("timed", [False, True])
def test_a_recomputed_block_applies_the_same_dropout(timed, monkeypatch):
    torch.manual_seed(0)
    model = toys.awake(hf.Transformer(hf.Vocab(50, 1), "tiny", dropout=0.5, time=timed, recompute=True)).cuda()
    xt, t = torch.randint(0, 51, (4, 32), device="cuda"), torch.rand(4, device="cuda")
    weights = list(model.blocks.parameters())

    def gradients() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.features(xt, t).square().sum()
        return torch.autograd.grad(loss, weights)

    again = gradients()
    monkeypatch.setattr("hopflow.models.blocks.checkpoint", lambda function, *given, use_reentrant: function(*given))
    assert all(apart(a, b.double()) < 1e-2 for a, b in zip(again, gradients(), strict=True) if float(b.norm()) > 1e-6)


@gpu
def test_a_compiled_network_generates_the_same_sequences():
    """For two lengths, and a batch that is not full; rounding may change a few draws."""
    vocab = hf.Vocab(50, 1)
    model = toys.awake(hf.Transformer(vocab, hf.Size(layers=2, width=64, heads=2), dropout=0.5)).cuda().train()
    flow, prompts = hf.Flow(hf.Mask(vocab)), [torch.full((length,), -1) for length in [12] * 40 + [9] * 10]

    def drawn(**how):
        return [hf.infill(model, flow, prompts, batch=16, seed=1, compile=c, **how) for c in (False, True)]

    one, other = drawn(steps=40, precision="float32")
    assert torch.equal(one.calls, other.calls)
    assert float((one.tokens == other.tokens).double().mean()) > 0.97
    one, other = drawn(steps=1, precision="float32")
    assert float((one.tokens == other.tokens).double().mean()) > 0.97
    one, other = drawn(steps=40)
    assert one.precision == other.precision == "bf16"
    assert float((one.tokens == other.tokens).double().mean()) > 0.8
    assert model.training
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN"):
        hf.infill(model, flow, prompts, steps=40, batch=16, compile=True)


@gpu
@pytest.mark.parametrize("source", ["uniform", "multimask"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_training_step_with_kernels_matches_plain_float32_code(source, compiled):
    """bf16 with kernels, the head at noisy positions, compiled or not, against float32 by torch alone."""
    found = [_step(source, compiled)]
    with kernels.using(fused_head=False, short_attention=False):
        found.append(_step(source, False, precision="float32", all_positions=True))
    (loss, grads), (exact, exact_grads) = found
    assert loss == pytest.approx(exact, rel=3e-3)
    assert max(apart(a, b) for a, b in zip(grads, exact_grads, strict=True) if float(b.norm()) > 1e-6) < 0.08


@gpu
def test_a_resumed_compiled_run_ends_with_the_same_weights(tmp_path):
    """Dropout depends on the step alone."""
    corpus = hf.data.load("docs", tokens="char", length=32, offline=True)
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts))
    keys = {"batch": 8, "device": "cuda", "compile": True, "log_every": 100, "save_every": 5, "rate": "constant"}
    keys |= {"eval_every": 4, "eval_rows": 4, "eval_samples": 0, "workers": 0}

    def run(out: str, steps: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = toys.awake(hf.Transformer(flow.vocab, "tiny", dropout=0.2))
        hf.train(model, flow, corpus, out=tmp_path / out, steps=steps, **keys)
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    whole = run("whole", 10)
    run("parts", 5)
    for name, weights in run("parts", 10).items():
        torch.testing.assert_close(weights, whole[name], rtol=1e-3, atol=1e-5)


def _step(
    source: str, compiled: bool, precision: str = "bf16", all_positions: bool = False
) -> tuple[float, list[torch.Tensor]]:
    corpus = hf.data.load("docs", tokens="char", length=64, offline=True)
    counts = corpus.counts
    flow = hf.Flow((hf.Uniform if source == "uniform" else hf.MultiMask).fit(counts))
    settings = Settings(batch=32, compile=compiled, device="cuda", precision=precision, workers=0, clip=1e9)
    torch.manual_seed(0)
    model = hf.Transformer(flow.vocab, hf.Size(layers=2, width=128, heads=2), dropout=0.0).cuda()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=toys.generator(1)).cuda())
    task = FlowTask(model, flow, corpus, settings, Share())
    task.loss.caller.all_positions = all_positions
    trainer = Trainer(model, task, settings, torch.device("cuda"), Share())
    trainer.update(0)
    task.close()
    return trainer.loss, [p.grad.double() for p in model.parameters()]


@gpu
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_a_failed_step_on_a_gpu_leaves_the_weights_unchanged(tmp_path, bad):
    corpus = hf.data.load("docs", tokens="char", length=32, offline=True)
    flow = hf.Flow(hf.MultiMask.fit(corpus.counts), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    keys = {"batch": 8, "device": "cuda", "weight_ema": 0.9, "ot_ema": 0.9, "log_every": 100, "save_every": 100}
    keys |= {"eval_every": 0, "eval_rows": 0, "eval_samples": 0, "workers": 0}

    def network(poison: int | None) -> hf.Transformer:
        torch.manual_seed(0)
        model, calls = hf.Transformer(flow.vocab, "tiny"), iter(range(1000))
        inner = model.features

        def features(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            bad_now = model.training and next(calls) == poison  # a run calls its network once before training
            return inner(xt, t) * (float("nan") if bad_now else 1.0)

        model.features = features
        return model

    if bad:
        hf.train(network(None), flow, corpus, out=tmp_path / "good", steps=bad, **keys)
    with pytest.raises(NotFinite, match=f"at step {bad}"):
        hf.train(network(bad), flow, corpus, out=tmp_path / "bad", steps=6, **keys)
    found = latest(tmp_path / "bad" / "checkpoints")
    assert found.step == bad
    assert (tmp_path / "bad" / f"not-finite-{bad}.json").is_file()
    if bad:
        for group, tensors in latest(tmp_path / "good" / "checkpoints").groups.items():
            if group != "pairs":
                for name, tensor in tensors.items():
                    torch.testing.assert_close(found.groups[group][name], tensor, rtol=1e-4, atol=1e-6)
    hf.train(network(None), flow, corpus, out=tmp_path / "bad", steps=6, **keys)  # resumes from there


@gpu
@pytest.mark.torture
@pytest.mark.parametrize("source", ["bag_of_words", "multimask"])
def test_two_thousand_steps_end_where_plain_float32_code_does(source):
    """Three seeds, the same batches and noise; the mean difference of the last 200 losses within 2 standard errors."""
    differences = []
    for seed in range(3):
        fast = _last_losses(source, seed, "bf16")
        with kernels.using(fused_head=False, short_attention=False):
            differences.append(fast - _last_losses(source, seed, "float32", all_positions=True))
    each = torch.stack(differences).mean(1)  # of seeds, which differ in their dropout, too
    error = max(float(each.std()) / 3**0.5, float(torch.cat(differences).std()) / 600**0.5)
    assert abs(float(each.mean())) <= 2 * error, f"{each.tolist()}, ± {error:.2g}"


def _last_losses(
    source: str, seed: int, precision: str, steps: int = 2000, last: int = 200, all_positions: bool = False
) -> torch.Tensor:
    corpus = hf.data.load("docs", tokens="char", length=128, offline=True)
    flow = hf.Flow((hf.BagOfWords if source == "bag_of_words" else hf.MultiMask).fit(corpus.counts))
    settings = Settings(batch=32, warmup=100, lr=1e-3, device="cuda", precision=precision, seed=seed, workers=0)
    torch.manual_seed(seed)
    model = hf.Transformer(flow.vocab, hf.Size(layers=2, width=128, heads=2)).cuda()
    task = FlowTask(model, flow, corpus, settings, Share())
    task.loss.caller.all_positions = all_positions
    trainer, found = Trainer(model, task, settings, torch.device("cuda"), Share()), []
    for step in range(steps):
        trainer.update(step)
        found += [trainer.loss] if step >= steps - last else []
    task.close()
    return torch.tensor(found, dtype=torch.float64)


@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_nll_of_a_causal_network_by_the_loss_kernels_is_that_of_plain_logits(dtype):
    torch.manual_seed(0)
    model = hf.Causal(5_003, hf.Size(layers=1, width=64, heads=2), dropout=0.0).cuda()
    nn.init.normal_(model.head.weight, std=0.5)
    x = torch.randint(0, 5_003, (6, 32), device="cuda")
    found = {}
    for fused in (True, False):
        model.zero_grad()
        with kernels.using(fused_head=fused), torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            nats = model.nll(x)
        nats.sum().backward()
        found[fused] = nats.detach(), model.head.weight.grad.clone()
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for ours, plain in zip(found[True], found[False], strict=True):
        assert float((ours - plain).norm() / plain.norm()) < tolerance
