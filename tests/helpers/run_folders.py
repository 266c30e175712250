"""Run folders made by hand: what a report reads, without the training that would write it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

EVALUATION = {"b0_ppl": 20.0, "b0_se": 0.5, "b0_n": 64, "jumps": 50.0, "jumps_se": 1.0, "jumps_n": 16}
OT = {"ot_independent_cost": 60.0, "ot_wait_share": 0.01, "ot_seconds": 0.004, "ot_marginal_error": 0.0}


def step(number: int, **more: Any) -> dict[str, Any]:
    """A row of metrics."""
    return {"step": number, "loss": 3.0 - number / 1000, "seconds": float(number), "tokens_per_s": 1000.0, **more}


def coupled(number: int, **more: Any) -> dict[str, Any]:
    """A row of metrics of a run with optimal transport."""
    return step(number, ot_cost=50.0 + number % 7, **OT, **more)


def bound(quantity: str = "b0", value: float = 20.0, stderr: float = 0.5, **more: Any) -> dict[str, Any]:
    """A row of an evaluation, on held-out text."""
    own = {"set": "held-out", "n": 64, "unit": "ppl", "is_bound": True, "eta": 0.0, "dtype": "float32"}
    facts = {"data_sha256": "d", "length": 16, "of": 64, "seed": 0, "sampler": "η = 0, continuous time"}
    return (
        {"run": "r", "quantity": quantity, "value": value, "stderr": stderr, "recipe_hash": None} | own | facts | more
    )


def sampled(quantity: str, value: float, steps: int, eta: float = 0.0, **more: Any) -> dict[str, Any]:
    """A row of an evaluation, of samples."""
    what = {"set": "samples", "unit": "of samples", "is_bound": False, "n": 32, "eta": eta, "stderr": 1.0}
    judge = {"judge_hash": "abcdef12", "judge": {"name": "a judge"}, "retokenised": True} if "gen" in quantity else {}
    point = {"steps": steps, "temperature": 1.0, "sampler": f"η = {eta:g}, {steps} steps"}
    return bound(quantity, value) | what | point | judge | more


def frontier() -> list[dict[str, Any]]:
    """Samples at several steps and two η, and the text itself."""
    rows = []
    for steps in (4, 16, 64):
        for eta in (0.0, 1.0):
            rows += [sampled("gen_ppl", 90 - steps / 2 + eta, steps, eta), sampled("entropy_bits", 4.0, steps, eta)]
            rows += [sampled("jumps", 50 + steps * eta, steps, eta)]
    itself = {"set": "held-out", "steps": None, "eta": None, "sampler": "the text itself", "temperature": None}
    return [*rows, sampled("gen_ppl", 8.0, 0) | itself, sampled("entropy_bits", 4.2, 0) | itself]


def make(
    folder: Path,
    *,
    metrics: Sequence[dict[str, Any]] = (),
    rows: Sequence[dict[str, Any]] = (),
    samples: Sequence[str] = (),
    recipe: dict[str, Any] | None = None,
) -> Path:
    """The folder, with those files that there is something for."""
    folder.mkdir(parents=True, exist_ok=True)
    if metrics:
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
    if rows:
        content = {"format": "hopflow evaluation", "version": 1, "rows": list(rows)}
        (folder / "eval.json").write_text(json.dumps(content))
    if samples:
        (folder / "samples.jsonl").write_text("".join(json.dumps({"step": 9, "text": t}) + "\n" for t in samples))
    if recipe is not None:
        what = {"format": "hopflow run", "version": 1, "hopflow": "0.1.0", "recipe_hash": "0123456789abcdef"}
        identity = {**recipe, "flow.kind": "Flow", "flow.coupling.kind": "ExactOT", "data.source_sha256": "a" * 64}
        (folder / "recipe.json").write_text(json.dumps({**what, "identity": identity, "recipe": recipe}))
    return folder
