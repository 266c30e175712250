"""Cells of the text study with made-up numbers, to test tables and pictures; they are never published."""

import math
import random
from dataclasses import asdict

from hopflow.reproduce.text import cell as cells
from hopflow.reproduce.text.protocol import StudyVariant

BASE = {"mask": 60.0, "multimask": 62.0, "bag_of_words": 150.0, "uniform": 300.0}
"""b0 on the test set by source."""


def synthetic_cell(budget: str, variant: StudyVariant, seed: int, *, ot_gain: float = 0.06, judges=None) -> cells.Cell:
    """A cell with all numbers that a measured one has; OT lowers every perplexity by `ot_gain`."""
    protocol, recipe = variant.protocol, variant.resolved(seed)
    source = "mask" if recipe.model == "causal" else recipe.source
    couples = recipe.coupling != "independent"
    factor = (1 - ot_gain if couples else 1.0) * (0.99 if "_n" in variant.name else 1.0)
    numbers = random.Random(f"{variant.name} {seed}")
    level = BASE[source] * factor * math.exp(0.002 * numbers.gauss(0, 1))
    return cells.Cell(
        schema=cells.SCHEMA,
        budget=budget,
        variant=variant.name,
        seed=seed,
        protocol=asdict(protocol),
        protocol_sha256=protocol.sha256,
        recipe=asdict(recipe),
        recipe_hash="0" * 16,
        corpus={},
        machine={"device": "NVIDIA H200", "torch": "2.11"},
        commit="abc1234",
        parameters=51_000_000,
        training_loss=[(1, 10.8), (protocol.steps, 4.0)],
        training={
            "seconds": 95.0,
            "tokens": 1.6e8,
            "tokens_per_second": 1.7e6,
            "late_tokens_per_second": 1.9e6 * (0.97 if couples else 1.0),
            "peak_bytes": 9e9,
            "ot_seconds": 0.02 if couples else None,
            "ot_wait_share": 0.004 if couples else None,
        },
        bounds=_bounds(protocol, recipe, level, numbers),
        samples=_samples(protocol, recipe, level, numbers, protocol.judges if judges is None else judges),
        transport={} if recipe.model == "causal" else _transport(source, couples, numbers),
        judges={name: {"identity": {"sha256": {"w": "f" * 64}}, "test_nll": 38.0} for name in protocol.judges},
        seconds={"training": 95.0, "bounds": 40.0, "samples": 20.0, "transport": 6.0},
        x0_head="X0Head, 19,000,000 parameters" if recipe.predict_x0 else None,
    )


def _values(set_, quantity, level, rows, length, numbers, **keys):
    spread = random.Random(set_)  # rows are hard or easy for every variant
    nats = [length * (math.log(level) + 0.3 * spread.gauss(0, 1)) + 0.1 * numbers.gauss(0, 1) for _ in range(rows)]
    given = {"eta": 0.0, "steps": None, "paths": None, "proposal": None, **keys}
    return cells.BoundValues(
        set=set_,
        quantity=quantity,
        is_bound=quantity != "nll",
        length=length,
        nats=nats,
        draw_stderr=0.5,
        calls=8,
        dtype="bf16",
        seconds=0.1,
        **given,
    )


def _bounds(protocol, recipe, level, numbers):
    found, rows, length = [], min(8, protocol.rows), protocol.length
    for place, name in enumerate(("test", *protocol.zero_shot)):
        own = level * (1 + 2 * place)
        if recipe.model == "causal":
            found.append(_values(name, "nll", 0.6 * own, rows, length, numbers, eta=None))
            continue
        found.append(_values(name, "b0", own, rows, length, numbers))
        everything = name == "test"
        if everything:
            for steps in protocol.bound_steps:
                found.append(_values(name, "bn", 1.02 * own, rows, length, numbers, steps=steps))
        if recipe.source in ("bag_of_words", "uniform"):
            found.append(_values(name, "b1", 0.6 * own, rows, length, numbers, eta=1.0))
            if everything:
                found.append(_values(name, "bk", 0.7 * own, rows, length, numbers))
            for paths in (1, protocol.paths) if everything else (1,):
                for proposal, more in (("context", 0.62), ("x0 head", 0.58)):
                    if proposal == "context" or recipe.predict_x0:
                        keys = {"steps": protocol.reversal_steps, "paths": paths, "proposal": proposal}
                        found.append(_values(name, "br", (more - 0.001 * paths) * own, rows, length, numbers, **keys))
    return found


def _samples(protocol, recipe, level, numbers, judges):
    points = [(steps, eta) for eta in protocol.etas for steps in protocol.sampler_steps]
    found = []
    for steps, eta in [(None, None)] if recipe.model == "causal" else points:
        few = 1.0 if steps is None else 1 + 6 / steps * (0.5 if recipe.source == "bag_of_words" else 1.0)
        scores = {}
        for judge in judges:
            nats = [100 * math.log(2 * level**0.9 * few) + numbers.gauss(0, 5) for _ in range(8)]
            scores[judge] = cells.JudgeScores(nats, [100] * 8, [500] * 8)
        texts = cells.kept_texts([f"text {n} | <b>" for n in range(8)], scores, protocol.judges)
        hops = None if steps is None else 120.0
        found.append(cells.SamplePoint(steps, eta, 8, 6.2, 0.01, hops, 0.1, hops, 1.0, scores, texts))
    return found


def _transport(source, couples, numbers):
    hops = 128.0 if "mask" in source else (119.0 if couples else 123.0)
    values = {
        "jumps": hops + 0.1 * numbers.random() * ("mask" not in source),
        "predicted_jumps": hops - 1,
        "kantorovich_cost_squared_embedding": 360.0 if couples else 373.0,
        "dynamic_cost_squared_embedding": 365.0 if couples else 377.0,
        "gain_squared_embedding": 0.035 if couples else 0.0,
    }
    return {key: cells.MeasuredValue(value, 0.1) for key, value in values.items()}
