import json
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from cases import BY_POSITION, SOURCES, VOCAB, Ramp, name
from toys import dirichlet

from hopflow import costs, couplings, objectives, predictions, schedules
from hopflow.costs import Cost, Hamming, OneStepLikelihood, SequenceCost, SquaredEmbedding, TokenMatrix
from hopflow.couplings import Coupling, ExactOT, Rectified, SinkhornOT
from hopflow.flow import Flow
from hopflow.models.model import Model
from hopflow.objectives import Bound, NoisyCrossEntropy, Objective
from hopflow.predictions import Carry, Prediction
from hopflow.runs.storage import DEPTH, from_plain, kinds, to_plain
from hopflow.schedules import Cosine, Linear, Polynomial, Positional, Schedule
from hopflow.sources import BagOfWords, MultiMask, Source, Uniform
from hopflow.transport import plan_sampling
from hopflow.transport.plan_sampling import Permutation, Pick
from hopflow.vocab import Vocab

POSITIONAL = Positional((Linear(), Polynomial(0.1), Cosine()))
FAMILIES = {
    Vocab: (VOCAB, Vocab(50_257, 50_257)),
    Source: (*SOURCES, BY_POSITION),
    Schedule: (*schedules.EXAMPLES, POSITIONAL),
    Prediction: predictions.EXAMPLES,
    SequenceCost: costs.EXAMPLES,
    Pick: (*plan_sampling.EXAMPLES, Permutation(12)),
    Coupling: (*couplings.EXAMPLES, *(ExactOT(cost) for cost in costs.EXAMPLES), Rectified("pairs", 0.1)),
    Objective: objectives.EXAMPLES,
    Flow: (
        Flow(MultiMask(VOCAB)),
        Flow(Ramp(VOCAB), POSITIONAL, Carry(), SinkhornOT(SquaredEmbedding(), 0.1, Permutation(9)), Bound(1)),
        Flow(MultiMask(VOCAB), coupling=ExactOT(OneStepLikelihood(8)), objective=NoisyCrossEntropy()),
    ),
}
EACH = [(family, component) for family, components in FAMILIES.items() for component in components]


@pytest.mark.parametrize(("family", "component"), EACH, ids=name)
def test_a_component_comes_back_from_json_as_it_was(family, component):
    plain = json.loads(json.dumps(to_plain(component), allow_nan=False))
    again = from_plain(family, plain)
    assert again == component
    assert type(again) is type(component)
    assert repr(again) == repr(component)
    assert plain["kind"] == type(component).__name__


def test_frequencies_come_back_to_the_last_bit():
    bag = BagOfWords(Vocab(5000), tuple(dirichlet(5000, seed=0, sharpness=9).tolist()))
    again = from_plain(Source, json.loads(json.dumps(to_plain(bag))))
    assert again.frequencies == bag.frequencies
    assert torch.equal(again.token_probs(), bag.token_probs())


def test_a_stored_flow_is_readable_json():
    assert to_plain(Flow(Uniform(Vocab(2)), coupling=ExactOT(Hamming()))) == {
        "kind": "Flow",
        "source": {"kind": "Uniform", "vocab": {"kind": "Vocab", "data": 2, "masks": 0}},
        "schedule": {"kind": "Linear"},
        "prediction": {"kind": "Evidence"},
        "coupling": {"kind": "ExactOT", "cost": {"kind": "Hamming"}},
        "objective": {"kind": "CrossEntropy"},
    }


def test_every_kind_of_every_family_has_an_example_that_is_stored_here():
    for family, components in FAMILIES.items():
        ours = {kind for kind, cls in kinds(family).items() if cls.__module__.startswith("hopflow.")}
        assert ours == {name(c) for c in components if type(c).__module__.startswith("hopflow.")}


@dataclass(frozen=True)
class Newcomer(Cost):
    """A user's own cost: to subclass the family is all it takes."""

    weights: tuple[tuple[int, float], ...]
    mode: Literal["soft", "hard"] = "soft"
    label: str | None = None
    inner: Cost | None = None

    def dissimilarity(self, a, b, embedding=None):
        return (a != b).float()


@pytest.mark.parametrize("component", [Newcomer(((1, 0.5),)), Newcomer((), "hard", "x", Newcomer((), inner=Hamming()))])
def test_a_users_own_component_needs_no_registration(component):
    assert from_plain(SequenceCost, json.loads(json.dumps(to_plain(component)))) == component


@pytest.mark.parametrize(
    ("component", "says"),
    [
        (Bound(lambda t: t), "Bound.eta = <function .* cannot be stored"),
        (TokenMatrix(((0.0, float("nan")), (1.0, 0.0))), "TokenMatrix.rows = nan cannot be stored"),
        (SinkhornOT(tol=float("inf")), "SinkhornOT.tol = inf cannot be stored"),
        (Newcomer(torch.zeros(1)), "Newcomer.weights"),
    ],
    ids=["function", "NaN", "inf", "tensor"],
)
def test_what_cannot_be_stored_is_refused(component, says):
    with pytest.raises(ValueError, match=says):
        to_plain(component)


VOCAB_PLAIN = to_plain(VOCAB)
SINKHORN = to_plain(SinkhornOT())
NEWCOMER = to_plain(Newcomer(()))
UNIFORM = to_plain(Flow(Uniform(VOCAB)))


@pytest.mark.parametrize(
    ("family", "data", "says"),
    [
        (Source, {"kind": "MultiMsk", "vocab": VOCAB_PLAIN}, "no Source of kind 'MultiMsk'; did you mean 'MultiMask'"),
        (Cost, {"kind": "OneStepLikelihood", "batch": 2}, "no Cost of kind"),  # a cost of sequences, not of tokens
        (Source, {"kind": "Hamming"}, "no Source of kind 'Hamming'"),
        (Source, {"kind": "Source", "vocab": VOCAB_PLAIN}, "no Source of kind 'Source'"),  # abstract
        (Schedule, {"kind": "Polynomial", "m": 2.0}, "Polynomial has no 'm'"),
        (Coupling, {**SINKHORN, "epss": 1.0}, "SinkhornOT has no 'epss'; did you mean 'eps'"),
        (Source, {"kind": "BagOfWords", "vocab": VOCAB_PLAIN}, "BagOfWords needs frequencies, which the data does not"),
        (Schedule, {"kind": "Polynomial", "n": "2"}, "Schedule.n: Input should be a valid number, got '2'"),
        (Schedule, {"kind": "Polynomial", "n": True}, "Schedule.n"),
        (Schedule, {"kind": "Polynomial", "n": None}, "Schedule.n"),
        (Schedule, {"kind": "Polynomial", "n": float("nan")}, "finite"),
        (Schedule, {"kind": "Polynomial", "n": float("inf")}, "finite"),
        (Schedule, {"kind": "Polynomial", "n": 10**400}, "Schedule.n"),
        (Schedule, {"kind": "Polynomial", "n": -1.0}, "rejects these values: .*n must be > 0"),
        (Schedule, {"kind": "Polynomial", "n": {"kind": "Linear"}}, "Schedule.n"),
        (Schedule, {"kind": "Positional", "schedules": {"kind": "Linear"}}, "must be a list"),
        (Schedule, {"kind": "Positional", "schedules": [1]}, 'must be an object with a "kind"'),
        (Vocab, {"kind": "Vocab", "data": 2.5, "masks": 0}, "Vocab.data"),
        (Vocab, {"kind": "Vocab", "data": 2, "masks": True}, "Vocab.masks"),
        (Vocab, {"kind": "Vocab", "data": 0, "masks": 0}, "data must be an integer ≥ 1"),
        (Source, {"kind": "Uniform", "vocab": 3}, 'Source.vocab must be an object with a "kind"'),
        (Source, {"kind": "BagOfWords", "vocab": VOCAB_PLAIN, "frequencies": [1.0]}, "one number per data token"),
        (Source, {"kind": "BagOfWords", "vocab": VOCAB_PLAIN, "frequencies": [1.0, "x", 0.0]}, r"frequencies\[1\]"),
        (Coupling, {**SINKHORN, "draw": {"kind": "Hamming"}}, "Coupling.draw: there is no Pick of kind 'Hamming'"),
        (Coupling, {**SINKHORN, "max_iterations": 1.5}, "Coupling.max_iterations"),
        (SequenceCost, {**NEWCOMER, "weights": [[1]]}, "2 entries"),
        (SequenceCost, {**NEWCOMER, "mode": "odd"}, "'soft' or"),
        (Objective, {"kind": "Bound", "eta": "print"}, "Objective.eta"),
        (Objective, {"kind": "Bound", "eta": -1.0}, "eta must be ≥ 0"),
        (Pick, {"kind": "Permutation", "bits": 51}, "an integer from 1 to 50"),
        (Flow, {**UNIFORM, "objective": {"kind": "NoisyCrossEntropy"}}, "needs a disjoint source"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_place_and_a_way_out(family, data, says):
    with pytest.raises(ValueError, match=says):
        from_plain(family, data)


def nested(depth: int) -> dict:
    data: dict = {"kind": "Linear"}
    for _ in range(depth):
        data = {"kind": "Positional", "schedules": [data]}
    return data


HOSTILE = [
    *(
        {"kind": kind}
        for kind in ("os.system", "__class__", "__init__", "eval", "builtins.exec", "", "Linear ", "linear")
    ),
    *({"kind": kind} for kind in (None, 1, ["Linear"], {"kind": "Linear"}, True, "x" * 10**6)),
    {"kind": "Linear", "__class__": "os.system"},
    {"kind": "Linear", "__init__": {"kind": "Linear"}},
    {"kind": "Linear", "self": 1},
    {"kind": "Linear", 7: 1},
    {},
    {"__reduce__": ["os.system", "true"]},
    nested(DEPTH + 1),
    nested(500),
    [],
    None,
    "Linear",
    Linear,
    Linear(),
    print,
    {"kind": "Polynomial", "n": "__import__('os').system('true')"},
    {"kind": "Positional", "schedules": [[[[]]]]},
    {"kind": "Positional", "schedules": []},
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_data_is_refused(data):
    with pytest.raises(ValueError) as refusal:
        from_plain(Schedule, data)
    assert len(str(refusal.value)) < 500


def test_nested_components_are_loaded_up_to_a_maximum_depth():
    assert isinstance(from_plain(Schedule, nested(DEPTH)), Positional)


def test_two_component_classes_with_the_same_name_are_refused():
    @dataclass(frozen=True)
    class Twin(Prediction):
        def shift(self, xt, rest, source):
            return torch.zeros(())

    first = Twin

    @dataclass(frozen=True)
    class Twin(Prediction):
        def shift(self, xt, rest, source):
            return torch.zeros(())

    assert first is not Twin
    with pytest.raises(ValueError, match="2 classes are called Twin"):
        from_plain(Prediction, {"kind": "Twin"})


def test_an_argument_that_a_file_lacks_takes_its_default():
    assert from_plain(Coupling, {"kind": "SinkhornOT", "eps": 0.5}) == SinkhornOT(eps=0.5)
    assert from_plain(SequenceCost, {"kind": "Newcomer", "weights": []}) == Newcomer(())
    assert from_plain(Schedule, {"kind": "Polynomial"}) == Polynomial()
    old = {"kind": "Transformer", "vocab": VOCAB_PLAIN, "size": {"kind": "Size", "layers": 1, "width": 8, "heads": 2}}
    network = from_plain(Model, old)
    assert (network.dropout, network.time, network.predict_x0) == (0.1, True, False)


def test_an_argument_without_a_default_must_be_in_the_file():
    with pytest.raises(ValueError, match="Newcomer needs weights, which the data does not contain"):
        from_plain(SequenceCost, {"kind": "Newcomer", "mode": "hard"})


GARBAGE = [None, True, 0, -1, 2.5, 1e308, 10**30, "", "Linear", "os.system", [], [[]], {}, {"kind": "Linear"}]


def mutated(data, draw: random.Random):
    """One place of plain data changed: a value, a key, or one of them gone or new."""
    if isinstance(data, dict) and data and draw.random() < 0.85:
        key = draw.choice(sorted(data))
        change = draw.random()
        rest = {k: v for k, v in data.items() if k != key}
        if change < 0.15:
            return rest
        if change < 0.3:
            return {**rest, key[:-1]: data[key]}
        return {**rest, key: mutated(data[key], draw)}
    if isinstance(data, list) and data and draw.random() < 0.7:
        at = draw.randrange(len(data))
        return [*data[:at], mutated(data[at], draw), *data[at + 1 :]]
    return draw.choice(GARBAGE)


def test_random_damage_gives_a_component_or_a_value_error_and_nothing_else():
    draw = random.Random(0)
    flows = [to_plain(flow) for flow in FAMILIES[Flow]] + [to_plain(Flow(source)) for source in SOURCES]
    built, refusals = 0, []
    for _ in range(2000):
        data = mutated(draw.choice(flows), draw)
        try:
            built += isinstance(from_plain(Flow, data), Flow)
        except ValueError as error:
            refusals.append(str(error))
    assert not [refusal for refusal in refusals if "\n" in refusal]
    assert 0 < built < 400  # such as another number of masks


def test_importing_the_family_is_enough_to_load_a_stored_component():
    code = """
from hopflow.couplings import Coupling
from hopflow.runs.storage import from_plain
data = {"kind": "ExactOT", "cost": {"kind": "SquaredEmbedding"}}
print(from_plain(Coupling, data))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "ExactOT(cost=SquaredEmbedding())"
