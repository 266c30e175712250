"""Screen: rich's console, on which text cannot steer the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ..symbols import harmless


class Screen(Console):
    """Square brackets are text, not styles, and control characters of a text are shown as pictures.

    The colours and cursor movements of rich itself are added later, and are not touched.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else harmless(segment.text, keep="\n\t")
            yield segment._replace(text=shown)
