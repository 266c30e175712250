"""Summary: what there is to know of each run in one table."""

from collections.abc import Callable, Sequence

import torch

from ..estimate import mean_and_error
from ..evaluation.frontier import SAMPLES
from ..evaluation.rows import TRANSPORT, Row
from .looks import WORDS, looks
from .numbers import finite, lasting, measured, plain
from .section import Block, Prose, Section, Table
from .story import Story

SAMPLED = {
    (SAMPLES, "gen_ppl"): "generative perplexity",
    (SAMPLES, "entropy_bits"): "entropy within a sample, bits",
    (SAMPLES, "jumps"): "jumps per sample",
    (TRANSPORT, "predicted_jumps"): "jumps predicted from pairs",
}
"""Of the samples' numbers those that are told first, by set and quantity."""


def section(stories: Sequence[Story]) -> Section:
    """Facts as rows, runs as columns."""
    facts: dict[str, dict[str, str]] = {}
    for story in stories:
        for tell in TELLS:
            for name, said in tell(story).items():
                facts.setdefault(name, {})[story.name] = said
    names = [story.name for story in stories]
    rows = tuple((name, *(by_run.get(run, "-") for run in names)) for name, by_run in facts.items())
    blocks: list[Block] = [Table(("", *names), rows)]
    blocks += [Prose(text) for text in (_chosen(stories), *map(_missing, stories)) if text]
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
    """Over the last tenth of the logged steps: a single batch says little."""
    values = [float(row["loss"]) for row in story.having("loss") if finite(row["loss"])]
    if not values:
        return {}
    last = values[-max(1, len(values) // 10) :]
    if len(last) == 1:
        return {"loss, nats per token": f"{last[0]:.4g} (n = 1 batch)"}
    mean, error = mean_and_error(torch.tensor(last, dtype=torch.float64))
    return {"loss, nats per token": f"{measured(mean, error)} (n = {len(last):,} batches, the last)"}


def _looks(story: Story) -> dict[str, str]:
    said = {}
    for quantity, words in WORDS.items():
        found = looks(story, quantity)
        if found:
            said[f"{words} (last look)"] = str(found[-1])
        if len(found) > 1 and quantity != "jumps":
            lowest = min(found, key=lambda look: look.value)
            said[f"{words} (best look)"] = f"{lowest}, step {lowest.step:,}"
    return said


def _evaluated(story: Story) -> dict[str, str]:
    """The likelihoods that an evaluation measured, and what its samples are like; over steps, those with the most."""
    found: dict[tuple[str, str, float | None], Row] = {}
    for row in sorted(story.rows, key=lambda row: row.more.get("steps") or 0):
        likelihood = row.unit == "ppl" and "ot_n" not in row.more
        if likelihood or (row.set, row.quantity) in SAMPLED:
            found[row.set, row.quantity, row.eta] = row
    order = list(SAMPLED)
    told = sorted(found.values(), key=lambda row: order.index(at) if (at := (row.set, row.quantity)) in SAMPLED else -1)
    return {_name(row): measured(row.value, row.stderr, row.n) for row in told}


def _name(row: Row) -> str:
    sampler = row.more.get("sampler", "-")
    if (row.set, row.quantity) in SAMPLED:
        return f"{SAMPLED[row.set, row.quantity]} ({sampler})"
    kind = "bound" if row.is_bound else "exact" if row.more.get("exact") else "no bound"
    return f"{row.quantity} on {row.set}, perplexity ({kind}; {sampler})"


TELLS: tuple[Callable[[Story], dict[str, str]], ...] = (_extent, _loss, _looks, _evaluated)


def _chosen(stories: Sequence[Story]) -> str:
    if not any(len(looks(story, quantity)) > 1 for story in stories for quantity in WORDS):
        return ""
    return (
        "The best of several noisy looks is a little too good: compare runs by their last look, or by `hopflow eval`."
    )


def _missing(story: Story) -> str:
    return f"{story.name} has no {'; no '.join(story.missing)}." if story.missing else ""
