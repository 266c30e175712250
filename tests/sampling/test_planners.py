"""Planners: the choices, prompts, times, calls, filters, seeds and streams."""

import math

import pytest
import torch
import toys

import hopflow as hf
from hopflow import exact
from hopflow.sampling.planners import EXAMPLES, Planner

FLOW = hf.Flow(hf.Mask(hf.Vocab(3, 1)))
HOLE = hf.HOLE
LOG_P = torch.tensor(
    [[[0.5, 0.5, 0.0], [0.1, 0.9, 0.0], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8], [0.9, 0.05, 0.05]]], dtype=torch.float64
).log()
each_planner = pytest.mark.parametrize("planner", EXAMPLES, ids=str)


def chosen(planner: Planner, free=(1, 1, 1, 1, 1), log_p=LOG_P) -> list[int]:
    return planner.choose(log_p, torch.tensor([free], dtype=torch.bool))[0].nonzero()[:, 0].tolist()


def table(length: int, seed: int = 1, masks: int = 1) -> exact.Table:
    space = exact.Space(hf.Vocab(3, masks), length)
    return exact.Table(space, toys.dirichlet(len(space.states), length, 3, seed=seed, sharpness=2))


@pytest.mark.parametrize(
    ("planner", "free", "expected"),
    [
        (hf.Confidence(1), (1, 1, 1, 1, 1), [1]),  # 0.9 at two positions: the left one
        (hf.Confidence(2), (1, 1, 1, 1, 1), [1, 4]),
        (hf.Confidence(3), (1, 0, 1, 1, 1), [2, 3, 4]),
        (hf.Confidence(9), (0, 0, 1, 0, 1), [2, 4]),
        (hf.Margin(1), (1, 1, 1, 1, 1), [4]),  # 0.85 against 0.8
        (hf.Margin(3), (1, 1, 1, 1, 1), [1, 3, 4]),
        (hf.Margin(4), (1, 1, 1, 1, 1), [1, 2, 3, 4]),
        (hf.LeftToRight(1), (0, 1, 0, 1, 1), [1]),
        (hf.LeftToRight(2), (0, 1, 0, 1, 1), [1, 3]),
    ],
)
def test_the_largest_scores_are_chosen_and_of_equal_ones_the_leftmost(planner, free, expected):
    assert chosen(planner, free) == expected


@pytest.mark.parametrize("planner", [hf.Confidence(5), hf.Margin(5), hf.LeftToRight(5)], ids=str)
def test_of_many_equal_positions_the_leftmost_are_filled(planner):
    free = torch.arange(400)[None] % 3 == 1
    assert chosen(planner, free[0].tolist(), torch.zeros(1, 400, 7)) == [1, 4, 7, 10, 13]


def entropies() -> list[float]:
    p = LOG_P.exp()[0]
    return torch.special.entr(p).sum(1).tolist()


@pytest.mark.parametrize("gamma", [0, 0.3, 0.33, 0.72, 1.0, 1.5, 2.5, 100])
@pytest.mark.parametrize("free", [(1, 1, 1, 1, 1), (1, 0, 1, 0, 1), (0, 0, 1, 0, 0)])
def test_entropy_bound_fills_the_longest_beginning_whose_sum_less_the_largest_is_within_gamma(gamma, free):
    values = entropies()
    order = sorted((i for i in range(5) if free[i]), key=lambda i: (values[i], i))
    best = 1
    for count in range(1, len(order) + 1):
        some = [values[i] for i in order[:count]]
        best = count if sum(some) - max(some) <= gamma else best
    assert chosen(hf.EntropyBound(gamma), free) == sorted(order[:best])


def test_entropy_bound_0_fills_certain_positions_together():
    certain = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.5, 0.5]]]).log()
    assert chosen(hf.EntropyBound(0), (1, 1, 1, 1), certain) == [0, 1, 2]


@each_planner
def test_every_free_row_gets_a_position_whatever_the_network_returns(planner):
    free = torch.tensor([[1, 0, 1], [0, 0, 0], [0, 0, 1]], dtype=torch.bool)
    for logits in (torch.zeros(3, 3, 2), torch.full((3, 3, 2), math.nan), torch.full((3, 3, 2), -torch.inf)):
        found = planner.choose(logits, free)
        assert found.any(1).tolist() == [True, False, True]
        assert not bool((found & ~free).any())


def test_a_planner_that_chooses_nothing_is_an_error_and_no_endless_loop():
    class Nothing(hf.Confidence):
        def pick(self, scores, candidates):
            return torch.zeros_like(candidates)

    with pytest.raises(ValueError, match=r"Nothing\.pick must choose at least one candidate of each row"):
        hf.generate(table(3), FLOW, n=2, length=3, sampler=Nothing())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.Confidence(0), "k, the number of positions per network call, must be an integer ≥ 1, got 0"),
        (lambda: hf.LeftToRight(True), "must be an integer ≥ 1, got True"),
        (lambda: hf.EntropyBound(-0.1), "gamma, the information in nats, must be a finite number ≥ 0, got -0.1"),
        (lambda: hf.EntropyBound(math.nan), "got nan"),
        (lambda: hf.EntropyBound(math.inf), "got inf"),
    ],
)
def test_a_wrong_number_has_one_message(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_network_is_called_at_the_filled_share_and_sees_earlier_tokens():
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def network(xt, t):
        calls.append((xt.clone(), t.clone()))
        return table(4)(xt, t)

    prompt = torch.tensor([[HOLE, 2, HOLE, HOLE]])
    out = hf.infill(network, FLOW, prompt, sampler=hf.LeftToRight(2), seed=1)
    assert [t.tolist() for _, t in calls] == [[0.25], [0.75]]
    assert calls[0][0].tolist() == [[3, 2, 3, 3]]
    assert calls[1][0].tolist() == [[*out.tokens[0, :3].tolist(), 3]]
    assert out.calls.tolist() == [2]


@pytest.mark.parametrize(
    ("planner", "calls"), [(hf.Confidence(1), 7), (hf.Margin(3), 3), (hf.LeftToRight(7), 1), (hf.LeftToRight(99), 1)]
)
def test_calls_are_positions_divided_by_k_and_every_position_hops_once(planner, calls):
    out = hf.generate(uneven, FLOW, n=5, length=7, sampler=planner)
    assert out.calls.tolist() == [calls] * 5
    assert bool((out.changes == 1).all())
    assert bool((out.redraws == 1).all())
    assert out.steps is None


def uneven(xt, t):
    """Logits that depend on the position and on the tokens so far."""
    position = torch.arange(xt.shape[1]).sin()[None, :, None]
    return position * torch.tensor([1.0, -2.0, 3.0]) + (xt % 3).sum(1).float().cos()[:, None, None] * position


@each_planner
@pytest.mark.parametrize("masks", [1, 3])
def test_a_seed_draws_the_same_tokens_for_every_batch_size_and_start(planner, masks):
    flow, network = hf.Flow(hf.MultiMask(hf.Vocab(3, masks))), table(4, masks=masks)
    whole = hf.generate(network, flow, n=9, length=4, sampler=planner, seed=5, batch=9)
    for batch in (1, 4):
        other = hf.generate(network, flow, n=9, length=4, sampler=planner, seed=5, batch=batch)
        assert torch.equal(whole.tokens, other.tokens)
        assert torch.equal(whole.calls, other.calls)
    later = hf.generate(network, flow, n=3, length=4, sampler=planner, seed=5, first=6)
    assert torch.equal(whole.tokens[6:], later.tokens)
    assert not torch.equal(whole.tokens, hf.generate(network, flow, n=9, length=4, sampler=planner, seed=6).tokens)


def test_temperature_and_filters_change_the_tokens_and_not_the_first_choice():
    """At temperature 0 all confidences would be 1, and the leftmost position would be first."""
    orders = []
    for how in ({}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}):
        out = hf.generate(
            lambda xt, t: LOG_P[:, :, :].expand(len(xt), -1, -1).float(),
            FLOW,
            n=3,
            length=5,
            sampler=hf.Confidence(1),
            trajectory=True,
            **how,
        )
        orders.append(out.hops.position[out.hops.row == 0].tolist())
        if how:
            assert (out.tokens == LOG_P[0].argmax(1)).all(1).all()
    assert orders == [[1, 4, 3, 2, 0]] * 4


@each_planner
def test_a_stream_equals_generate_and_shows_times_and_final_tokens(planner):
    network, options = table(4), {"sampler": planner, "seed": 2}
    drawn = hf.generate(network, FLOW, n=3, length=4, trajectory=True, **options)
    with hf.stream(network, FLOW, n=3, length=4, **options) as frames:
        seen = list(frames)
        assert torch.equal(frames.result.tokens, drawn.tokens)
    for row in range(3):
        mine = [frame for frame in seen if frame.row == row]
        assert [frame.jumps / 4 for frame in mine[:-1]] == [frame.t for frame in mine[1:]]
        assert all(torch.equal(frame.final, frame.tokens < 3) for frame in mine)
        assert mine[-1].done
        assert mine[-1].calls == drawn.calls[row]
    assert torch.equal(drawn.at(0.0), drawn.x0)
    assert torch.equal(drawn.at(1.0), drawn.tokens)


def test_guidance_counts_two_calls_and_the_choice_follows_the_guided_logits():
    def network(xt, t, *labels):
        return uneven(xt, t) * (1.0 if not labels else labels[0][:, None, None].clamp(min=0) + 1.0)

    out = hf.generate(network, FLOW, n=2, length=4, sampler=hf.Confidence(2), labels=torch.tensor([0, 1]), guidance=2.0)
    assert out.calls.tolist() == [4, 4]


def test_prompts_of_several_lengths_are_filled():
    network = uneven
    prompts = [torch.tensor([HOLE, 1, HOLE]), torch.tensor([0, HOLE, HOLE, HOLE, 2]), torch.tensor([1])]
    out = hf.infill(network, FLOW, prompts, sampler=hf.EntropyBound(0.2), seed=3)
    assert bool((out.tokens[:2][out.tokens[:2] != HOLE] < 3).all())
    assert out.tokens[0, 1] == 1
    assert out.tokens[1, [0, 4]].tolist() == [0, 2]
    assert out.tokens[2].tolist() == [1, HOLE, HOLE, HOLE, HOLE]
    assert out.calls[2] == 0


def test_a_network_with_a_head_draws_what_the_same_function_draws():
    torch.manual_seed(0)
    model = toys.awake(hf.Transformer(FLOW.vocab, hf.Size(layers=2, width=16, heads=2), dropout=0.0))

    def function(xt, t):
        return model(xt, t)

    for planner in (hf.Confidence(2), hf.LeftToRight(3), hf.EntropyBound(1.0)):
        one, other = (
            hf.generate(network, FLOW, n=6, length=8, sampler=planner, seed=4, precision="float32")
            for network in (model, function)
        )
        assert torch.equal(one.tokens, other.tokens)
        x1 = one.tokens
        nats = [hf.planned_nll(network, FLOW, x1, planner, precision="float32").each for network in (model, function)]
        assert nats[0] == pytest.approx(nats[1], abs=1e-4)


def test_the_likelihood_of_a_network_with_labels_is_that_of_each_label():
    torch.manual_seed(0)
    flow = hf.Flow(hf.Mask(hf.Vocab(3, masks=1)))
    network = hf.Transformer(flow.vocab, "micro", labels=2).double()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x1, labels = torch.randint(0, 3, (6, 4)), torch.tensor([0, 1, 0, 1, 1, 0])
    mixed = hf.planned_nll(network, flow, x1, hf.Confidence(2), labels=labels, batch=2)
    alone = [hf.planned_nll(network, flow, x1, hf.Confidence(2), labels=torch.full((6,), label)) for label in (0, 1)]
    assert mixed.each == pytest.approx([alone[label].each[row] for row, label in enumerate(labels.tolist())])
    assert abs(alone[0].each[0] - alone[1].each[0]) > 0.1
    with pytest.raises(ValueError, match="has 2 labels"):
        hf.planned_nll(network, flow, x1, hf.Confidence(2))


def test_a_schedule_for_each_position_fills_sequences_of_its_length_only():
    schedule = hf.Positional((hf.Linear(), hf.Polynomial(2.0), hf.Cosine(), hf.Linear()))
    flow = hf.Flow(FLOW.source, schedule)
    out = hf.generate(uneven, flow, n=2, length=4, sampler=hf.Margin(2))
    assert out.calls.tolist() == [2, 2]
    with pytest.raises(ValueError, match="4 schedules, but the sequences have 5 positions"):
        hf.generate(uneven, flow, n=2, length=5, sampler=hf.Margin(2))
