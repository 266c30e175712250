"""Section: the main numbers of each run in one table."""

from collections.abc import Callable, Sequence

import torch

from ..estimate import mean_and_error
from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import Row
from .judges import judge_names
from .looks import WORDS, looks
from .numbers import error_of, finite, lasting, measured, plain
from .prediction import prediction
from .section import Block, Prose, Section, Table
from .story import DETAILED, Story

SAMPLED = {
    "gen_ppl": "generative perplexity",
    "entropy_bits": "entropy of a sample, bits",
    "jumps": "hops per sample",
}
"""Numbers of samples that are shown."""


def section(stories: Sequence[Story]) -> Section:
    """Facts as rows, runs as columns; many runs as rows, with all their numbers."""
    facts: dict[str, dict[str, str]] = {}
    many = len(stories) > DETAILED
    # then the next section has the other numbers
    compared = not many and sum(story.side is not None for story in stories) > 1
    for place, story in enumerate(stories):
        for facts_of in FACTS:
            for name, said in facts_of(story).items():
                facts.setdefault(name, {})[story.name] = said
        for name, said in _evaluated(story, hops_only=compared).items():
            facts.setdefault(name, {})[story.name] = said
        # it draws from the network and couples batches of the text, which takes seconds
        if place < DETAILED and (predicted := prediction(story)):
            facts.setdefault("hops predicted by the coupling", {})[story.name] = str(predicted)
    names = [story.name for story in stories]
    if many:
        by_name = tuple((run, *(by_run.get(run, "-") for by_run in facts.values())) for run in names)
        blocks: list[Block] = [Table(("run", *facts), by_name)]
    else:
        rows = tuple((name, *(by_run.get(run, "-") for run in names)) for name, by_run in facts.items())
        blocks = [Table(("", *names), rows)]
    blocks += [Prose(text) for text in (_selected(stories), *map(_missing, stories[:DETAILED])) if text]
    return Section("summary", "At a glance", tuple(blocks))


def _extent(story: Story) -> dict[str, str]:
    said = {}
    if story.steps is not None:
        planned = story.recipe.get("steps")
        of = f" of {planned:,}" if isinstance(planned, int) and planned != story.steps else ""
        said["steps"] = f"{story.steps:,}{of}"
    if story.tokens is not None:
        said["tokens"] = f"{story.tokens:,}"
    seconds = story.last.get("seconds")
    if finite(seconds):
        said["time"] = lasting(seconds)
        if story.tokens and seconds > 0:
            said["tokens per second"] = plain(round(story.tokens / seconds))
    return said


def _loss(story: Story) -> dict[str, str]:
    """Over the last tenth of the logged steps: a single batch is noisy."""
    values = [float(row["loss"]) for row in story.having("loss") if finite(row["loss"])]
    if not values:
        return {}
    last = values[-max(1, len(values) // 10) :]
    mean, error = mean_and_error(torch.tensor(last, dtype=torch.float64))
    said = measured(mean, error_of(error, len(last)))
    return {"loss of the last batches, nats per token": f"{said} (n = {len(last):,})"}


def _looks(story: Story) -> dict[str, str]:
    """Evaluations during training, unless `hopflow eval` has measured the same since."""
    said = {}
    later = {row.quantity for row in story.rows}
    for quantity, words in WORDS.items():
        found = looks(story, quantity)
        if not found or quantity in later:
            continue
        said[f"{words} (last evaluation)"] = str(found[-1])
        lowest = min(found, key=lambda look: look.value)
        if lowest is not found[-1] and quantity != "jumps":
            said[f"{words} (best evaluation)"] = f"{lowest}, step {lowest.step:,}"
    return said


FACTS: tuple[Callable[[Story], dict[str, str]], ...] = (_extent, _loss, _looks)


def _evaluated(story: Story, hops_only: bool) -> dict[str, str]:
    """Likelihoods and numbers of samples, for the most sampling steps of each."""
    judges = judge_names([story])
    found: dict[tuple[str, str, float | None, str], Row] = {}
    for row in sorted(story.rows, key=lambda row: row.more.get("steps") or 0):
        sampled = row.set == SAMPLES and row.quantity in SAMPLED
        likelihood = row.unit == "ppl" and "ot_n" not in row.more and not sampled and row.quantity != "gen_ppl"
        if (sampled and row.quantity == "jumps") or ((sampled or likelihood) and not hops_only):
            found[row.set, row.quantity, row.eta, str(row.more.get("judge_hash"))] = row
    order = list(SAMPLED)
    rows = sorted(found.values(), key=lambda row: order.index(row.quantity) if row.set == SAMPLES else -1)
    return {_name(row, judges): measured(row.value, row.stderr, row.n) for row in rows}


def _name(row: Row, judges: dict[str, str]) -> str:
    said = str(row.more.get("sampler", "-"))
    if row.set == SAMPLES:
        judge = judges.get(str(row.more.get("judge_hash")))
        return f"{SAMPLED[row.quantity]} ({said}{f'; judge {judge}' if judge else ''})"
    kind = "perplexity bound" if row.is_bound else "perplexity" if row.more.get("exact") else "perplexity, not a bound,"
    return f"{kind} {row.quantity} on {row.set} ({said})"


def _selected(stories: Sequence[Story]) -> str:
    shown = [name for story in stories for name in _looks(story)]
    if not any(name.endswith("(best evaluation)") for name in shown):
        return ""
    return "The best of several noisy evaluations is biased: compare runs by the last one, or by `hopflow eval`."


def _missing(story: Story) -> str:
    return f"{story.name} has no {'; no '.join(story.missing)}." if story.missing else ""
