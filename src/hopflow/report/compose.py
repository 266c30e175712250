"""Compose: what a report says, from its title to its last section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
from . import comparison, curves, hopping, matching, measures, quality, repeating, samples, settings, summary, transport
from .section import Section
from .story import Story

Tell = Callable[[Sequence[Story]], Section | None]
"""What a section's module offers: the section, or None where it would have nothing to say."""


@dataclass(frozen=True)
class Report:
    """Everything that is shown, before it is rendered."""

    title: str
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
            "runs": [story.as_json() for story in self.stories],
            "sections": [section.as_json() for section in self.sections],
        }


SECTIONS: tuple[Tell, ...] = (
    summary.section,
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
"""In the order of the page."""


def compose(stories: Sequence[Story]) -> Report:
    """A report on one run, or on several side by side."""
    if not stories:
        raise ValueError("there is nothing to report on: name a run, hopflow report RUN")
    first, *others = (story.name for story in stories)
    title = f"{first} beside {', '.join(others)}" if others else first
    told = (tell(stories) for tell in SECTIONS)
    return Report(title, _lead(stories), tuple(stories), tuple(section for section in told if section is not None))


def _lead(stories: Sequence[Story]) -> str:
    """One sentence on what these runs are."""
    if len(stories) > 1:
        return f"{len(stories)} runs of hopflow, what they learned and how their tokens hop."
    recipe, identity = stories[0].recipe, stories[0].identity
    said = [f"a {kind}" for kind in [identity.get("model.kind")] if kind]
    said += [f"on {recipe['data']}"] if recipe.get("data") else []
    kinds = {word: identity.get(f"flow.{word}.kind") for word in ("source", "coupling", "prediction")}
    said += [f"{word} {kind}" for word, kind in kinds.items() if kind]
    return f"A run of hopflow: {', '.join(said)}." if said else "A run of hopflow."
