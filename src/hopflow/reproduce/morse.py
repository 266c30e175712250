"""Table 1 [toy-OT] at laptop size: hops and perplexity bounds on Morse code, without and with optimal transport."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..bounds.estimate import for_json, mean_and_error
from ..bounds.nll import kappa_bound, nll_bound
from ..evaluation.predicted_jumps import predicted_jumps
from ..network.network import device_of
from ..recipes import Built, Recipe, build, named
from ..runs.pretrained import from_pretrained
from ..sampling.generate import generate

RECIPES = ("morse_laptop", "morse_sinkhorn_0p1_laptop", "morse_sinkhorn_0p01_laptop", "morse_exact_laptop")
HELD_OUT = 512
"""Held-out sequences of the perplexity bounds."""
PAIRED = 50
"""OT batches of the predicted hops."""
QUANTITIES = ("jumps", "predicted_jumps", "b0_ppl", "b1_ppl", "bk_ppl")

Say = Callable[[str], None]


@dataclass(frozen=True)
class MorseRow:
    """One recipe: the mean of each number over seeds, and its standard error."""

    recipe: str
    seeds: int
    steps: int
    values: dict[str, float]
    errors: dict[str, float]
    each: list[dict[str, float]]
    """The numbers of every seed, each with its error within the run."""

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = for_json(asdict(self))
        return found


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
    say: Say = lambda text: None,
) -> list[MorseRow]:
    """Train every recipe with every seed in `folder`, and measure it; finished runs are not trained again."""
    rows = []
    for name in recipes:
        each = []
        for seed in range(seeds):
            recipe = replace(named(name), seed=seed, device=device)
            recipe = replace(recipe, steps=recipe.steps if steps is None else steps)
            path = folder / f"{name}-{seed}"
            built = _trained(recipe, path, offline, say)
            say(f"{path.name}: drawing {samples} sequences in {sampler_steps} steps, and measuring perplexity bounds")
            each.append(measure(built, path, samples, sampler_steps))
        found = {key: mean_and_error(torch.tensor([row[key] for row in each])) for key in QUANTITIES}
        values, errors = ({key: pair[part] for key, pair in found.items()} for part in (0, 1))
        rows.append(MorseRow(name, seeds, recipe.steps, values, errors, each))
    return rows


def _trained(recipe: Recipe, path: Path, offline: bool, say: Say) -> Built:
    quiet = replace(recipe, log_every=100, eval_every=0, eval_rows=0, eval_samples=0)
    built = build(quiet, offline=offline, progress=say)

    def log(row: Mapping[str, Any]) -> None:
        say(f"{path.name}: step {row['step'] + 1} of {recipe.steps}, loss {row['loss']:.4f}")

    built.train(out=path, logger=log)
    return built


def measure(built: Built, path: Path, samples: int, sampler_steps: int) -> dict[str, float]:
    """The numbers of one run."""
    assert built.flow is not None
    flow, corpus, recipe = built.flow, built.corpus, built.recipe
    model = from_pretrained(path, device=device_of(built.model)).model
    out = generate(model, flow, n=samples, length=corpus.length, steps=sampler_steps, seed=recipe.seed)
    x1 = corpus.test[:HELD_OUT].to(device_of(model))
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
    """Hops per sequence as predicted by the pairs of the recipe, and its error."""
    assert built.flow is not None
    recipe, size = built.recipe, built.recipe.ot_batch or built.recipe.batch

    def rows(index: int) -> Int[Tensor, "n L"]:
        return built.corpus.batch(recipe.seed, index * size, size)

    return predicted_jumps(built.flow, rows, length=recipe.length, size=size, count=PAIRED, seed=recipe.seed)
