"""Sequences drawn by events, against the oracle and against the plain loop."""

import copy
import math

import pytest
import torch
from cases import Ramp, name
from plain_loop import plain_loop
from scipy.stats import chisquare
from torch import nn
from toys import Clocked, dirichlet, generator
from unchecked import unchecked

from hopflow import exact
from hopflow.costs import Hamming, TokenMatrix
from hopflow.flow import Flow
from hopflow.models import Size, Transformer
from hopflow.network.network import NetworkCaller
from hopflow.network.network_reader import NetworkReader
from hopflow.predictions import EXAMPLES as PREDICTIONS
from hopflow.predictions import Carry, Evidence, Plain
from hopflow.sampling.generate import Unfinished, generate, infill
from hopflow.sampling.generation import HOLE
from hopflow.sampling.planners import EntropyBound
from hopflow.sampling.random_draws import gumbel32
from hopflow.sampling.samplers import CosineGrid, Euler, Events, RandomOrder, Sampler
from hopflow.schedules import EXAMPLES as SCHEDULES
from hopflow.schedules import Cosine, Linear, Polynomial, Positional
from hopflow.sources import BagOfWords, Mask, MultiMask, Uniform
from hopflow.vocab import Vocab

L = 2
SOURCES = [
    Mask(Vocab(3, 1)),
    MultiMask(Vocab(2, 2)),
    Uniform(Vocab(3)),
    BagOfWords(Vocab(3), (0.6, 0.3, 0.1)),
    Ramp(Vocab(2, 2)),
]
FLAVOURS = [(s, p, n, eta) for s in SOURCES for p in PREDICTIONS for n in (1, 2, 7, 64) for eta in (0.0, 1.0)]
NAMES = [f"{name(s)}-{name(p)}-N={n}-eta={eta:g}" for s, p, n, eta in FLAVOURS]
TRUST = 0.001 / len(FLAVOURS)


def random_table(flow: Flow, seed: int = 0, length: int = L) -> exact.Table:
    space = exact.Space(flow.vocab, length)
    return exact.Table(space, dirichlet(len(space.states), length, flow.vocab.data, seed=seed))


def random_network(flow: Flow, seed: int = 0) -> Clocked:
    return Clocked.random(exact.Space(flow.vocab, L), seed)


def oracle(flow: Flow, network, length: int = L) -> exact.Oracle:
    count = flow.vocab.data**length
    return exact.Oracle(flow, torch.full((count,), 1 / count, dtype=torch.float64), length, network)


def counts(tokens: torch.Tensor, data: int) -> torch.Tensor:
    """How often each data sequence was drawn."""
    place = data ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return torch.bincount((tokens * place).sum(1), minlength=data ** tokens.shape[1]).double()


def fits(tokens: torch.Tensor, law: torch.Tensor, data: int) -> float:
    """The p-value of these sequences under this law over data sequences; rare ones are counted together."""
    seen, expected = counts(tokens, data), law * len(tokens)
    rare = expected < 5
    assert float(seen[rare].sum()) <= float(expected[rare].sum()) + 4 * math.sqrt(float(expected[rare].sum())) + 4
    seen, expected = seen[~rare], expected[~rare]
    return float(chisquare(seen, expected * seen.sum() / expected.sum()).pvalue) if len(seen) > 1 else 1.0


def agrees(flow: Flow, network, steps: int, eta, n: int = 6_000, batch: int | None = None) -> None:
    how = {} if batch is None else {"batch": batch}
    run = generate(network, flow, n=n, length=L, steps=steps, eta=eta, seed=5, **how)
    truth = oracle(flow, network)
    assert fits(run.tokens, truth.law(steps=steps, eta=eta), flow.vocab.data) > TRUST
    jumps = run.jumps.double()
    assert abs(float(jumps.mean()) - truth.jumps(steps=steps, eta=eta)) <= 4 * float(jumps.std()) / math.sqrt(n) + 1e-12
    assert (run.redraws >= run.changes).all()
    assert (run.calls <= steps).all()
    assert run.steps == steps
    flow.vocab.check_data(run.tokens)


@pytest.mark.parametrize(
    ("source", "prediction", "steps", "eta"),
    [pytest.param(*flavour, marks=() if flavour[2] in (2, 7) else pytest.mark.slow) for flavour in FLAVOURS],
    ids=NAMES,
)
def test_samples_have_exactly_the_law_and_the_jumps_of_n_steps(source, prediction, steps, eta):
    flow = Flow(source, prediction=prediction)
    agrees(flow, random_network(flow), steps, eta)


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_the_plain_loop_has_exactly_the_law_and_the_jumps_of_n_steps(source, eta):
    flow, n = Flow(source), 6_000
    network = random_network(flow)
    run, truth = plain_loop(network, flow, n=n, length=L, steps=7, eta=eta), oracle(flow, network)
    assert fits(run.tokens, truth.law(steps=7, eta=eta), flow.vocab.data) > 0.0001
    jumps = run.changes.sum(1).double()
    assert abs(float(jumps.mean()) - truth.jumps(steps=7, eta=eta)) <= 4 * float(jumps.std()) / math.sqrt(n)


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_samples_in_many_batches_have_exactly_the_law_and_the_jumps_of_n_steps(source):
    flow = Flow(source, Cosine())
    agrees(flow, random_table(flow), 4, 0.5, batch=700)


@pytest.mark.parametrize(
    "schedule", [Polynomial(2.0), Positional((Linear(), Polynomial(3.0)))], ids=["shared", "positional"]
)
@pytest.mark.parametrize("eta", [0.0, 2.0, lambda t: 4 * t], ids=["0", "2", "4t"])
def test_samples_on_other_schedules_and_with_an_eta_that_changes_have_exactly_the_law(schedule, eta):
    flow = Flow(Uniform(Vocab(3)), schedule)
    agrees(flow, random_network(flow), 5, eta)


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_a_cosine_grid_on_a_linear_schedule_is_a_cosine_schedule_on_an_even_grid(source):
    # for a network that does not read the clock, the law depends on the k of the steps only
    flow = Flow(source)
    table = random_table(flow)
    run = generate(table, flow, n=6_000, length=L, sampler=Euler(5, CosineGrid()), eta=1.0, seed=2)
    truth = oracle(Flow(source, Cosine()), table)
    assert fits(run.tokens, truth.law(steps=5, eta=1.0), flow.vocab.data) > 0.0001


def test_times_of_ones_own_are_those_that_the_network_is_asked_at():
    flow, times = Flow(Uniform(Vocab(3))), (0.0, 0.05, 0.3, 0.95, 1.0)
    network, asked = random_network(flow), set()

    def spy(xt, t):
        asked.update(t.tolist())
        return network(xt, t)

    run = generate(spy, flow, n=6_000, length=L, sampler=Euler.at(times), seed=1)
    assert asked == {torch.tensor(t).item() for t in times[:-1]}
    plain = plain_loop(network, flow, n=6_000, length=L, steps=4, grid=run.sampler.grid)
    seen = torch.stack([counts(run.tokens, 3), counts(plain.tokens, 3)])
    expected = seen.sum(0).expand(2, -1) / 2
    assert chisquare(seen.flatten(), expected.flatten(), ddof=8).pvalue > 0.0001


@pytest.mark.parametrize("source", [Mask(Vocab(3, 1)), MultiMask(Vocab(2, 2))], ids=name)
@pytest.mark.parametrize("prediction", [Carry(), Evidence()], ids=name)
@pytest.mark.parametrize("clocked", [False, True], ids=["table", "clocked"])
def test_random_order_has_exactly_the_law_of_continuous_time(source, prediction, clocked):
    flow = Flow(source, Polynomial(2.0), prediction)
    network = random_network(flow) if clocked else random_table(flow)
    run = generate(network, flow, n=20_000, length=L, sampler=RandomOrder(), seed=4)
    assert fits(run.tokens, oracle(flow, network).law(), flow.vocab.data) > 0.0001
    assert (run.calls == L).all()
    assert (run.changes == 1).all()
    assert run.steps is None


def test_random_order_several_at_a_time_is_another_law():
    flow = Flow(Mask(Vocab(3, 1)))
    space = exact.Space(flow.vocab, L)
    # two positions that copy each other, if they can see each other
    probs = torch.full((len(space.states), L, 3), 1 / 3, dtype=torch.float64)
    for i, state in enumerate(space.states.tolist()):
        for j in range(L):
            if state[1 - j] < 3:
                probs[i, j] = torch.eye(3, dtype=torch.float64)[state[1 - j]]
    table = exact.Table(space, probs)
    one = generate(table, flow, n=2_000, length=L, sampler=RandomOrder())
    both = generate(table, flow, n=2_000, length=L, sampler=RandomOrder(2))
    assert (one.tokens[:, 0] == one.tokens[:, 1]).all()
    assert float((both.tokens[:, 0] == both.tokens[:, 1]).double().mean()) == pytest.approx(1 / 3, abs=0.05)
    assert (both.calls == 1).all()


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_temperature_and_its_kin_narrow_the_prediction_and_with_it_the_whole_kernel(source):
    # the law is that of the network that predicts what the filter leaves
    flow = Flow(source, prediction=Plain())
    table = random_table(flow)
    how = {"temperature": 0.7, "top_k": 2, "top_p": 0.9, "min_p": 0.1}
    run = generate(table, flow, n=6_000, length=L, steps=5, eta=1.0, seed=3, **how)
    narrowed = exact.Table(table.space, run.filter(table.logits.flatten(0, 1)).exp().view_as(table.logits))
    assert fits(run.tokens, oracle(flow, narrowed).law(steps=5, eta=1.0), flow.vocab.data) > 0.0001


def test_a_proposal_that_is_not_accepted_is_no_redraw():
    # all data are 0 and the network knows it: a proposal is accepted where there still is noise, with chance 1 - k
    flow, n, steps = Flow(Uniform(Vocab(2)), prediction=Plain()), 4_000, 8

    def knows(xt, t):
        return torch.tensor([0.0, -torch.inf]).expand(*xt.shape, 2)

    run = generate(knows, flow, n=n, length=1, steps=steps, eta=1.0, seed=1)
    k = torch.arange(steps, dtype=torch.float64) / steps
    r = 1 / (steps * (1 - k))
    s = torch.minimum(r * (1 - k - 1 / steps) / (k + 1 / steps), 1 - r)
    expected = (r + s * (1 - k)).sum()
    assert abs(float(run.redraws.double().mean()) - expected) <= 4 * float(run.redraws.double().std()) / math.sqrt(n)


@pytest.mark.parametrize("source", [Mask(Vocab(3, 1)), MultiMask(Vocab(2, 2))], ids=name)
def test_where_data_stays_every_position_hops_exactly_once(source):
    flow = Flow(source)
    run = generate(random_network(flow), flow, n=500, length=L, steps=8, eta=1.0, seed=1)
    assert (run.changes >= 1).all()
    assert (run.calls <= L).all()  # masks change places without the network
    still = generate(random_network(flow), flow, n=500, length=L, steps=8, seed=1)
    assert (still.changes == 1).all()


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("prediction", PREDICTIONS, ids=name)
def test_no_mask_is_left_behind_on_any_schedule(schedule, prediction):
    flow = Flow(Mask(Vocab(5, 1)), schedule, prediction)
    run = generate(lambda xt, t: torch.zeros(*xt.shape, 5), flow, n=64, length=128, steps=8, seed=0)
    flow.vocab.check_data(run.tokens)
    assert (run.x0 == 5).all()


# what does not change the result


def transformer(data: int = 50, masks: int = 50, **how) -> Transformer:
    torch.manual_seed(0)
    net = Transformer(Vocab(data, masks), "tiny", dropout=0.0, **how)
    for parameter in net.parameters():  # a new network predicts every token alike, whatever it sees
        nn.init.normal_(parameter, std=0.1)
    return net.eval()


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("source", [MultiMask, Uniform], ids=name)
def test_the_batch_size_changes_no_sample(source, eta):
    net = transformer()
    flow = Flow(source(net.vocab))
    whole = generate(net, flow, n=10, length=8, steps=16, eta=eta, seed=3)
    for batch in (1, 3, 7):
        run = generate(net, flow, n=10, length=8, steps=16, eta=eta, seed=3, batch=batch)
        for field in ("tokens", "x0", "calls", "redraws", "changes"):
            assert torch.equal(getattr(run, field), getattr(whole, field)), (batch, field)


def test_the_first_sequences_of_many_are_those_of_few():
    net = transformer()
    few, many = (generate(net, Flow(Uniform(net.vocab)), n=n, length=8, steps=16, seed=1) for n in (3, 40))
    assert torch.equal(few.tokens, many.tokens[:3])


def test_logits_at_the_positions_that_move_are_those_of_the_whole_network():
    net = transformer()
    flow = Flow(Uniform(net.vocab))
    fast = generate(net, flow, n=8, length=16, steps=32, seed=0)
    whole = generate(lambda xt, t: net(xt, t), flow, n=8, length=16, steps=32, seed=0)
    assert torch.equal(fast.tokens, whole.tokens)


@pytest.mark.parametrize("split", [True, False], ids=["trunk and head", "a plain function"])
def test_a_compiled_network_is_shown_one_number_of_rows_and_draws_the_same(split, monkeypatch):
    shapes = set()

    def compiled(body, dynamic):
        def run(xt, t):
            shapes.add(tuple(xt.shape))
            return body(xt, t)

        return run

    monkeypatch.setattr(torch, "compile", compiled)  # the compiler itself takes a minute
    net = transformer()
    asked = net if split else lambda xt, t: net(xt, t)
    how = {"n": 10, "length": 8, "steps": 16, "seed": 3, "batch": 4}
    run = generate(asked, Flow(MultiMask(net.vocab)), compile=True, **how)
    assert shapes == {(4, 8)}
    assert torch.equal(run.tokens, generate(asked, Flow(MultiMask(net.vocab)), **how).tokens)


def test_a_network_is_asked_only_for_sequences_that_move_and_its_head_only_where_they_do():
    seen, rows = [], []

    class Net(nn.Module):
        def features(self, xt, t):
            seen.append(len(xt))
            return torch.zeros(*xt.shape, 4)

        def head(self, features):
            rows.append(len(features))
            return torch.zeros(len(features), 3)

    run = generate(Net(), Flow(Mask(Vocab(3, 1))), n=100, length=6, steps=1000, batch=10)
    assert sum(seen) == int(run.calls.sum())
    assert sum(rows) == 600
    assert all(count == 10 for count in seen[: len(seen) * 9 // 10])  # full batches, but for the end of a wave


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others():
    flow = Flow(Uniform(Vocab(3)))
    runs = [generate(random_network(flow), flow, n=64, length=L, steps=4, eta=1.0, seed=s) for s in (3, 3, 4)]
    assert torch.equal(runs[0].tokens, runs[1].tokens)
    assert torch.equal(runs[0].changes, runs[1].changes)
    assert not torch.equal(runs[0].tokens, runs[2].tokens)


def test_generating_leaves_the_global_random_state_alone():
    flow = Flow(Uniform(Vocab(3)))
    before = torch.get_rng_state()
    generate(random_network(flow), flow, n=4, length=L, steps=3, eta=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_is_asked_without_gradients_or_dropout():
    asked = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, xt, t):
            asked.append((self.training, torch.is_grad_enabled(), t.dtype, len(t) == len(xt)))
            return self.weight.expand(*xt.shape, 3)

    net = Net().train()
    generate(net, Flow(Uniform(Vocab(3))), n=2, length=5, steps=4)
    assert set(asked) == {(False, False, torch.float32, True)}
    assert net.training


# extremes


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 100_000])
@pytest.mark.parametrize("source", SOURCES, ids=name)
@pytest.mark.parametrize("length", [1, 3])
def test_extremes_give_valid_tokens(source, steps, temperature, length):
    flow = Flow(source)
    table = random_table(flow, length=length)
    run = generate(table, flow, n=1, length=length, steps=steps, eta=1.0, temperature=temperature, batch=1)
    flow.vocab.check_data(run.tokens)
    assert run.tokens.shape == (1, length)


def test_a_million_draws_give_no_invalid_token():
    flow = Flow(Uniform(Vocab(7)), prediction=Plain())
    logits = torch.randn(7, generator=generator(0)) * 20
    run = generate(lambda xt, t: logits.expand(*xt.shape, 7), flow, n=1800, length=128, steps=64, seed=0)
    assert int(run.redraws.sum()) >= 10**6
    flow.vocab.check_data(run.tokens)


def test_temperature_0_takes_the_likeliest_token():
    flow = Flow(Uniform(Vocab(3)))
    network = random_network(flow)
    run = generate(network, flow, n=100, length=L, steps=1, temperature=0.0, seed=0)
    assert torch.equal(run.tokens, network(run.x0, torch.zeros(100)).argmax(-1))


def test_samples_can_be_drawn_from_half_precision_logits():
    flow = Flow(Uniform(Vocab(3)))
    run = generate(lambda xt, t: torch.zeros(*xt.shape, 3, dtype=torch.bfloat16), flow, n=8, length=4, steps=4, eta=1.0)
    flow.vocab.check_data(run.tokens)


def test_under_autocast_the_head_keeps_the_digits_of_its_weights():
    net, kinds = transformer(), set()
    head = net.head.forward

    def spied(features):
        kinds.add((features.dtype, head(features).dtype))
        return head(features)

    net.head.forward = spied
    with torch.autocast("cpu", torch.bfloat16):
        generate(net, Flow(Uniform(net.vocab)), n=2, length=8, steps=4)
    assert kinds == {(torch.float32, torch.float32)}


def test_full_logits_of_a_large_vocabulary_are_asked_for_in_small_batches():
    shown = []

    def network(xt, t):
        shown.append(len(xt))
        return torch.zeros(*xt.shape, 50_000)

    infill(
        network,
        Flow(Mask(Vocab(50_000, 1))),
        torch.full((40, 128), HOLE).index_fill(1, torch.arange(1, 128), 0),
        steps=1,
    )
    assert max(shown) * 128 * 50_000 <= 1 << 27


# infilling


@pytest.mark.parametrize("eta", [0.0, 1.0])
@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_a_prompt_never_changes_and_holes_are_filled(source, eta):
    flow = Flow(source)
    data = flow.vocab.data
    prompts = torch.randint(-1, data, (200, 9), generator=generator(0))
    prompts[0] = 0
    run = infill(lambda xt, t: torch.zeros(*xt.shape, data), flow, prompts, steps=16, eta=eta, trajectory=True)
    kept = prompts != HOLE
    assert torch.equal(run.fixed, kept)
    assert torch.equal(run.tokens[kept], prompts[kept])
    assert (run.redraws[kept] == 0).all()
    assert not kept[run.hops.row, run.hops.position].any()
    assert int(run.calls[0]) == 0
    flow.vocab.check_data(run.tokens)


def test_what_is_filled_in_has_the_law_of_the_kernel_given_the_prompt():
    # with one position fixed, the other one moves by a table of its own
    flow = Flow(Uniform(Vocab(3)))
    table = random_table(flow)
    run = infill(table, flow, torch.tensor([[1, HOLE]]).expand(6_000, -1), steps=6, eta=1.0, seed=2)
    rows = torch.tensor([[1, x] for x in range(3)])
    one = exact.Space(flow.vocab, 1)
    given = exact.Table(one, table.logits[table.space.ids(rows)][:, 1:].exp())
    law = oracle(flow, given, 1).law(steps=6, eta=1.0)
    assert fits(run.tokens[:, 1:], law, 3) > 0.0001


def test_prompts_of_different_lengths_are_filled_as_each_would_be_alone():
    net = transformer()
    flow = Flow(MultiMask(net.vocab))
    prompts = [torch.tensor(p) for p in ([3, HOLE, 4], [HOLE] * 5, [1, HOLE, HOLE], [HOLE, 2], [7])]
    run = infill(net, flow, prompts, steps=8, seed=1)
    assert run.lengths.tolist() == [3, 5, 3, 2, 1]
    for row, prompt in enumerate(prompts):
        alone = run.rows()[row]
        assert len(alone) == len(prompt)
        flow.vocab.check_data(alone)
        assert (alone[prompt != HOLE] == prompt[prompt != HOLE]).all()
        assert (run.tokens[row, len(prompt) :] == HOLE).all()
    assert int(run.calls[4]) == 0
    same = infill(net, flow, torch.stack([prompts[0], prompts[2]]), steps=8, seed=1)
    assert torch.equal(same.tokens[0], run.tokens[0, :3])  # sequence 0 in both


# guidance


class Labelled(nn.Module):
    """A context-free network with a law per label; -1 is the law without one."""

    def __init__(self):
        super().__init__()
        self.laws = nn.Parameter(torch.randn(3, 4, generator=generator(0), dtype=torch.float64))

    def forward(self, xt, t, labels):
        return self.laws[labels][:, None].expand(*xt.shape, 4)


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guidance_leads_away_from_the_law_without_a_label(guidance):
    net, flow = Labelled(), Flow(Mask(Vocab(4, 1)))
    labels = torch.arange(8_000) % 2
    run = generate(net, flow, n=8_000, length=1, steps=2, labels=labels, guidance=guidance, seed=1)
    for label in (0, 1):
        with_, without = net.laws[label].detach(), net.laws[-1].detach()
        law = (without + guidance * (with_ - without)).softmax(0)
        seen = torch.bincount(run.tokens[labels == label, 0], minlength=4)
        assert chisquare(seen, law * 4_000).pvalue > 0.0001
    assert (run.calls == (1 if guidance == 1 else 2)).all()


def test_guidance_drops_a_prompt_by_showing_noise_in_its_place():
    net = transformer()
    flow = Flow(Mask(Vocab(50, 50)))
    prompt = torch.tensor([[5, 6, 7, HOLE]])
    run = infill(net, flow, prompt, steps=1, guidance=3.0, temperature=0.0)
    t = torch.zeros(1)
    with torch.no_grad():
        given = net(torch.tensor([[5, 6, 7, 50]]), t)[0, 3]
        dropped = net(torch.tensor([[50, 50, 50, 50]]), t)[0, 3]
    assert int(run.tokens[0, 3]) == int((dropped + 3 * (given - dropped)).argmax())
    assert run.tokens[0, :3].tolist() == [5, 6, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_guidance_keeps_the_digits_of_a_network(dtype):
    logits = torch.tensor([0.1, 0.2, 0.3], dtype=dtype)
    reader = NetworkReader(NetworkCaller(lambda xt, t: logits.expand(*xt.shape, 3), 3), guidance=2.0)
    xt, place = torch.zeros(2, 4, dtype=torch.int64), torch.tensor([0, 1])
    found = reader.read(xt, torch.zeros(2), xt, None).logits(place, place)
    assert torch.equal(found, logits.expand(2, 3))


def test_guidance_leaves_impossible_tokens_impossible():
    logits = torch.tensor([-torch.inf, 0.0, 1.0])
    prompts = torch.tensor([[1, HOLE]]).expand(50, -1)
    run = infill(lambda xt, t: logits.expand(*xt.shape, 3), Flow(Mask(Vocab(3, 1))), prompts, guidance=2.0)
    assert (run.tokens > 0).all()

    def network(xt, t):  # without the prompt everything but a 2 is impossible
        dropped = torch.tensor([-torch.inf, -torch.inf, 0.0])
        return torch.where((xt[:, :1] == 1)[..., None], torch.zeros(3), dropped).expand(*xt.shape, 3)

    run = infill(network, Flow(Mask(Vocab(3, 1))), prompts, guidance=2.0)
    assert set(run.tokens[:, 1].tolist()) == {0, 1, 2}


def test_guidance_without_labels_or_prompts_is_refused():
    with pytest.raises(ValueError, match="guidance needs labels or prompts"):
        generate(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), n=2, length=2, guidance=2.0)


# choices


def test_another_sampler_may_be_given():
    class InOrder(Sampler):
        """One position after the other."""

        label = "left to right"

        def events(self, flow, eta, free, noise):
            row, position = free.nonzero().unbind(1)
            u = noise.uniform(free.shape[1])[row, position]
            zero = torch.zeros_like(u)
            return Events(row, position, position, zero, 1 - zero, torch.zeros_like(free)[row, position], u, u)

    seen = []

    def network(xt, t):
        seen.append(int((xt == 3).sum()))
        return torch.zeros(*xt.shape, 3)

    run = generate(network, Flow(Mask(Vocab(3, 1))), n=1, length=4, sampler=InOrder())
    assert seen == [4, 3, 2, 1]
    assert run.calls.tolist() == [4]
    assert "left to right" in str(run)


def test_float32_gumbel_noise_is_labelled():
    flow = Flow(Uniform(Vocab(3)))
    plain, asked = (
        generate(random_network(flow), flow, n=2, length=L, steps=2, **how) for how in ({}, {"draw": gumbel32})
    )
    assert plain.draw == "categorical"
    assert asked.draw == "gumbel32"


def test_progress_counts_sequences_up_to_all_of_them():
    told = []
    net = transformer()
    generate(
        net,
        Flow(MultiMask(net.vocab)),
        n=9,
        length=4,
        steps=4,
        batch=1,
        progress=lambda done, of: told.append((done, of)),
    )
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (9, 9)


def test_progress_reaches_all_sequences_if_a_planner_needs_fewer_calls_than_it_might():
    told = []
    flow = Flow(Mask(Vocab(3, 1)))

    def network(xt, t):
        return torch.zeros(*xt.shape, 3)

    watch = {"progress": lambda done, of: told.append((done, of))}
    generate(network, flow, n=9, length=4, batch=1, sampler=EntropyBound(100), **watch)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (9, 9)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n": 0}, "n must be an integer ≥ 1, got 0"),
        ({"length": 0}, "length must be an integer ≥ 1, got 0"),
        ({"temperature": -0.5}, "temperature must be ≥ 0"),
        ({"temperature": math.nan}, "temperature must be ≥ 0"),
        ({"steps": 0}, "steps must be an integer ≥ 1, got 0"),
        ({"steps": 3, "sampler": Euler(4)}, "not both"),
        ({"eta": -1.0}, "eta must be ≥ 0"),
        ({"eta": lambda t: -t - 1}, "eta must be ≥ 0"),
        ({"top_p": 0.0}, "top_p must be a number > 0 and ≤ 1, got 0"),
        ({"top_p": 1.1}, "top_p must be a number > 0 and ≤ 1, got 1.1"),
        ({"top_k": 0}, "top_k must be an integer ≥ 1, got 0"),
        ({"min_p": 2.0}, "min_p"),
        ({"batch": 0}, "batch must be an integer ≥ 1"),
        ({"seed": -1}, "seed must be an integer from 0"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "one label per sequence \\(2\\), got 3"),
        ({"guidance": math.inf}, "guidance must be a finite number"),
    ],
)
def test_invalid_options_are_refused(how, message):
    with pytest.raises(ValueError, match=message):
        generate(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), **({"n": 2, "length": 2} | how))


def test_the_number_of_samples_must_be_an_integer():
    with pytest.raises(ValueError, match=r"n must be an integer ≥ 1, got 2.5"):
        unchecked(generate)(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), n=2.5, length=2)


@pytest.mark.parametrize("device", ["cuda", "meta", torch.device("cuda:1")])
def test_a_network_that_is_elsewhere_is_not_moved(device):
    flow = Flow(Uniform(Vocab(3)))
    with pytest.raises(ValueError, match=rf"on cpu, not on {device}: call model.to\('{device}'\) first"):
        generate(Transformer(flow.vocab, Size(1, 16, 1)), flow, n=1, length=2, device=device)


def test_what_was_finished_before_ctrl_c_is_not_lost():
    """Sequences of two lengths, in pools of four; the hops are those of the rows that are there."""
    flow, prompts = Flow(Mask(Vocab(3, 1))), [torch.full((length,), HOLE) for length in [3, 2] * 6]
    how = {"batch": 1, "steps": 4, "trajectory": True, "seed": 5}

    def network(xt, t):
        return torch.zeros(*xt.shape, 3)

    def interrupt(done, count):
        if done > 10:
            raise KeyboardInterrupt

    whole = infill(network, flow, prompts, **how)
    with pytest.raises(Unfinished, match="10 of 12 sequences") as stopped:
        infill(network, flow, prompts, progress=interrupt, **how)
    part, rows = stopped.value.drawn, stopped.value.rows
    assert rows.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11]
    for field in ("tokens", "x0", "fixed", "lengths", "calls", "redraws", "changes"):
        assert torch.equal(getattr(part, field), getattr(whole, field)[rows])
    assert torch.equal(part.at(0.5), whole.at(0.5)[rows])
    assert torch.equal(part.path_cost(Hamming()), whole.path_cost(Hamming())[rows])


def test_ctrl_c_while_the_next_sequences_are_being_prepared_loses_none(monkeypatch):
    """The first pool is finished, and the second as long; prompts without a hole have no hops."""
    events, calls = Euler.events, iter(range(9))

    def interrupted(sampler, *given):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return events(sampler, *given)

    monkeypatch.setattr(Euler, "events", interrupted)
    prompts = [torch.tensor([0, 1])] * 8 + [torch.full((3,), HOLE)] * 4
    with pytest.raises(Unfinished) as stopped:
        infill(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), prompts, batch=1, trajectory=True)
    for error in (stopped.value, copy.copy(stopped.value)):  # as it would come from another process
        assert error.rows.tolist() == [0, 1, 2, 3]
        assert error.drawn.at(1.0)[:, :2].tolist() == [[0, 1]] * 4
        assert str(error).startswith("4 of 12 sequences are complete")


def test_ctrl_c_before_anything_is_finished_is_just_that():
    def interrupt(done, count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        generate(
            lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), n=9, length=2, batch=1, progress=interrupt
        )
    assert type(stopped.value) is KeyboardInterrupt


def test_a_word_that_is_not_known_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'temperature'"):
        generate(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), n=1, length=1, temprature=2.0)


def test_none_leaves_a_choice_as_it_is():
    flow = Flow(Uniform(Vocab(3)))
    said, unsaid = (
        generate(random_network(flow), flow, n=3, length=L, **how)
        for how in ({"steps": None, "sampler": None, "batch": None, "device": None, "eta": None}, {})
    )
    assert torch.equal(said.tokens, unsaid.tokens)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (torch.tensor([[0, 1]]), "nothing to draw"),
        (torch.tensor([[3, HOLE]]), "token id 3 is out of range"),
        (torch.tensor([[-2, HOLE]]), "got -2"),
        ([], "at least one token"),
        ([torch.tensor([], dtype=torch.int64)], "at least one token"),
    ],
)
def test_what_cannot_be_filled_is_refused(prompts, message):
    with pytest.raises(ValueError, match=message):
        infill(lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3))), prompts)


@pytest.mark.parametrize("width", [2, 5])
def test_a_network_over_anything_but_the_data_tokens_is_refused(width):
    with pytest.raises(ValueError, match="data tokens only"):
        generate(lambda xt, t: torch.zeros(*xt.shape, width), Flow(Uniform(Vocab(3, 2))), n=8, length=8)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_network_that_returns_nan_raises_an_error(bad):
    def network(xt, t):
        logits = torch.zeros(*xt.shape, 3)
        logits[..., 1] = torch.where(t[:, None] > 0.5, bad, 0.0)
        return logits

    with pytest.raises(ValueError, match="the network returned NaN"):
        generate(network, Flow(Uniform(Vocab(3))), n=8, length=8)


def test_evidence_makes_fewer_hops_than_plain_with_the_same_network():
    hops = [
        generate(
            lambda xt, t: torch.zeros(*xt.shape, 3), Flow(Uniform(Vocab(3)), prediction=p), n=200, length=8
        ).changes
        for p in (Evidence(), Plain())
    ]
    assert hops[0].sum() < hops[1].sum()


# what is told of it


def test_hops_lead_from_the_source_to_the_result_and_add_up_to_the_path_cost():
    flow = Flow(Uniform(Vocab(3)))
    run = generate(random_network(flow), flow, n=300, length=L, steps=9, eta=1.0, trajectory=True, seed=1)
    hops = run.hops
    assert (hops.t.diff() >= 0).all()
    assert (hops.before != hops.after).all()
    assert torch.equal(run.at(0.0), run.x0)
    assert torch.equal(run.at(1.0), run.tokens)
    assert torch.equal(torch.bincount(hops.row, minlength=300), run.changes.sum(1))
    assert torch.equal(run.path_cost(Hamming()), run.jumps.double())
    table = torch.tensor([[0.0, 1.0, 5.0], [2.0, 0.0, 7.0], [3.0, 4.0, 0.0]])
    state, paid = run.x0.clone(), torch.zeros(300, dtype=torch.float64)
    for row, position, before, after in zip(hops.row, hops.position, hops.before, hops.after, strict=True):
        assert state[row, position] == before
        state[row, position] = after
        paid[row] += float(table[before, after])
    assert torch.allclose(run.path_cost(TokenMatrix(tuple(map(tuple, table.tolist())))), paid)


def test_without_a_trajectory_the_path_cost_says_what_to_do():
    flow = Flow(Uniform(Vocab(3)))
    with pytest.raises(ValueError, match="trajectory=True"):
        generate(random_network(flow), flow, n=2, length=L).path_cost(Hamming())


class Letters:
    end = 2

    def decode(self, ids):
        return "".join("ab."[i] for i in ids)


def test_text_is_cut_at_the_end_that_was_drawn_when_asked():
    flow = Flow(Mask(Vocab(3, 1)))
    script = torch.tensor([[0, 2, 1, 2, 0], [0, 1, 0, 1, 1]])

    def network(xt, t):
        return nn.functional.one_hot(script, 3).float() * 1e4

    prompts = torch.tensor([[HOLE, 2, HOLE, HOLE, HOLE], [HOLE] * 5])
    run = infill(network, flow, prompts, steps=1)
    assert run.text(Letters()) == ["a.b.a", "ababb"]
    assert run.text(Letters(), cut=True) == ["a.b", "ababb"]


def test_printed_samples_say_how_many_hops_with_how_many_steps_at_which_eta():
    flow = Flow(Mask(Vocab(3, 1)))
    said = str(generate(random_network(flow), flow, n=50, length=L, steps=8))
    assert "50 sequences, 8 Euler steps, eta 0: hops 2 ± 0" in said
    assert "hops 2 ± ? and" in str(generate(random_network(flow), flow, n=1, length=L, steps=8))


def test_compiled_batches_are_filled_up_to_the_rows_of_their_own_length(monkeypatch):
    shapes = []

    class Noting(nn.Module):
        def forward(self, xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(xt.shape))
            return torch.zeros(*xt.shape, 3)

    monkeypatch.setattr(torch, "compile", lambda body, **how: body)
    prompts = [torch.full((2,), HOLE)] * 6 + [torch.full((9,), HOLE)]
    infill(Noting(), Flow(Mask(Vocab(3, 1))), prompts, steps=3, batch=4, compile=True)
    assert {rows for rows, length in shapes if length == 9} == {1}
    assert {rows for rows, length in shapes if length == 2} == {4}
