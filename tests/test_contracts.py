"""What every component keeps, whoever wrote it: each family's table of examples is walked."""

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from itertools import product

import pytest
import torch
from cases import BY_POSITION, SOURCES, VOCAB, name, random_logits
from toys import generator

from hopflow import costs, couplings, objectives, predictions, schedules
from hopflow.flow import Flow
from hopflow.objectives import NoisyCrossEntropy
from hopflow.recipes import components
from hopflow.sampling import samplers
from hopflow.sampling.samplers import GivenGrid
from hopflow.schedules import Cosine, Linear, Positional
from hopflow.transport import plan_sampling

POSITIONAL = Positional((Linear(), Cosine(), Linear(), Cosine()))
FAMILIES = {
    "sources": (*SOURCES, BY_POSITION),
    "schedules": (*schedules.EXAMPLES, POSITIONAL),
    "predictions": predictions.EXAMPLES,
    "costs": costs.EXAMPLES,
    "picks": plan_sampling.EXAMPLES,
    "couplings": couplings.EXAMPLES,
    "objectives": objectives.EXAMPLES,
    "samplers": samplers.EXAMPLES,
    "grids": (*samplers.GRIDS, GivenGrid((0.0, 0.1, 0.4, 1.0))),
}
COMPONENTS = [component for family in FAMILIES.values() for component in family]
each = pytest.mark.parametrize("component", COMPONENTS, ids=name)


@each
def test_a_component_is_a_frozen_dataclass(component):
    assert is_dataclass(component)
    for field in fields(component):
        with pytest.raises(FrozenInstanceError):
            setattr(component, field.name, getattr(component, field.name))
    with pytest.raises(FrozenInstanceError):
        component.something_new = 1


@each
def test_a_component_is_its_own_configuration_rebuilt_from_its_fields_it_is_the_same(component):
    again = type(component)(**{field.name: getattr(component, field.name) for field in fields(component)})
    assert again == component == replace(component) == copy.deepcopy(component)
    assert hash(again) == hash(component)
    assert repr(again) == repr(component)


@each
def test_a_component_survives_a_trip_to_another_process_also_after_use(component):
    if component in (*SOURCES, BY_POSITION):
        _ = component.sample(4), component.entropy
    assert pickle.loads(pickle.dumps(component)) == component


@each
def test_a_component_and_what_it_does_are_explained(component):
    assert type(component).__doc__
    assert not type(component).__doc__.startswith(f"{name(component)}(")  # what a dataclass writes by itself


@each
def test_a_component_prints_in_one_line_that_begins_with_its_class(component):
    assert str(component).startswith(f"{name(component)}(")
    assert "\n" not in str(component)


@pytest.mark.parametrize("key", components.FAMILIES)
def test_every_example_of_a_family_has_a_name_on_the_command_line(key):
    family = components.FAMILIES[key]
    words = components.members(family)
    for component in (component for component in COMPONENTS if isinstance(component, family)):
        assert words[components.word(type(component))] is type(component)
        assert components.kind_of(key, components.word(type(component))) is type(component)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_examples_of_a_family_differ(family):
    assert len(set(family)) == len(family)


@pytest.mark.parametrize("schedule", FAMILIES["schedules"], ids=name)
@pytest.mark.parametrize("source", FAMILIES["sources"], ids=name)
def test_every_source_and_schedule_works_with_all_other_components(source, schedule):
    x1 = torch.randint(VOCAB.data, (4, 4), generator=generator(0))
    embedding = torch.randn(VOCAB.size, 2, generator=generator(1))

    def guess(xt, t):
        return xt[..., None] * torch.linspace(-1, 1, VOCAB.data)

    kinds = [*couplings.EXAMPLES, *(couplings.ExactOT(cost) for cost in costs.EXAMPLES)]
    for prediction, coupling, objective in product(predictions.EXAMPLES, kinds, objectives.EXAMPLES):
        if isinstance(objective, NoisyCrossEntropy) and not source.disjoint:
            continue
        flow = Flow(source, schedule, prediction, coupling, objective)
        x0 = flow.source.sample(4, 4, generator=generator(2))
        pairs = flow.coupling.pair(x0, x1, generator(3), embedding=embedding, network=guess)
        t = torch.tensor([0.1, 0.4, 0.7, 0.99])
        sample = flow.path.sample(pairs.x0, pairs.x1, t, generator(4))
        logits = random_logits(sample, source, dtype=torch.float32).requires_grad_()
        loss = flow.loss(logits, sample)
        assert loss.shape == (4,)
        assert torch.isfinite(loss).all()
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert torch.isfinite(gradient).all()
        assert {flow: 1}[copy.deepcopy(flow)] == 1
