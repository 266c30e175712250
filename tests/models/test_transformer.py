import copy
import functools
import math
import subprocess
import sys

import pytest
import torch
from cases import sample_at
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.functional import cross_entropy, layer_norm
from toys import awake, generator
from unchecked import unchecked

from hopflow import scores as scores_module
from hopflow.costs import SquaredEmbedding
from hopflow.flow import Flow
from hopflow.kernels.gelu_mlp import supports
from hopflow.models import SIZES, Size, Transformer
from hopflow.models.attention import rotated, rotation
from hopflow.network.caller import NetworkCaller
from hopflow.network.network import evaluation_mode
from hopflow.network.network_reader import NetworkReader
from hopflow.objectives import EXAMPLES as OBJECTIVES
from hopflow.objectives import NoisyCrossEntropy
from hopflow.predictions import Evidence
from hopflow.sampling.generate import generate
from hopflow.scores import Scores
from hopflow.sources import MultiMask
from hopflow.vocab import Vocab

VOCAB = Vocab(data=5, masks=3)
SMALL = Size(layers=2, width=8, heads=2)
each_time = pytest.mark.parametrize("time", [True, False], ids=["timed", "timeless"])


def model(time=True, size=SMALL, dropout=0.0, seed=0, **more) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(VOCAB, size, dropout=dropout, time=time, **more).double()


def batch(rows=3, length=6, seed=2):
    xt = torch.randint(VOCAB.size, (rows, length), generator=generator(seed))
    return xt, torch.rand(rows, generator=generator(seed + 1), dtype=torch.float64)


def parameters_by_hand(data, masks, layers, width, time=True):
    embedding = (data + masks) * width
    attention = width * 3 * width + width * width
    perceptron = width * 4 * width + 4 * width + 4 * width * width + width
    head = width * data + data
    if not time:
        return embedding + layers * (attention + perceptron + 2 * 2 * width) + 2 * width + head
    clock = (256 * 128 + 128) + (128 * 128 + 128)
    modulation = 6 * (128 * width + width)
    return embedding + clock + layers * (attention + perceptron + modulation) + 2 * (128 * width + width) + head


@each_time
@pytest.mark.parametrize("size", SIZES)
def test_the_number_of_parameters_matches_a_count_by_hand(size, time):
    with torch.device("meta"):
        network = Transformer(Vocab(1000, 500), size, time=time)
    counted = sum(parameter.numel() for parameter in network.parameters())
    assert counted == parameters_by_hand(1000, 500, SIZES[size].layers, SIZES[size].width, time)
    assert counted == sum(value.numel() for value in network.state_dict().values())  # nothing else is stored


def test_layers_width_and_heads_of_the_named_sizes():
    shapes = {name: (size.layers, size.width, size.heads) for name, size in SIZES.items()}
    laptop = {"micro": (3, 64, 2), "tiny": (3, 128, 4), "mini": (6, 384, 6)}
    assert shapes == {**laptop, "small": (12, 768, 12), "medium": (24, 1024, 16)}


def test_time_conditioning_adds_about_five_percent_to_the_papers_size():
    plain, timed = (parameters_by_hand(50_257, 1, 12, 768, time) for time in (False, True))
    assert 0.04 < timed / plain - 1 < 0.06  # App. C


@each_time
def test_a_new_network_finds_every_data_token_equally_likely(time):
    assert (model(time)(*batch()) == 0).all()


@each_time
def test_the_features_of_a_new_network_are_its_normed_embeddings(time):
    network = model(time)
    xt, t = batch()
    torch.testing.assert_close(network.features(xt, t), layer_norm(network.embedding(xt), (SMALL.width,)))


def by_hand(network, xt, t):
    """One row of logits, written as one would on paper: complex turns, a softmax, loops over heads."""
    w = {name: value.detach() for name, value in network.state_dict().items()}
    size, length = network.size, len(xt)
    half = size.width // size.heads // 2

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    def normed(x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()

    def silu(x):
        return x / (1 + (-x).exp())

    def steered(name, x):
        if not network.time:
            return normed(x) * w[f"{name}.norm.weight"] + w[f"{name}.norm.bias"], 1.0
        shift, scale, *gate = linear(f"{name}.modulation", clock).split(size.width)
        return normed(x) * (1 + scale) + shift, gate[0] if gate else None

    if network.time:
        speeds = torch.tensor([1000 * 10_000 ** (-i / 128) for i in range(128)], dtype=torch.float64)
        waves = torch.cat([(t * speeds).cos(), (t * speeds).sin()])
        clock = silu(linear("clock.outer", silu(linear("clock.inner", waves))))
    angles = [[i * 10_000 ** (-j / half) for j in range(half)] for i in range(length)]
    turn = torch.polar(torch.ones(length, half, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))
    x = w["embedding.weight"][xt]
    for block in range(size.layers):
        inner, gate = steered(f"blocks.{block}.attention", x)
        seen = []
        for head in linear(f"blocks.{block}.attention.inner.qkv", inner).view(length, 3, size.heads, -1).unbind(2):
            q, k = (torch.complex(part[:, :half], part[:, half:]) * turn for part in (head[:, 0], head[:, 1]))
            chances = ((q @ k.conj().T).real / (2 * half) ** 0.5).softmax(-1)
            seen.append(chances @ head[:, 2])
        x = x + gate * linear(f"blocks.{block}.attention.inner.out", torch.cat(seen, -1))
        inner, gate = steered(f"blocks.{block}.perceptron", x)
        inner = linear(f"blocks.{block}.perceptron.inner.inner", inner)
        inner = inner / 2 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
        x = x + gate * linear(f"blocks.{block}.perceptron.inner.out", inner)
    if network.time:
        return linear("head", steered("norm", x)[0])
    return linear("head", normed(x) * w["norm.weight"] + w["norm.bias"])


@each_time
def test_logits_match_an_implementation_written_by_hand(time):
    network = awake(model(time))
    xt, t = batch()
    rows = torch.stack([by_hand(network, *row) for row in zip(xt, t, strict=True)])
    torch.testing.assert_close(network(xt, t).detach(), rows, rtol=1e-9, atol=1e-9)


@each_time
def test_logits_are_over_data_tokens_and_embeddings_over_all(time):
    network = awake(model(time))
    xt, t = batch()
    assert network(xt, t).shape == (*xt.shape, VOCAB.data)
    assert network.features(xt, t).shape == (*xt.shape, SMALL.width)
    assert network.table.shape == (VOCAB.size, SMALL.width)
    assert network.table is network.embedding.weight
    assert SquaredEmbedding().matrix(xt, xt, network.table).shape == (3, 3)


@each_time
def test_the_logits_are_the_head_of_the_features(time):
    network = awake(model(time))
    assert torch.equal(network(*batch()), network.head(network.features(*batch())))


@each_time
def test_every_parameter_has_a_gradient_after_a_few_steps(time):
    network = model(time)
    xt, t = batch(8, 16)
    adam = torch.optim.Adam(network.parameters(), 0.01)
    reached = []
    for _ in range(4):
        adam.zero_grad()
        cross_entropy(network(xt, t).flatten(0, 1), xt.flatten() % VOCAB.data).backward()
        reached.append({name for name, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())})
        adam.step()
    assert reached[0] == {"head.weight", "head.bias"}
    assert reached[3] == dict(network.named_parameters()).keys()


def test_the_time_embedding_separates_close_times():
    early, late = model().clock(torch.tensor([0.5, 0.501], dtype=torch.float64)).detach()
    assert float((early - late).norm() / early.norm()) > 0.05


def test_a_network_without_time_ignores_t():
    network = awake(model(time=False))
    xt, t = batch()
    assert torch.equal(network(xt, t), network(xt, 1 - t))
    assert torch.equal(network(xt, t), network(xt, t * torch.nan))


@each_time
def test_rows_of_a_batch_are_independent(time):
    network = awake(model(time))
    xt, t = batch(4)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(network(xt, t)[order], network(xt[order], t[order]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(network(xt, t)[1:2], network(xt[1:2], t[1:2]), rtol=1e-12, atol=1e-12)


@each_time
def test_every_position_attends_to_every_other(time):
    network = awake(model(time))
    xt, t = batch(1)
    before = network(xt, t)
    for position in range(xt.shape[1]):
        after = xt.clone()
        after[0, position] = (xt[0, position] + 1) % VOCAB.size
        assert bool((network(after, t) != before).any(-1).all())


def test_rotary_products_depend_on_the_distance_of_positions_only():
    q, k = (torch.randn(1, 1, 8, generator=generator(seed), dtype=torch.float64) for seed in (0, 1))
    turn = rotation(torch.zeros(1, 1, 8, dtype=torch.float64).expand(1, 20, 8), Size(1, 8, 1))
    at_q, at_k = rotated(q.expand(1, 20, 8), turn)[0], rotated(k.expand(1, 20, 8), turn)[0]
    products = at_q @ at_k.T
    for distance in range(-19, 20):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=1e-12, atol=1e-12)
    assert len({round(float(products[0, j]), 6) for j in range(20)}) == 20  # and it does matter
    torch.testing.assert_close(at_q.norm(dim=1), q[0].norm().expand(20))


def test_a_rotation_can_start_at_any_position_and_is_at_least_float32():
    size = Size(1, 8, 2)
    whole = rotation(torch.zeros(1, 30, 8, dtype=torch.bfloat16), size)
    part = rotation(torch.zeros(1, 10, 8, dtype=torch.bfloat16), size, start=20)
    assert whole[0].dtype == torch.float32
    assert all(torch.equal(w[20:], p) for w, p in zip(whole, part, strict=True))


@each_time
def test_reversing_a_sequence_changes_more_than_the_order_of_the_logits(time):
    network = awake(model(time))
    xt, t = torch.tensor([[0, 1, 2, 3, 4, 5]]), torch.tensor([0.5], dtype=torch.float64)
    assert not torch.allclose(network(xt.flip(1), t).flip(1), network(xt, t))


@each_time
def test_gradients_match_finite_differences(time):
    network = awake(model(time, Size(2, 4, 1)))
    xt, t = batch(2, 3)
    names, values = zip(*network.named_parameters(), strict=True)

    def logits(*parameters):
        return torch.func.functional_call(network, dict(zip(names, parameters, strict=True)), (xt, t)).tanh()

    inputs = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(logits, inputs, fast_mode=True)


@each_time
def test_dropout_is_off_in_evaluation_mode_only(time):
    network = awake(model(time, dropout=0.3))
    assert not torch.equal(network(*batch()), network(*batch()))
    network.eval()
    assert torch.equal(network(*batch()), network(*batch()))
    with evaluation_mode(network.train()):
        assert torch.equal(network(*batch()), awake(model(time)).eval()(*batch()))


@each_time
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_activations_changes_no_gradient(time, dropout):
    def gradients(recompute):
        network = awake(model(time, dropout=dropout, recompute=recompute))
        torch.manual_seed(9)
        (network(*batch()) ** 2).sum().backward()
        return [parameter.grad for parameter in network.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


def test_recomputing_stores_fewer_activations():
    def kept(recompute):
        network = awake(model(size=Size(8, 8, 2), recompute=recompute))
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
            network.features(*batch(4, 16))
        return sum(x.numel() for x in saved if x.shape[0] == 4 and x.numel() >= 4 * 16 * SMALL.width)

    assert kept(True) < kept(False) / 5


@each_time
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_a_loss_from_features_and_head_equals_that_from_logits_with_its_gradients(time, objective, monkeypatch):
    monkeypatch.setattr(scores_module, "CHUNK", 4 * VOCAB.data)
    source = MultiMask(VOCAB)
    sample = sample_at(source, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64), length=6)
    assert isinstance(objective, NoisyCrossEntropy) or bool(source.vocab.is_data(sample.xt).any())
    network = awake(model(time))

    def loss(scores):
        value = objective(scores, sample).sum()
        return value.detach(), torch.autograd.grad(value, list(network.parameters()))

    whole = loss(Scores.from_logits(network(sample.xt, sample.t), sample, Evidence(), source))
    features = network.features(sample.xt, sample.t)
    chunked = loss(Scores.from_head(features, network.head, sample, Evidence(), source))
    torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12)


@each_time
def test_initial_weights_depend_on_the_seed(time):
    one, same, other = model(time), model(time), model(time, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.table, other.table)


@each_time
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (2, 1), (1, 33)])
def test_any_length_and_batch_size_works(time, rows, length):
    assert awake(model(time))(*batch(rows, length)).isfinite().all()


def test_int32_tokens_give_the_same_logits_as_int64():
    network = awake(model())
    xt, t = batch()
    assert torch.equal(network(xt.int(), t), network(xt, t))


@pytest.mark.parametrize(
    "xt",
    [torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 3), torch.zeros(3, dtype=torch.long), torch.ones(2, 3) > 0],
    ids=["length 0", "floats", "one row", "bools"],
)
def test_inputs_that_are_not_token_ids_are_rejected(xt):
    with pytest.raises(ValueError, match=r"token ids must be int64 or int32 of shape \(B, L\)"):
        unchecked(Transformer.features)(model(), xt, torch.zeros(2, dtype=torch.float64))


@pytest.mark.parametrize(("name", "near"), [("smal", "small"), ("Tiny", "tiny"), ("gigantic", None)])
def test_an_unknown_size_is_rejected_with_a_suggestion(name, near):
    with pytest.raises(
        ValueError, match=f"did you mean '{near}'" if near else "sizes are micro, tiny, mini, small, medium"
    ):
        Transformer(VOCAB, name)


@pytest.mark.parametrize("numbers", [(0, 8, 2), (1, 0, 1), (1, 8, 0), (1, 8, 3), (1, 6, 2), (10**9, 8, 2), (1, 8, -2)])
def test_an_impossible_size_is_rejected(numbers):
    with pytest.raises(ValueError):
        Size(*numbers)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, float("nan")])
def test_an_impossible_dropout_is_rejected(dropout):
    with pytest.raises(ValueError, match="dropout"):
        Transformer(VOCAB, SMALL, dropout=dropout)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_stays_close_to_float64(dtype):
    network = awake(model())
    exact = network(*batch())
    xt, t = batch()
    low = copy.deepcopy(network).to(dtype)(xt, t.float())
    assert low.dtype == dtype
    error = (low.double() - exact).norm() / exact.norm()
    assert error < (1e-5 if dtype == torch.float32 else 0.05)


def test_under_autocast_residual_stream_and_logits_are_bf16_and_features_float32():
    network = awake(model()).float()
    xt, t = batch()
    streams = []
    for block in network.blocks:
        block.register_forward_hook(lambda block, inputs, output: streams.append(output.x.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits, features = network(xt, t.float()), network.features(xt, t.float())
    assert logits.dtype == torch.bfloat16
    assert set(streams) == {torch.bfloat16}
    assert features.dtype == torch.float32
    exact = network(xt, t.float())
    assert float((logits - exact).detach().norm() / exact.detach().norm()) < 0.05


def test_generate_returns_data_tokens_only():
    out = generate(awake(model()), Flow(MultiMask(VOCAB)), n=4, length=7, steps=5)
    assert bool(VOCAB.is_data(out.tokens).all())


@pytest.mark.parametrize("time", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("places", [2, 4])  # fewer than sequences, and more
def test_partial_features_equal_the_features_at_the_chosen_positions(time, layers, places):
    network = awake(Transformer(VOCAB, Size(layers=layers, width=32, heads=2), time=time).double()).eval()
    xt, t = batch()
    row, position = torch.tensor([1, 0, 1, 1])[:places], torch.tensor([2, 5, 2, 0])[:places]
    with torch.no_grad():
        whole, begun = network.features(xt, t), network.begin_features(xt, t)
        torch.testing.assert_close(network.finish_features(begun, row, position), whole[row, position])
        torch.testing.assert_close(network.finish_all_features(begun), whole)


@pytest.mark.parametrize("many", [False, True])
def test_a_network_reader_finishes_features_at_few_positions_or_at_all(many, monkeypatch):
    network = awake(model()).eval()
    xt, t = batch()
    row, position = (torch.arange(len(xt)).repeat(9), torch.arange(9).repeat_interleave(len(xt)) % xt.shape[1])
    row, position = (row, position) if many else (row[:3], position[:3])
    called = []
    for name in ("finish_features", "finish_all_features"):
        inner = getattr(network, name)
        monkeypatch.setattr(
            network, name, lambda *given, inner=inner, name=name: (called.append(name), inner(*given))[1]
        )
    with torch.no_grad():
        reading = NetworkReader(NetworkCaller(network, VOCAB.data, precision="auto")).read(xt, t, xt, None)
        torch.testing.assert_close(reading.logits(row, position), network(xt, t)[row, position])
        reading.logits(row, position)
    assert called == (["finish_all_features"] if many else ["finish_features"] * 2)


class Louder(Transformer):
    def features(self, xt, t):
        return 3 * super().features(xt, t)


class Deeper(Transformer):
    def run_blocks(self, *given, **more):
        return 3 * super().run_blocks(*given, **more)


class Wider(nn.Module):
    """A layer with something beside it, that shows the weights of the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.weight = layer, layer.weight

    def forward(self, x):
        return self.layer(x) + 0.3 * x.repeat(1, 1, 3)


def changed(how: str) -> Transformer:
    kinds = {"features": Louder, "run_blocks": Deeper}
    network = awake(kinds.get(how, Transformer)(VOCAB, Size(layers=2, width=32, heads=2)).double()).eval()
    looking = network.blocks[-1].attention.inner
    if how == "wrapped":
        inner = network.features
        network.features = functools.wraps(inner)(lambda xt, t: 3 * inner(xt, t))
    elif how == "layer":
        looking.qkv = Wider(looking.qkv)
    elif how == "hook":
        looking.register_forward_hook(lambda module, given, out: 2 * out)
    return network


@pytest.mark.parametrize("how", ["features", "run_blocks", "wrapped", "layer", "hook"])
def test_a_network_reader_respects_overridden_and_hooked_features(how):
    network, row, position = changed(how), torch.tensor([0, 1]), torch.tensor([1, 2])
    with torch.no_grad():
        logits = (
            NetworkReader(NetworkCaller(network, VOCAB.data, precision="auto"))
            .read(*batch(), batch()[0], None)
            .logits(row, position)
        )
        torch.testing.assert_close(logits, network(*batch())[row, position])
    assert not network.supports_partial_features()


def test_partial_features_need_evaluation_mode_and_accept_no_positions():
    network = awake(model())
    with pytest.raises(ValueError, match="evaluation mode"):
        network.train().begin_features(*batch())
    begun, none = network.eval().begin_features(*batch()), torch.empty(0, dtype=torch.int64)
    assert network.finish_features(begun, none, none).shape == (0, network.size.width)


COMPILED = """
import torch
from hopflow.models import Causal, Size, Transformer
from hopflow.vocab import Vocab

def compare(network, *inputs, lengths):
    torch._dynamo.reset()
    whole = torch.compile(network, backend="eager", fullgraph=True)
    for length in lengths:
        at = [x[:, :length] if x.ndim == 2 else x for x in inputs]
        torch.testing.assert_close(whole(*at), network(*at))
        whole(*at).sum().backward()

torch.manual_seed(0)
x, t, size = torch.randint(8, (3, 9)), torch.rand(3), Size(2, 8, 2)
compare(Transformer(Vocab(5, 3), size, dropout=0.0), x, t, lengths=(9, 6))  # also after a change of shape
compare(Transformer(Vocab(5, 3), size, dropout=0.0, time=False, recompute=True), x, t, lengths=(9,))
compare(Causal(8, size, dropout=0.0), x, lengths=(9,))
"""


@pytest.mark.slow
def test_every_network_compiles_without_a_graph_break():
    # in a process of its own: the checks of shapes in the tests are Python that no graph can hold
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_network_runs_on_the_meta_device():
    network = model().to("meta")
    xt, t = (x.to("meta") for x in batch())
    assert network(xt, t).shape == (*xt.shape, VOCAB.data)


ONE_GRAPH = """
import torch, hopflow as hf
device = "cuda" if torch.cuda.is_available() else "cpu"
for time in (True, False):
    torch.manual_seed(0)
    network = hf.Transformer(hf.Vocab(9, 3), hf.Size(layers=2, width=64, heads=2), time=time).to(device).eval()
    xt, t = torch.randint(0, 12, (2, 8), device=device), torch.rand(2, device=device)
    for narrow in (False, True):
        torch._dynamo.reset()
        with torch.autocast(device, torch.bfloat16, enabled=narrow):
            for part in (network.features, network.begin_features):
                whole = torch.compile(part, fullgraph=True, dynamic=False, backend="eager")
                torch.testing.assert_close(whole(xt, t), part(xt, t))
                with torch.no_grad():
                    torch.testing.assert_close(whole(xt, t), part(xt, t))
"""


@pytest.mark.slow
def test_features_compile_as_one_graph():
    """In a process of its own: the checks that the tests put around functions would break it."""
    found = subprocess.run([sys.executable, "-c", ONE_GRAPH], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


class Own(nn.Linear):
    """A layer of one's own, which may do more than multiply."""


def test_gelu_mlp_supports_only_plain_linear_layers_with_a_bias():
    with FakeTensorMode(), torch.no_grad():
        x = torch.empty(2, 4, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        assert supports(x, nn.Linear(4, 8), nn.Linear(8, 4))
        assert not supports(x, nn.Linear(4, 8, bias=False), nn.Linear(8, 4))
        assert not supports(x, nn.Linear(4, 8), nn.Linear(8, 4, bias=False))
        assert not supports(x, nn.Linear(4, 8), Own(8, 4))
