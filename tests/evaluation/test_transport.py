"""What paths pay is what pairs pay: measured along samples, and held against the oracle."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
import toys

import hopflow as hf
from hopflow import exact
from hopflow.evaluation.predicted_jumps import predicted_jumps
from hopflow.evaluation.transport import Jumps, corrector_surplus
from hopflow.exact import Joint, Oracle, Space
from hopflow.sampling import generation

STEPS = 128
X1 = torch.tensor([[0, 0], [0, 1], [1, 1]])
"""The data rows of a batch; the data are these, over and over."""
RANDOM = hf.TokenMatrix(((0.0, 1.3, 0.4, 0.9), (0.7, 0.0, 2.1, 0.2), (1.1, 0.6, 0.0, 1.7), (0.3, 1.9, 0.8, 0.0)))
COSTS = (hf.Hamming(), RANDOM, hf.SquaredEmbedding(), hf.Embedding())
TABLE = torch.randn(4, 3, generator=toys.generator(6), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The exact posterior of a coupled path as a network, at the times of N even steps; for `Plain`."""

    oracle: Oracle
    log_p: torch.Tensor

    @classmethod
    def of(cls, oracle: Oracle, steps: int = STEPS) -> "Posterior":
        laws = [oracle.predictive(oracle.at(n / steps))[0] for n in range(steps)]
        return cls(oracle, torch.cat(laws).log())

    def __call__(self, xt, t):
        steps = len(self.log_p)
        return self.log_p[(t.double() * steps).round().long(), self.oracle.space.ids(xt)]


def coupled(name: str, coupling: hf.Coupling) -> Oracle:
    """The flow of all pairs that a coupling makes of X1 and as many source rows."""
    source = toys.source(name, data=2)
    space = Space(source.vocab, 2)

    def plan(x0, x1):
        return torch.eye(len(x0), dtype=torch.float64)[coupling.match(x0, x1, embedding=TABLE).order]

    chosen, _ = exact.chosen_rows(source, X1, plan)
    pairs = [(space.states, row.expand(len(space.states), 2)) for row in X1]
    x0, x1 = (torch.cat(side) for side in zip(*pairs, strict=True))
    found = toys.oracle(name, data=2, prediction=hf.Plain(), joint=Joint(x0, x1, chosen.flatten() / len(X1)))
    return replace(found, flow=replace(found.flow, coupling=coupling))


def dissimilarities(cost: hf.Cost, size: int) -> torch.Tensor:
    a = torch.arange(size)[:, None].expand(size, size)
    return cost.dissimilarity(a, a.T, TABLE).double()


def near(found, value: float, slack: float = 0.0) -> bool:
    return abs(found.value - value) <= 4 * found.stderr + slack


@pytest.mark.parametrize("name", ["uniform", "bag_of_words", "multimask"])
@pytest.mark.parametrize(
    "coupling",
    [hf.Independent(), hf.ExactOT(hf.SquaredEmbedding()), hf.ExactOT(RANDOM)],
    ids=["independent", "embedded", "own"],
)
def test_a_perfect_network_pays_along_its_paths_what_the_oracle_says_its_pairs_pay(name, coupling):
    flow = coupled(name, coupling)
    found = hf.transport_costs(
        Posterior.of(flow), flow.flow, X1.repeat(100, 1), costs=COSTS, n=3000, ot_batch=3, embedding=TABLE, steps=STEPS
    )
    for cost in COSTS:
        expected = exact.kantorovich_cost(flow, dissimilarities(cost, flow.flow.vocab.size))
        one = found[type(cost)]
        assert one.kantorovich.n == 100
        assert one.dynamic.n == 3000
        assert near(one.kantorovich, expected)
        assert near(one.dynamic, expected, slack=0.5 / STEPS)  # Euler is O(1/N) above
        assert near(one.excess, 0.0, slack=0.5 / STEPS)
    distance = exact.kantorovich_cost(flow, toys.hamming(flow.flow.vocab.size))
    assert near(found.jumps.per_sequence, distance, slack=0.5 / STEPS)
    assert near(found.jumps.predicted, distance)
    assert near(found.jumps.excess, 0.0, slack=0.5 / STEPS)


def test_what_a_coupling_saves_is_positive_for_exact_transport_and_nothing_for_independent_pairs():
    x1 = X1.repeat(100, 1)
    for coupling, saves in ((hf.ExactOT(hf.Embedding()), True), (hf.Independent(), False)):
        flow = coupled("uniform", coupling)
        found = hf.transport_costs(Posterior.of(flow), flow.flow, x1, n=4, ot_batch=3, embedding=TABLE[:2], steps=2)
        gain = found[hf.Embedding].gain
        assert (gain.value > 5 * gain.stderr) if saves else (abs(gain.value) < 4 * gain.stderr)
        independent, paid = found[hf.Embedding].independent.value, found[hf.Embedding].kantorovich.value
        assert gain.value == pytest.approx(1 - paid / independent)


def test_the_independent_cost_is_that_of_the_product_law():
    flow = coupled("bag_of_words", hf.ExactOT())
    x1 = X1.repeat(200, 1)
    found = hf.transport_costs(Posterior.of(flow), flow.flow, x1, n=2, ot_batch=3, embedding=TABLE[:2], steps=2)
    product = toys.oracle("bag_of_words", data=2)
    product = Oracle(product.flow, flow.q, 2)
    for one in found.by_cost:
        assert near(one.independent, exact.kantorovich_cost(product, dissimilarities(one.cost, 2)))


def test_cor_3_3_means_the_square_of_which_the_sum_over_positions_is_the_distance_of_concatenated_embeddings():
    x0 = torch.randint(4, (50, 6), generator=toys.generator(0))
    x1 = torch.randint(4, (50, 6), generator=toys.generator(1))
    whole = (TABLE[x0].flatten(1) - TABLE[x1].flatten(1)).norm(dim=1)
    torch.testing.assert_close(hf.SquaredEmbedding().paired(x0, x1, TABLE), whole**2)
    plain = hf.Embedding().paired(x0, x1, TABLE)
    assert (plain >= whole - 1e-9).all()  # the triangle inequality, position by position
    assert (plain > 1.2 * whole).any()
    torch.testing.assert_close(plain, (TABLE[x0] - TABLE[x1]).norm(dim=2).sum(1))


def test_the_cost_of_many_hops_is_added_up_in_parts(monkeypatch):
    drawn = hf.generate(flat, hf.Flow(hf.Uniform(hf.Vocab(3))), n=9, length=7, steps=20, trajectory=True)
    whole = drawn.path_cost(hf.Embedding(), TABLE)
    monkeypatch.setattr(generation, "HOPS_PER_CHUNK", 5)
    torch.testing.assert_close(drawn.path_cost(hf.Embedding(), TABLE), whole)


# errors


def test_ninety_five_percent_intervals_hold_as_often_as_they_say():
    """Repeats of 40 sequences, and of 10 batches of 3 rows: is the oracle's value within Student's ± 2.02 and 2.26?"""
    repeats, each, batches = 200, 40, 10
    flow = coupled("uniform", hf.ExactOT())
    steps = 16
    drawn = hf.generate(
        Posterior.of(flow, steps), flow.flow, n=repeats * each, length=2, steps=steps, trajectory=True, seed=3
    )
    truth = replace(flow, model=Posterior.of(flow, steps)).jumps(steps=steps)
    hits = 0
    names = ("tokens", "x0", "fixed", "lengths", "calls", "redraws", "changes")
    for start in range(0, repeats * each, each):
        rows = slice(start, start + each)
        found = Jumps.of(replace(drawn, **{name: getattr(drawn, name)[rows] for name in names}))
        hits += abs(found.per_sequence.value - truth) < 2.02 * found.per_sequence.stderr
    assert 0.90 <= hits / repeats <= 0.99
    expected = exact.kantorovich_cost(flow, toys.hamming(2))
    hits = 0
    for seed in range(repeats):
        found = hf.jumps(
            Posterior.of(flow, 1), flow.flow, n=1, length=2, steps=1, x1=X1.repeat(batches, 1), ot_batch=3, seed=seed
        )
        hits += abs(found.predicted.value - expected) < 2.26 * found.predicted.stderr
    assert 0.90 <= hits / repeats <= 0.99


# jumps


@pytest.mark.parametrize("name", toys.SOURCES)
def test_jumps_are_counted_with_the_steps_and_eta_they_were_drawn_with_beside_the_oracles(name):
    flow = toys.oracle(name, network=None)
    perfect = exact.Perfect(flow.flow, flow.q, flow.length)
    for steps, eta in ((3, 0.0), (16, 1.0)):
        found = hf.jumps(perfect, flow.flow, n=3000, length=2, steps=steps, eta=eta, seed=1)
        assert near(found.per_sequence, flow.jumps(steps=steps, eta=eta), slack=1e-9)
        assert found.per_position.value == pytest.approx(found.per_sequence.value / 2)
        assert found.per_position.stderr == pytest.approx(found.per_sequence.stderr / 2)
        assert (found.steps, found.eta, found.per_sequence.n) == (steps, eta, 3000)
        assert found.redraws.value >= found.per_sequence.value
        assert found.calls.value <= steps
        assert found.predicted is None
        assert found.excess is None
        assert f"{steps} Euler steps, eta {eta:g}" in str(found)


@pytest.mark.parametrize("coupling", [hf.Independent(), hf.ExactOT(), hf.SinkhornOT(eps=0.1)], ids=repr)
def test_the_prediction_is_that_of_the_pairs_which_training_draws(coupling):
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)), coupling=coupling)
    x1 = torch.randint(3, (100, 12), generator=toys.generator(0))
    found = hf.jumps(lambda xt, t: torch.zeros(*xt.shape, 3), flow, n=8, length=12, x1=x1, ot_batch=16, seed=5)
    value, error = predicted_jumps(flow, lambda i: x1[16 * i : 16 * i + 16], length=12, size=16, count=6, seed=5)
    assert (found.predicted.value, found.predicted.stderr, found.predicted.n) == (value, error, 6)


@pytest.mark.parametrize("name", toys.SOURCES)
@pytest.mark.parametrize("schedule", [hf.Linear(), hf.Cosine(), hf.Positional((hf.Linear(), hf.Cosine()))], ids=repr)
@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0, lambda t: 1 - t], ids=["0.5", "1", "3", "1-t"])
def test_the_correctors_surplus_is_exact_for_data_with_independent_positions(name, schedule, eta):
    flow = toys.oracle(name, schedule=schedule).flow
    q = torch.outer(toys.dirichlet(3, seed=7), toys.dirichlet(3, seed=8)).flatten()
    product = Oracle(flow, q, 2)
    surplus = corrector_surplus(flow, hf.Euler(6), eta, 2)
    assert product.jumps(eta=eta, steps=6) - product.jumps(steps=6) == pytest.approx(surplus, abs=1e-9)


def test_the_correctors_surplus_is_that_of_each_position_with_its_own_source_and_schedule():
    source = hf.PositionFrequencies(hf.Vocab(2), ((0.5, 0.5), (0.9, 0.1)))
    flow = hf.Flow(source, schedule=hf.Positional((hf.Polynomial(3.0), hf.Linear())))
    q = torch.outer(toys.dirichlet(2, seed=7), toys.dirichlet(2, seed=8)).flatten()
    product = Oracle(flow, q, 2)
    surplus = corrector_surplus(flow, hf.Euler(6), 0.5, 2)
    assert product.jumps(eta=0.5, steps=6) - product.jumps(steps=6) == pytest.approx(surplus, abs=1e-9)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_with_refresh_the_surplus_depends_on_the_data_and_is_unknown(eta):
    flow, x1 = hf.Flow(hf.Uniform(hf.Vocab(3))), torch.randint(3, (60, 4), generator=toys.generator(0))
    found = hf.jumps(flat, flow, n=20, length=4, sampler=hf.Euler(8, refresh=4), eta=eta, x1=x1)
    assert found.surplus is None
    assert found.excess is None


def test_the_correctors_surplus_is_near_for_other_data_and_exact_for_any_network_where_masks_stay():
    other = toys.oracle("uniform", network=None)
    surplus = corrector_surplus(other.flow, hf.Euler(32), 1.0, 2)
    assert other.jumps(eta=1.0, steps=32) - other.jumps(steps=32) == pytest.approx(surplus, rel=1e-3)
    masks = toys.oracle("multimask")  # a random network
    surplus = corrector_surplus(masks.flow, hf.Euler(32), 1.0, 2)
    assert masks.jumps(eta=1.0, steps=32) - masks.jumps(steps=32) == pytest.approx(surplus, abs=1e-9)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_hops_of_refreshes_are_not_reported_as_excess(eta):
    """A perfect network hops more often than predicted if its positions are refreshed; no formula says how often."""
    perfect = toys.oracle("uniform", network=None)
    assert perfect.jumps(steps=6, refresh=2) > perfect.jumps(steps=6) + 0.5
    x1 = torch.randint(3, (64, 2), generator=toys.generator(0))
    how = {"n": 8, "length": 2, "x1": x1, "ot_batch": 16, "eta": eta}
    network = toys.oracle("uniform").model
    found = hf.jumps(network, perfect.flow, sampler=hf.Euler(6, refresh=2), **how)
    assert (found.surplus, found.excess) == (None, None)
    assert "excess_jumps" not in [number.quantity for number in found]
    assert hf.jumps(network, perfect.flow, sampler=hf.Euler(6), **how).excess is not None


def test_the_surplus_is_the_known_one_for_the_linear_schedule():
    """+ η·L·(1-Σp0²)·(H_N - 1), 555 for three symbols at L = 128, N = 1024.  theory.md §2"""
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    harmonic = math.fsum(1 / n for n in range(1, 1025))
    found = corrector_surplus(flow, hf.Euler(1024), 1.0, 128)
    assert found == pytest.approx(128 * 2 / 3 * (harmonic - 1))
    assert corrector_surplus(flow, hf.Euler(1024), 0, 128) == 0
    assert corrector_surplus(hf.Flow(hf.Mask(hf.Vocab(3, 1))), hf.RandomOrder(), 0.0, 8) == 0


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_jumps_of_a_perfect_network_are_those_predicted_from_pairs_and_the_corrector(eta):
    """Uniform data: of which a network that says nothing is the perfect one."""
    flow, x1 = hf.Flow(hf.Uniform(hf.Vocab(3))), torch.randint(3, (2000, 20), generator=toys.generator(0))
    found = hf.jumps(flat, flow, n=400, length=20, steps=50, eta=eta, seed=2, x1=x1)
    assert near(found.excess, 0.0)
    assert near(found.predicted, 40 / 3)
    assert (found.surplus > 40) if eta else (found.surplus == 0)


def test_a_prompt_has_no_free_positions():
    flow = hf.Flow(hf.Mask(hf.Vocab(3, 1)))
    prompts = [torch.tensor([0, hf.HOLE, 2]), torch.tensor([hf.HOLE] * 5)]
    found = Jumps.of(hf.infill(lambda xt, t: torch.zeros(*xt.shape, 3), flow, prompts, steps=4))
    assert found.per_sequence.value == 3.0
    assert found.per_position.value == 1.0


# whose embeddings


def network(vocab: hf.Vocab) -> hf.Transformer:
    torch.manual_seed(0)
    return hf.Transformer(vocab, hf.Size(layers=1, width=16, heads=2))


def test_the_networks_own_table_prices_jumps_and_makes_the_pairs():
    vocab = hf.Vocab(5, 2)
    model, flow = network(vocab), hf.Flow(hf.MultiMask(vocab), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    x1 = torch.randint(5, (24, 6), generator=toys.generator(0))
    found = hf.transport_costs(model, flow, x1, n=5, ot_batch=8, steps=4)
    assert [type(one.cost) for one in found.by_cost] == [hf.Hamming, hf.SquaredEmbedding, hf.Embedding]
    assert found.table == "the network's own"
    assert (found.ot_batch, found.batches, found.jumps.steps, found.jumps.dtype) == (8, 3, 4, "float32")
    assert found[hf.Hamming].dynamic.value == 6.0  # every mask is left once
    given = hf.transport_costs(model, flow, x1, n=5, ot_batch=8, steps=4, embedding=2 * model.table)
    assert given.table == "as passed in embedding="
    for kind, factor in ((hf.Hamming, 1), (hf.Embedding, 2), (hf.SquaredEmbedding, 4)):
        for part in ("dynamic", "kantorovich", "independent"):
            twice, once = getattr(given[kind], part).value, getattr(found[kind], part).value
            assert twice == pytest.approx(factor * once, rel=1e-5)
    assert "SquaredEmbedding" in str(found)
    assert "3 batches of 8; embeddings: the network's own" in str(found)


def test_the_average_that_a_runs_coupling_has_read_is_found_and_named(tmp_path):
    (tmp_path / "tale.txt").write_text("the dog sleeps on the old sofa and dreams of the cat; " * 40)
    corpus = hf.data.load(tmp_path / "tale.txt", length=16)
    vocab = hf.Vocab(corpus.vocab_size, 2)
    model, flow = network(vocab), hf.Flow(hf.MultiMask(vocab), coupling=hf.ExactOT(hf.SquaredEmbedding()))
    hf.train(model, flow, corpus, out=tmp_path / "run", steps=3, batch=4, ot_batch=4, ot_ema=0.9, lr=0.1, workers=0)
    x1 = corpus.test[:8] if len(corpus.test) >= 8 else corpus.batch(0, 0, 8)
    own = hf.transport_costs(model, flow, x1, n=2, ot_batch=4, steps=2)
    averaged = hf.transport_costs(model, flow, x1, n=2, ot_batch=4, steps=2, run=tmp_path / "run")
    assert averaged.table == "the average that the coupling read (ot_ema), step 3"
    assert averaged[hf.Embedding].dynamic.value != own[hf.Embedding].dynamic.value


# mistakes


def flat(xt, t):
    return torch.zeros(*xt.shape, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x1": torch.zeros(7, 4, dtype=torch.long)}, "at least two batches of ot_batch=4 rows.*got 7 rows"),
        ({"ot_batch": None}, "pass ot_batch=… of the training"),
        ({"ot_batch": 0}, "at least two batches"),
        ({"costs": [hf.OneStepLikelihood()]}, "OneStepLikelihood is not a dissimilarity of tokens"),
        ({"costs": [hf.Embedding()]}, "Embedding reads embeddings, but the network has no `table`"),
        ({"flow": hf.Flow(hf.Uniform(hf.Vocab(3)), coupling=hf.ExactOT(hf.Embedding()))}, "reads embeddings"),
        ({"x1": torch.full((8, 4), 3)}, "data tokens"),
        ({"embedding": torch.zeros(3, 2), "run": "somewhere"}, "not both"),
        ({"run": "nowhere"}, "nowhere has no checkpoint"),
    ],
)
def test_a_mistake_is_one_message_before_anything_is_drawn(change, words):
    def never(xt, t):
        raise AssertionError

    given = {"flow": hf.Flow(hf.Uniform(hf.Vocab(3)), coupling=hf.ExactOT()), "x1": torch.zeros(8, 4).long()}
    given |= {"ot_batch": 4, "n": 2, "steps": 2, **change}
    with pytest.raises(ValueError, match=words):
        hf.transport_costs(never, **given)


def test_data_of_another_length_than_the_samples_are_refused():
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    with pytest.raises(ValueError, match="x1 has rows of 4 tokens, but length=5"):
        hf.jumps(flat, flow, n=2, length=5, x1=torch.zeros(8, 4).long())


def test_embeddings_that_are_no_numbers_reach_no_report():
    flow = hf.Flow(hf.Uniform(hf.Vocab(3)))
    with pytest.raises(ValueError, match="embedding cost of a pair is NaN"):
        hf.transport_costs(flat, flow, torch.zeros(8, 4).long(), n=2, steps=2, embedding=torch.full((3, 2), math.nan))
