"""A terminal in memory."""

import io

from rich.console import Console


def terminal(height: int = 20, width: int = 60, **environment: str) -> Console:
    """A console that writes to `console.file.getvalue()` as if it were a terminal."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard",
        _environ={"TERM": "xterm", **environment},
    )
