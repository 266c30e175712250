"""Table 1 [toy-OT]: jumps of flows on Morse code, without and with optimal transport, at laptop size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jaxtyping import Int
from torch import Tensor

from ..bounds import kappa_bound, nll_bound
from ..estimate import mean_and_error
from ..network import home
from ..pretrained import from_pretrained
from ..recipes import Built, build, named
from ..samplers import generate
from ..training.loop import Logger
from ..training.pairs import predicted_jumps

RECIPES = ("morse_laptop", "morse_sinkhorn_0p1_laptop", "morse_sinkhorn_0p01_laptop", "morse_exact_laptop")
PAIRED = 50
"""OT batches from which jumps are predicted."""
QUANTITIES = ("jumps", "predicted_jumps", "b0_ppl", "b1_ppl", "bk_ppl")


@dataclass(frozen=True)
class Row:
    """One recipe: the mean over seeds of each number, and the error of that mean from their spread."""

    recipe: str
    seeds: int
    steps: int
    values: dict[str, float]
    errors: dict[str, float]
    each: list[dict[str, float]]
    """The numbers of every seed, with the error that each has within its run."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run(
    folder: Path,
    *,
    seeds: int = 3,
    steps: int | None = None,
    samples: int = 1000,
    sampler_steps: int = 1024,
    device: str = "auto",
    recipes: Sequence[str] = RECIPES,
    offline: bool = False,
    say: Callable[[str], None] = lambda text: None,
    logger: Logger | None = None,
) -> list[Row]:
    """Train every recipe with every seed into the folder; runs that are there already are only measured."""
    rows = []
    for name in recipes:
        each = []
        for seed in range(seeds):
            say(f"{name}, seed {seed}: training")
            recipe = replace(named(name), seed=seed, device=device, eval_every=0, eval_rows=0, eval_samples=0)
            recipe = replace(recipe, steps=steps or recipe.steps)
            built = build(recipe, offline=offline)
            trained = built.train(out=folder / f"{name}-{seed}", logger=logger)
            say(f"{name}, seed {seed}: drawing {samples} sequences in {sampler_steps} steps, and bounding perplexities")
            each.append(measure(built, trained.path, samples, sampler_steps))
        values = {key: mean(row[key] for row in each) for key in QUANTITIES}
        errors = {key: _error([row[key] for row in each]) for key in QUANTITIES}
        rows.append(Row(name, seeds, recipe.steps, values, errors, each))
    return rows


def measure(built: Built, path: Path, samples: int, sampler_steps: int) -> dict[str, float]:
    """The numbers of one run."""
    assert built.flow is not None
    flow, corpus, recipe = built.flow, built.corpus, built.recipe
    model = from_pretrained(path, device=home(built.model)).model
    out = generate(model, flow, n=samples, length=corpus.length, steps=sampler_steps, seed=recipe.seed)
    x1 = corpus.test[:512].to(home(model))
    estimates = {
        "b0": nll_bound(model, flow, x1, eta=0, seed=recipe.seed),
        "b1": nll_bound(model, flow, x1, eta=1, seed=recipe.seed),
        "bk": kappa_bound(model, flow, x1, seed=recipe.seed),
    }
    found: dict[str, float] = {}
    found["jumps"], found["jumps_se"] = mean_and_error(out.jumps)
    found["predicted_jumps"], found["predicted_jumps_se"] = predict(built)
    for name, estimate in estimates.items():
        found |= {f"{name}_ppl": estimate.ppl, f"{name}_se": estimate.ppl_stderr}
    return found


def predict(built: Built) -> tuple[float, float]:
    """How often tokens should hop, from the recipe's pairs alone, and its error."""
    assert built.flow is not None
    recipe, size = built.recipe, built.recipe.ot_batch or built.recipe.batch

    def rows(index: int) -> Int[Tensor, "n L"]:
        return built.corpus.batch(recipe.seed, index * size, size)

    return predicted_jumps(built.flow, rows, length=recipe.length, size=size, count=PAIRED, seed=recipe.seed)


def _error(values: list[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
