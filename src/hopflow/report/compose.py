"""A report from its title to its last section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from . import comparison, curves, hopping, matching, measures, quality, repeating, samples, settings, summary, transport
from .headline import headline
from .section import Section
from .story import DETAILED, Story

Compose = Callable[[Sequence[Story]], Section | None]
"""What the module of a section offers: the section, or None where there is nothing to show."""


@dataclass(frozen=True)
class Report:
    """Everything that is shown, before it is rendered."""

    title: str
    headline: str
    """The result in one sentence; empty where nothing was measured."""
    lead: str
    stories: tuple[Story, ...]
    sections: tuple[Section, ...]

    def as_json(self) -> dict[str, Any]:
        """Every number of the page, and where it comes from."""
        return {
            "format": "hopflow report",
            "version": 1,
            "hopflow": __version__,
            "title": self.title,
            "headline": self.headline,
            "runs": [story.as_json() for story in self.stories],
            "sections": [section.as_json() for section in self.sections],
        }


SECTIONS: tuple[Compose, ...] = (
    comparison.section,
    curves.section,
    quality.section,
    hopping.section,
    transport.section,
    matching.section,
    samples.section,
    measures.section,
    settings.section,
    repeating.section,
)
"""In the order of the page, after the summary. They show `DETAILED` runs: each takes time and room."""
NAMED = 3
"""Runs in the title of a report on more than `DETAILED`."""


def compose(stories: Sequence[Story]) -> Report:
    """A report on one run, or on several side by side; details of the first `DETAILED` runs only."""
    if not stories:
        raise ValueError("there is nothing to report on: name a run, hopflow report RUN")
    first = stories[:DETAILED]
    details = (section for make in SECTIONS if (section := make(first)) is not None)
    sections = (summary.section(stories), *details)
    return Report(_title(stories), headline(first), _lead(stories), tuple(stories), sections)


def _title(stories: Sequence[Story]) -> str:
    names = [story.name for story in stories]
    if len(names) > DETAILED:
        return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _lead(stories: Sequence[Story]) -> str:
    """One sentence on what these runs are."""
    if len(stories) > DETAILED:
        return (
            f"{len(stories)} runs of hopflow. The first table has all of them; the headline, comparisons, charts, "
            f"replays and samples are of the first {DETAILED}. To see others, name fewer runs."
        )
    if len(stories) > 1:
        return f"{len(stories)} runs of hopflow, compared with the first."
    recipe, identity = stories[0].recipe, stories[0].identity
    said = [str(identity["model.kind"])] if identity.get("model.kind") else []
    said += [f"text {recipe['data']}"] if recipe.get("data") else []
    kinds = {word: identity.get(f"flow.{word}.kind") for word in ("source", "coupling", "prediction")}
    said += [f"{word} {kind}" for word, kind in kinds.items() if kind]
    return f"A run of hopflow: {', '.join(said)}." if said else "A run of hopflow."
