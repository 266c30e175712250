"""Compose: what a report says, from its title to its last section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import __version__
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
