"""Screen: a rich console that replaces control characters of printed text."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..system.safe_text import harmless


class Screen(Console):
    """Prints square brackets as text and control characters as visible symbols.

    The colors and cursor movements of rich itself are added later and stay.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else harmless(segment.text, keep="\n\t")
            yield segment._replace(text=shown)
