"""Section: the main numbers of each run in one table."""

from collections.abc import Callable, Sequence

import torch

from ...bounds.estimate import mean_and_error
from ...evaluation.rows import SAMPLES, Row
from ...system.durations import duration
from ..blocks import Block, Paragraph, Section, TableBlock
from ..hop_counts import predicted_total
from ..numbers import format_number, format_value, is_finite, standard_error
from ..run_data import DETAILED_RUNS, RunData, judge_names, logged_evaluations

SAMPLE_QUANTITIES = {
    "gen_ppl": "generative perplexity",
    "entropy_bits": "entropy of a sample, bits",
    "jumps": "hops per sequence",
}
LOGGED_QUANTITIES = {
    "b0": "perplexity bound b0",
    "bn": "perplexity bound bn",
    "nll": "negative log-likelihood, nats per token",
    "jumps": "hops per sequence",
}
PREDICTED = "hops per sequence, predicted"
LEAD = {
    False: "Training time, loss and the main results of each run.",
    True: "Training time, loss and hops of each run; the next section compares all other results.",
}
HOPS = (
    "A hop is one change of a token while a sequence is sampled. η is the strength of the sampler's corrector: with "
    "η = 0 it makes as few hops as the coupling allows."
)


def section(runs: Sequence[RunData]) -> Section:
    """One row per number and one column per run; for many runs one row per run, with all their numbers."""
    facts: dict[str, dict[str, str]] = {}
    many = len(runs) > DETAILED_RUNS
    compared = not many and sum(run.results is not None for run in runs) > 1  # the next section has the other numbers
    for place, run in enumerate(runs):
        for facts_of in FACTS:
            for name, text in facts_of(run).items():
                facts.setdefault(name, {})[run.name] = text
        for name, text in _evaluated(run, hops_only=compared).items():
            facts.setdefault(name, {})[run.name] = text
        # this samples from the network and couples batches of the text, which takes seconds
        if place < DETAILED_RUNS and (predicted := predicted_total(run)):
            facts.setdefault(PREDICTED, {})[run.name] = str(predicted)
    names = [run.name for run in runs]
    if many:
        by_run = tuple((name, *(values.get(name, "-") for values in facts.values())) for name in names)
        table = TableBlock(("run", *facts), by_run)
    else:
        rows = tuple((fact, *(values.get(name, "-") for name in names)) for fact, values in facts.items())
        table = TableBlock(("", *names), rows)
    notes = [Paragraph(text) for text in (_best_note(runs), *map(_missing_note, runs[:DETAILED_RUNS])) if text]
    lead = f"{LEAD[compared]} {HOPS}" if any("hops" in name for name in facts) else LEAD[compared]
    blocks: list[Block] = [Paragraph(lead), table, *notes]
    return Section("summary", "Summary", tuple(blocks))


def _training(run: RunData) -> dict[str, str]:
    facts = {}
    if run.steps is not None:
        planned = run.recipe.get("steps")
        of = f" of {planned:,}" if isinstance(planned, int) and planned != run.steps else ""
        facts["training steps"] = f"{run.steps:,}{of}"
    if run.tokens is not None:
        facts["training tokens"] = f"{run.tokens:,}"
    seconds = run.last.get("seconds")
    if is_finite(seconds):
        facts["training time"] = duration(seconds)
        if run.tokens and seconds > 0:
            facts["tokens per second"] = format_number(round(run.tokens / seconds))
    return facts


def _loss(run: RunData) -> dict[str, str]:
    """The mean over the last tenth of the logged steps, since the loss of a single batch is noisy."""
    values = [float(row["loss"]) for row in run.having("loss") if is_finite(row["loss"])]
    if not values:
        return {}
    last = values[-max(1, len(values) // 10) :]
    mean, error = mean_and_error(torch.tensor(last, dtype=torch.float64))
    text = format_value(mean, standard_error(error, len(last)))
    return {"training loss of the last batches, nats per token": f"{text} (n = {len(last):,})"}


def _logged(run: RunData) -> dict[str, str]:
    """Evaluations during training, unless `hopflow eval` has measured the same quantity since."""
    facts = {}
    later = {row.quantity for row in run.rows}
    for quantity, words in LOGGED_QUANTITIES.items():
        found = logged_evaluations(run, quantity)
        if not found or quantity in later:
            continue
        facts[f"{words} (last evaluation)"] = str(found[-1])
        lowest = min(found, key=lambda one: one.value)
        if lowest is not found[-1] and quantity != "jumps":
            facts[f"{words} (best evaluation)"] = f"{lowest}, step {lowest.step:,}"
    return facts


FACTS: tuple[Callable[[RunData], dict[str, str]], ...] = (_training, _loss, _logged)


def _evaluated(run: RunData, hops_only: bool) -> dict[str, str]:
    """Likelihoods and numbers of samples, each for the largest number of sampling steps of a sampler."""
    judges = judge_names([run])
    found: dict[tuple[str, str, float | None, str, str], Row] = {}
    for row in sorted(run.rows, key=lambda row: row.more.get("steps") or 0):
        sampled = row.set == SAMPLES and row.quantity in SAMPLE_QUANTITIES
        likelihood = row.unit == "ppl" and "ot_n" not in row.more and not sampled and row.quantity != "gen_ppl"
        if (sampled and row.quantity == "jumps") or ((sampled or likelihood) and not hops_only):
            judge, family = (str(row.more.get(name)) for name in ("judge_hash", "sampler_family"))
            found[row.set, row.quantity, row.eta, judge, family] = row
    order = list(SAMPLE_QUANTITIES)
    rows = sorted(found.values(), key=lambda row: order.index(row.quantity) if row.set == SAMPLES else -1)
    return {_name(row, judges): format_value(row.value, row.stderr, row.n) for row in rows}


def _name(row: Row, judges: dict[str, str]) -> str:
    sampler = str(row.more.get("sampler", "-"))
    if row.set == SAMPLES:
        judge = judges.get(str(row.more.get("judge_hash")))
        return f"{SAMPLE_QUANTITIES[row.quantity]} ({sampler}{f'; judge {judge}' if judge else ''})"
    kind = "perplexity bound" if row.is_bound else "perplexity" if row.more.get("exact") else "perplexity, not a bound,"
    return f"{kind} {row.quantity} on {row.set} text ({sampler})"


def _best_note(runs: Sequence[RunData]) -> str:
    names = [name for run in runs for name in _logged(run)]
    if not any(name.endswith("(best evaluation)") for name in names):
        return ""
    return (
        "The best of several noisy evaluations is biased towards low values: compare runs by the last one, "
        "or by `hopflow eval`."
    )


def _missing_note(run: RunData) -> str:
    return f"{run.name} has no {'; no '.join(run.missing)}." if run.missing else ""
