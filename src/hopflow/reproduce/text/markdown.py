"""Tables of the text study as markdown."""

from collections.abc import Iterable, Sequence

from .statistics import Mean


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty text if it has no rows."""
    shown = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *shown]) if shown else ""


def show(found: Mean | None, paper: float | None = None) -> str:
    """A mean with its error, and the paper's value in parentheses if there is one."""
    own = "–" if found is None else str(found)
    return own if paper is None else f"{own} ({paper:g})"


def section(title: str, *parts: str) -> str:
    """A heading and its parts; empty text if the last part is empty."""
    return "\n\n".join([title, *(part for part in parts if part)]) if parts and parts[-1] else ""
