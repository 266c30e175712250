"""Section: sequences that training drew."""

from collections.abc import Sequence

from .section import Block, Prose, Samples, Section
from .story import Story

SHOWN = 8
"""Of each run."""
LONGEST = 20_000
"""Characters of a sample; longer ones are cut, with a note."""


def section(stories: Sequence[Story]) -> Section | None:
    """The first samples of each run, not selected; None where no run has any."""
    if not any(story.samples for story in stories):
        return None
    blocks: list[Block] = []
    for story in stories:
        if not story.samples:
            blocks.append(Prose(f"{story.name} has no samples."))
            continue
        shown = story.samples[:SHOWN]
        step = shown[0].get("step")
        at = f" after step {step + 1:,}" if isinstance(step, int) else ""
        facts = f"{story.name}: the first {len(shown)} of {len(story.samples):,} sequences drawn{at}, not selected."
        texts = tuple(_cut(sample["text"]) for sample in shown)
        blocks.append(Samples(texts, facts, story.readings(texts)))
    return Section("samples", "Samples", tuple(blocks))


def _cut(text: str) -> str:
    left = len(text) - LONGEST
    return text if left <= 0 else f"{text[:LONGEST]}… ({left:,} characters more)"
