"""Tables 1 [toy-OT] and 5 [toy-OT2]: hops and perplexity bounds on Shakespeare in Morse code and by characters."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ..bench.machine import machine
from ..bounds.estimate import for_json, known, mean_and_error
from ..bounds.nll import kappa_bound, nll_bound
from ..evaluation.predicted_jumps import predicted_jumps
from ..network.network import device_of
from ..recipes import Built, Recipe, build, named
from ..runs.devices import choose_device
from ..runs.pretrained import from_pretrained
from ..sampling.generate import generate
from ..system.progress import ProgressCallback
from .morse_tables import MorseRun, file_name, read

PAPER_RECIPES = ("morse", "morse_sinkhorn_0p01", "morse_exact", "shakespeare", "shakespeare_exact")
"""Recipes of the sizes mini and small."""
PAPER_STEPS, PAPER_SAMPLES = 20_000, 3000
RECIPES = ("morse_laptop", "morse_sinkhorn_0p1_laptop", "morse_sinkhorn_0p01_laptop", "morse_exact_laptop")
HELD_OUT = 512
"""Held-out sequences of the perplexity bounds."""
PAIRED = 50
"""OT batches of the predicted hops."""
QUANTITIES = ("jumps", "predicted_jumps", "b0_ppl", "b1_ppl", "bk_ppl")


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
    samples: int | None = None,
    sampler_steps: int = 1024,
    device: str = "auto",
    size: str = "laptop",
    minutes: float | None = None,
    results: Path | None = None,
    recipes: Sequence[str] | None = None,
    offline: bool = False,
    say: ProgressCallback = lambda text: None,
) -> list[MorseRow]:
    """Train every recipe with every seed in `folder`, and measure it; finished runs are not trained again.

    With `results`, the numbers of every run are written to a file there, and runs that have one are skipped. No run is
    started that would probably end after `minutes`.
    """
    samples = samples or (1000 if size == "laptop" else PAPER_SAMPLES)
    rows, start, longest = [], time.monotonic(), 0.0
    for name in recipes or (RECIPES if size == "laptop" else PAPER_RECIPES):
        found: list[MorseRun] = []
        for seed in range(seeds):
            file = None if results is None else results / file_name(name, size, seed)
            if file is not None and file.exists():
                found.append(read(file))
                continue
            if minutes is not None and time.monotonic() - start + longest > 60 * minutes:
                say(f"{minutes:g} minutes are spent; the next run is {name}, seed {seed}")
                continue
            recipe = sized_recipe(name, size, seed, steps, device)
            path = folder / (f"{name}-{seed}" if size == "laptop" else f"{name}-{size}-{seed}")
            found.append(_run(name, size, recipe, path, samples, sampler_steps, offline, say))
            longest = max(longest, found[-1].seconds)
            if results is not None:
                found[-1].write(results)
        if found:
            rows.append(_row(name, found))
    return rows


def _run(
    name: str,
    size: str,
    recipe: Recipe,
    path: Path,
    samples: int,
    sampler_steps: int,
    offline: bool,
    say: ProgressCallback,
) -> MorseRun:
    """Train one recipe with one seed, and measure it."""
    start = time.monotonic()
    built = _trained(recipe, path, offline, say)
    say(f"{path.name}: drawing {samples} sequences in {sampler_steps} steps, and measuring perplexity bounds")
    values = {key: known(value) for key, value in measure(built, path, samples, sampler_steps).items()}
    about, seconds = machine(choose_device(recipe.device)), time.monotonic() - start
    return MorseRun(name, size, recipe.seed, recipe.steps, samples, sampler_steps, values, about, seconds)


def _row(name: str, runs: Sequence[MorseRun]) -> MorseRow:
    """The mean of each number over seeds, and its standard error."""
    each = [{key: math.nan if value is None else value for key, value in run.values.items()} for run in runs]
    found = {key: mean_and_error(torch.tensor([row[key] for row in each])) for key in QUANTITIES}
    values, errors = ({key: pair[part] for key, pair in found.items()} for part in (0, 1))
    return MorseRow(name, len(runs), runs[0].steps, values, errors, each)


def sized_recipe(name: str, size: str, seed: int, steps: int | None, device: str) -> Recipe:
    """A recipe of the paper with a network of this size; `laptop` is that of the recipe itself."""
    recipe = replace(named(name), seed=seed, device=device)
    if size != "laptop":
        on_gpu = choose_device(device).type == "cuda"
        recipe = replace(recipe, size=size, steps=PAPER_STEPS, warmup=500, save_every=10**6, keep=1, compile=on_gpu)
    return recipe if steps is None else replace(recipe, steps=steps)


def _trained(recipe: Recipe, path: Path, offline: bool, say: ProgressCallback) -> Built:
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
