"""hf.evaluate: numbers with a known answer, as rows that name their sampler."""

import json
import math

import pytest
import torch
import toys

import hopflow as hf
from hopflow.data.tokenizers import Characters
from hopflow.evaluation.measurement import Measurement
from hopflow.evaluation.rows import NAMES, Row
from hopflow.exact import Perfect, Space
from hopflow.runs.rng import stream_seed

ONCE = {"gen": False, "coupling": "none", "error": 0.0, "seconds": 1e9}
"""Every sequence is measured once."""
SMALL = hf.Size(layers=1, width=16, heads=2)


def by_quantity(rows: list[Row]) -> dict[tuple, Row]:
    return {(row.set, row.quantity, row.eta, row.more.get("steps")): row for row in rows}


def one(rows: list[Row], **wanted) -> Row:
    (found,) = [row for row in rows if all(row.as_json().get(key) == value for key, value in wanted.items())]
    return found


@pytest.mark.parametrize("name", toys.SOURCES)
def test_a_perfect_network_has_the_entropy_of_its_text_as_b1(name):
    oracle = toys.oracle(name, network=None, seed=5)
    space = Space(oracle.flow.vocab, 2)
    which = torch.multinomial(oracle.q, 192, replacement=True, generator=toys.generator(1))
    x1 = space.data[which]
    rows = hf.evaluate(Perfect(oracle.flow, oracle.q, 2), oracle.flow, x1, eta=1, steps=(), rows=len(x1), **ONCE)
    row = one(rows, quantity="b1")
    nats = float(-oracle.q.log()[which].mean())  # of these very sequences: only the draws are noise
    assert abs(row.more["nats"] - nats) <= 4 * row.more["nats_draw_stderr"] + 1e-9
    assert abs(row.more["nats"] - oracle.entropy) <= 4 * row.more["nats_stderr"] + 4 * float(
        (-oracle.q.log())[which].std() / math.sqrt(len(which))
    )
    assert (row.n, row.eta, row.is_bound, row.more["stopped"]) == (192, 1.0, True, "rows")


@pytest.mark.slow  # a minute; tests/theory/test_context_free.py has a tenth of the size
def test_context_free_logits_give_b1_in_closed_form_at_the_papers_size():
    data, length = 50_257, 128
    counts = torch.rand(data, generator=toys.generator(0), dtype=torch.float64) ** 4 + 1e-6
    flow = hf.Flow(hf.BagOfWords(hf.Vocab(data), tuple((counts / counts.sum()).tolist())))
    logits = (counts.log() + torch.randn(data, generator=toys.generator(1))).float()

    def network(xt, t):
        return logits.expand(*xt.shape, -1)

    x1 = torch.multinomial(counts, 2 * length, replacement=True, generator=toys.generator(2)).view(2, length)
    keys = {**ONCE, "eta": 1, "steps": (), "rows": 2, "draws": 32, "batch": 4}
    row = one(hf.evaluate(network, flow, x1, **keys), quantity="b1")
    closed = float(-logits.double().log_softmax(0)[x1].sum(1).mean())
    assert abs(row.more["nats"] - closed) <= 4 * row.more["nats_draw_stderr"] + 1e-4
    assert 0 < row.more["nats_draw_stderr"] < 0.05 * closed


def tiny(source: hf.Source, seed: int = 0, **parts) -> tuple[hf.Transformer, hf.Flow]:
    torch.manual_seed(seed)
    flow = hf.Flow(source, **parts)
    model = hf.Transformer(flow.vocab, SMALL, dropout=0.0)
    torch.nn.init.normal_(model.head.weight, std=0.5)
    return model, flow


def rows_of(n: int, length: int = 8, data: int = 5) -> torch.Tensor:
    return torch.randint(data, (n, length), generator=toys.generator(3))


def test_every_bound_of_a_full_source_names_the_sampler_that_it_bounds():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)), coupling=hf.SinkhornOT(eps=0.1))
    keys = {"steps": (4, 8), "rows": 32, "ot_n": 8, "seconds": 1e9, "error": 0.0, "gen": False}
    rows = hf.evaluate(model, flow, rows_of(40), tokenizer=Characters("abcde"), **keys)
    found = by_quantity(rows)
    continuous, steps = "η = {:g}, continuous time", "η = {:g}, {} steps"
    assert {key[1:]: row.more["sampler"] for key, row in found.items()} == {
        ("b0", 0.0, None): continuous.format(0),
        ("b1", 1.0, None): continuous.format(1),
        ("bn", 0.0, 4): steps.format(0, 4),
        ("bn", 1.0, 4): steps.format(1, 4),
        ("bn", 0.0, 8): steps.format(0, 8),
        ("bn", 1.0, 8): steps.format(1, 8),
        ("br", 0.0, 4): steps.format(0, 4),
        ("br", 1.0, 4): steps.format(1, 4),
        ("br", 0.0, 8): steps.format(0, 8),
        ("br", 1.0, 8): steps.format(1, 8),
        ("bk", 0.0, None): continuous.format(0),
        ("coupled", 0.0, None): continuous.format(0),
        ("coupled_info", 0.0, None): continuous.format(0),
    }
    assert {row.quantity for row in rows if not row.is_bound} == {"coupled"}
    for row in rows:
        assert list(row.as_json())[: len(NAMES)] == list(NAMES)
        assert Row.from_json(json.loads(json.dumps(row.as_json(), allow_nan=False))) == row
        assert row.value == pytest.approx(math.exp(row.more["nats"] / 8))
        assert row.stderr == pytest.approx(row.value * row.more["nats_stderr"] / 8)
        assert row.more["bits_per_char"] == pytest.approx(row.more["nats"] / math.log(2) / 8)
        assert (row.run, row.set, row.unit, row.dtype, row.recipe_hash) == ("memory", "x1", "ppl", "float32", None)
        parts = row.more["nats_draw_stderr"] ** 2 + row.more["nats_sequence_stderr"] ** 2
        assert parts == pytest.approx(max(row.more["nats_stderr"], row.more["nats_draw_stderr"]) ** 2)


def test_b1_from_few_sequences_agrees_with_the_bound_itself():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    x1 = rows_of(24)
    row = one(hf.evaluate(model, flow, x1, steps=(), rows=24, draws=32, **ONCE), quantity="b1")
    bound = hf.nll_bound(model, flow, x1, eta=1, draws=64, seed=9)
    assert abs(row.more["nats"] - bound.nats) <= 4 * math.hypot(row.more["nats_draw_stderr"], bound.draw_stderr)


@pytest.mark.parametrize(("coupling", "name"), [("exact", "ExactOT"), ("sinkhorn", "SinkhornOT")])
def test_the_coupled_numbers_come_from_the_same_pairs_and_differ_by_their_information(coupling, name):
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    keys = {"eta": (), "steps": (), "rows": 32, "ot_n": 8, "seconds": 1e9, "error": 0.0, "gen": False}
    rows = hf.evaluate(model, flow, rows_of(32), coupling=coupling, eps=0.5 if name == "SinkhornOT" else None, **keys)
    plain, bound = one(rows, quantity="coupled"), one(rows, quantity="coupled_info")
    gap = bound.more["nats"] - plain.more["nats"]
    assert gap == pytest.approx(math.log(8)) if name == "ExactOT" else 0 < gap < math.log(8)
    assert (plain.is_bound, bound.is_bound) == (False, True)
    for row in rows:
        assert (row.n, row.more["ot_n"], row.more["coupling"], row.more["cost"]) == (4, 8, name, "Hamming")
    assert plain.more.get("eps") == (0.5 if name == "SinkhornOT" else None)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_sequences_are_coupled_in_minibatches_that_fit(count):
    model, flow = tiny(hf.Uniform(hf.Vocab(5)), coupling=hf.ExactOT())
    rows = hf.evaluate(model, flow, rows_of(count), gen=False, eta=(), steps=(), seconds=5.0)
    coupled = {row.quantity: row for row in rows if "ot_n" in row.more}
    assert {row.more["ot_n"] for row in coupled.values()} == {max(1, count // 2)}
    if count < 4:  # a pair alone is an independent pair
        assert coupled["coupled_info"].more["nats"] == coupled["coupled"].more["nats"]


def test_under_plain_only_the_bounds_of_the_steps_are_measured():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)), prediction=hf.Plain(), coupling=hf.ExactOT())
    rows = hf.evaluate(model, flow, rows_of(16), gen=False, rows=16, seconds=1e9, error=0.0)
    held = {(row.quantity, row.eta, row.more["steps"]) for row in rows}
    assert held == {("bn", 0.0, 32), ("bn", 1.0, 32), ("br", 0.0, 32), ("br", 1.0, 32)}


def test_a_causal_network_has_an_exact_value_that_is_not_a_bound():
    torch.manual_seed(0)
    model, x1 = hf.Causal(5, SMALL, dropout=0.0), rows_of(40)
    rows = hf.evaluate(model, None, x1, rows=40, n=6, temperature=(1.0, 0.5), seconds=1e9, error=0.0)
    row = one(rows, quantity="nll")
    assert row.more["nats"] == pytest.approx(float(model.nll(x1).detach().mean()), rel=1e-6)
    assert (row.is_bound, row.more["exact"], row.eta, row.more["nats_draw_stderr"]) == (False, True, None, 0.0)
    samples = [row for row in rows if row.set == "samples"]
    assert {row.more["temperature"] for row in samples} == {1.0, 0.5}
    assert {row.more["sampler"] for row in samples} == {"left to right"}


def test_samples_are_measured_at_every_step_temperature_and_eta():
    model, flow = tiny(hf.BagOfWords(hf.Vocab(5), (0.4, 0.3, 0.1, 0.1, 0.1)))
    keys = {"steps": (2, 8), "temperature": (1.0, 0.7), "n": 12, "rows": 4, "seconds": 0.0}
    rows = [row for row in hf.evaluate(model, flow, rows_of(16), **keys) if row.set == "samples"]
    points = {(row.more["steps"], row.more["temperature"], row.eta) for row in rows}
    assert points == {(steps, t, eta) for steps in (2, 8) for t in (1.0, 0.7) for eta in (0.0, 1.0)}
    for point in points:
        here = [row for row in rows if (row.more["steps"], row.more["temperature"], row.eta) == point]
        quantities = {row.quantity for row in here}
        assert {"entropy_bits", "entropy_nats", "distinct_2", "repeated_4", "jumps", "calls"} <= quantities
        assert not any(name.startswith("gen_") for name in quantities)  # there is no judge
        assert all(row.n == 12 and not row.is_bound for row in here)
        bits, nats = (one(here, quantity=f"entropy_{unit}").value for unit in ("bits", "nats"))
        assert bits == pytest.approx(nats / math.log(2))
    again = [row for row in hf.evaluate(model, flow, rows_of(16), **keys) if row.set == "samples"]
    assert again == rows


def test_samples_with_the_corrector_hop_more_often():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    rows = hf.evaluate(model, flow, rows_of(16), rows=4, seconds=0.0, steps=16, n=64)
    jumps = {row.eta: row.value for row in rows if row.quantity == "jumps"}
    assert jumps[1.0] > 1.5 * jumps[0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda m, f, x: ((m, f), {}), r"needs test sequences: evaluate\(model, flow, x1\)"),
        (lambda m, f, x: ((m, None, x), {}), "is a Transformer without its flow"),
        (lambda m, f, x: ((m, f, x[:0]), {}), "x1 must have shape"),
        (lambda m, f, x: (("runs/none", f, x), {}), "a run folder has its own flow, tokenizer and text"),
        (lambda m, f, x: ((m, f, x), {"step": 3}), "unknown key 'step'; did you mean 'steps'"),
        (
            lambda m, f, x: ((m, f, x), {"coupling": "exakt"}),
            "coupling must be own, exact, sinkhorn or none, got 'exakt'",
        ),
        (
            lambda m, f, x: ((m, f, x), {"coupling": "exact", "ot_n": 99}),
            "ot_n must be at most 16, the number of sequences, got 99",
        ),
        (lambda m, f, x: ((m, f, x), {"eps": 0.1}), "eps is a setting of coupling=sinkhorn"),
        (lambda m, f, x: ((m, f, x), {"rows": 1}), "rows must be ≥ 2"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(arguments, message):
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    positions, keys = arguments(model, flow, rows_of(16))
    with pytest.raises(ValueError, match=message):
        hf.evaluate(*positions, **keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"data": "lambada"}, "not both"),
        ({"length": 3}, "settings of data=…"),
        ({"detokenise": "words"}, "settings of data=…"),
        ({"judge": "smollm2", "gen": False}, "gen=false draws none"),
        ({"ot_n": 4, "coupling": "none"}, "ot_n is a setting of a coupling"),
        ({"temperature": -1.0}, "temperature must be ≥ 0"),
    ],
)
def test_settings_without_effect_are_refused_before_anything_is_measured(keys, message):
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    with pytest.raises(ValueError, match=message):
        hf.evaluate(model, flow, torch.zeros(8, 6, dtype=torch.int64), **keys)


def test_transport_rows_name_the_text_of_their_pairs_and_only_paired_numbers_name_a_coupling():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    x1 = torch.randint(0, 5, (12, 6), generator=toys.generator(0))
    rows = [row for row in hf.evaluate(model, flow, x1, steps=(4,), n=4, rows=4, draws=2) if row.set == "transport"]
    assert all(row.more["text"] for row in rows)
    paired = {row.quantity for row in rows if "ot_n" in row.more}
    assert {"predicted_jumps", "kantorovich_cost_hamming", "gain_hamming", "excess_jumps"} <= paired
    assert {row.quantity for row in rows} - paired >= {"jumps", "dynamic_cost_hamming"}


class Letters(Characters):
    """Token 0 is a letter, every other one a word of four."""

    def decode(self, ids):
        return "".join("a" if i == 0 else "word" for i in ids)


def test_the_error_of_bits_per_character_is_that_of_a_ratio():
    model, flow = tiny(hf.Uniform(hf.Vocab(5)))
    x1 = torch.randint(0, 5, (40, 6), generator=toys.generator(0))
    x1[::2] = 0  # half of the sequences have six characters, the others many more
    rows = hf.evaluate(model, flow, x1, tokenizer=Letters("abcde"), eta=1, steps=(), rows=40, draws=8, **ONCE)
    row = one(rows, quantity="b1")
    characters = torch.tensor([float(len(Letters("abcde").decode(ids))) for ids in x1.tolist()])
    assert row.more["characters"] == pytest.approx(float(characters.mean()))
    assert row.more["bits_per_char"] == pytest.approx(row.more["nats"] / math.log(2) / float(characters.mean()))
    nats = torch.tensor(row.each, dtype=torch.float64)
    order = torch.randperm(40, generator=toys.generator(stream_seed(0, "eval order")))
    expected = Measurement.ratio("bits_per_char", nats / math.log(2), characters[order], "bits per character")
    assert row.more["bits_per_char_stderr"] == pytest.approx(expected.stderr)
    constant = row.more["nats_stderr"] / math.log(2) / float(characters.mean())
    assert abs(row.more["bits_per_char_stderr"] / constant - 1) > 0.05  # what taking characters as given would say
