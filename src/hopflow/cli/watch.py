"""--watch: replays how sequences hop from noise to text."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ..system.safe_text import MASK, symbols

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from ..sampling.generation import Generation

NOISE, HOPPING, SETTLED, PROMPT = "dim", "bold yellow", "green", "underline blue"
"""Styles that differ without colors (NO_COLOR), too."""
LEGEND = {"noise": NOISE, "hopping": HOPPING, "settled": SETTLED, "prompt": PROMPT}
MOST = 4
"""At most this many sequences are shown."""
FRAMES, RATE = 96, 16
"""Frames of a replay, and frames per second: a replay takes six seconds."""
GLOW = 4
"""Frames for which a hop is highlighted."""
STILLS = (0.0, 0.25, 0.5, 0.75, 1.0)
WIDEST = 100

Symbol = tuple[str, str]
"""A token's text and its style."""


@dataclass(frozen=True)
class Frame:
    """The sequences at time t, and their hops so far."""

    t: float
    rows: list[list[Symbol]]
    jumps: list[int]


class HopReplay:
    """The first sequences of a `Generation` with a trajectory, at any time."""

    def __init__(self, out: "Generation", tokenizer: Any, data: int) -> None:
        assert out.hops is not None
        self.label = f"{out.sampler.label}, η = {out.eta:g}"
        self.count = min(MOST, len(out.tokens))
        self._lengths = out.lengths[: self.count].tolist()
        self._x0, self._x1, self._fixed = (self._rows(x) for x in (out.x0, out.tokens, out.fixed))
        self.prompted = any(map(any, self._fixed))
        mine = out.hops.row < self.count
        columns = (out.hops.t, out.hops.row, out.hops.position, out.hops.after)
        self._hops = list(zip(*(column[mine].tolist() for column in columns), strict=True))
        tokens = {token for row in [*self._x0, *self._x1, [hop[3] for hop in self._hops]] for token in row}
        self._texts = symbols(tokenizer, tokens, data)
        widths = [len(self._texts[token]) for row in self._x1 for token in row]
        self._mask = MASK * max(1, median_low(widths))  # about as wide as a data token

    def frames(self, times: Iterable[float]) -> Iterator[Frame]:
        """A frame for each of these times. A token is shown as hopping for a few frames, and until its last hop."""
        tokens, jumps = [list(row) for row in self._x0], [0] * self.count
        styles = [[PROMPT if fixed else NOISE for fixed in row] for row in self._fixed]
        hops, left = deque(self._hops), Counter((row, position) for _, row, position, _ in self._hops)
        recent: deque[list[tuple[int, int]]] = deque([[]] * GLOW)
        for t in times:
            for row, position in recent.popleft():
                styles[row][position] = HOPPING if left[row, position] else SETTLED
            recent.append([])
            while hops and hops[0][0] < t:
                _, row, position, after = hops.popleft()
                tokens[row][position], styles[row][position] = after, HOPPING
                left[row, position] -= 1
                jumps[row] += 1
                recent[-1].append((row, position))
            if t >= 1:
                styles = [[PROMPT if fixed else SETTLED for fixed in row] for row in self._fixed]
            rows = [
                [(self._texts.get(token, self._mask), style) for token, style in zip(*row, strict=True)]
                for row in zip(tokens, styles, strict=True)
            ]
            yield Frame(t, rows, list(jumps))

    def _rows(self, of: Any) -> list[list[Any]]:
        return [row[:length].tolist() for row, length in zip(of[: self.count], self._lengths, strict=True)]


def watch(replay: HopReplay, screen: "Console", sleep: Callable[[float], None] = time.sleep) -> int:
    """Play the replay on a terminal, or print a few frames; returns how many sequences were shown to the end."""
    if not screen.is_interactive:
        for frame in replay.frames(STILLS):
            screen.print(f"t = {frame.t:.2f}, {sum(frame.jumps)} hops")
            for number, row in enumerate(frame.rows, 1):
                screen.print(f"{number:>3}  " + "".join(text for text, _ in row), soft_wrap=True)
        return replay.count
    from rich.live import Live

    width, room = max(8, min(screen.width, WIDEST) - 4), screen.height - 4
    shown = _fitting(replay, width, room)
    try:
        with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:
            for frame in replay.frames(i / FRAMES for i in range(FRAMES + 1)):
                live.update(_screen(frame, replay, max(1, shown), width, room), refresh=True)
                sleep(1 / RATE)
    except KeyboardInterrupt:  # only the replay stops; the samples are still written
        return 0
    return shown


def _fitting(replay: HopReplay, width: int, room: int) -> int:
    """How many sequences fit on the terminal, each in its frame."""
    (end,) = replay.frames([1.0])
    heights = [len(_lines(row, width)) + 2 for row in end.rows]
    return sum(sum(heights[: i + 1]) <= room for i in range(len(heights)))


def _screen(frame: Frame, replay: HopReplay, shown: int, width: int, room: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    legend = Text("  ").join(Text(name, style) for name, style in LEGEND.items() if replay.prompted or style != PROMPT)
    panels = [_panel(i, frame.rows[i], frame.jumps[i], width, room - 2) for i in range(shown)]
    return Group(_header(frame.t, sum(frame.jumps[:shown]), replay.label, width), *panels, legend)


def _header(t: float, jumps: int, label: str, width: int) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    header = Table.grid(padding=(0, 2))
    for _ in range(3):  # on a narrow terminal the last one is cut
        header.add_column(no_wrap=True)
    bar = ProgressBar(total=1.0, completed=t, width=width // 3, complete_style="yellow", finished_style="green")
    sampler = Text(label, "dim", no_wrap=True, overflow="ellipsis")
    at, hops = Text.assemble("t ", (f"{t:.2f}", "bold")), Text.assemble((f"{jumps:,}", "bold"), " hops")
    header.add_row(at, bar, hops, sampler)
    return header


def _panel(number: int, row: list[Symbol], jumps: int, width: int, height: int) -> "Panel":
    from rich.panel import Panel
    from rich.text import Text

    body = Text("\n", no_wrap=True).join(_text(line) for line in _lines(row, width)[:height])
    title = Text(f"{number + 1}", "bold")
    return Panel(
        body,
        title=title,
        title_align="left",
        subtitle=f"{jumps} hops",
        subtitle_align="right",
        border_style="dim",
        width=width + 4,
    )


def _lines(row: list[Symbol], width: int) -> list[list[Symbol]]:
    """Lines broken at the width, not at words, so that only hopping tokens change."""
    from rich.cells import cell_len

    lines: list[list[Symbol]] = [[]]
    used = 0
    for text, style in row:
        cells = cell_len(text)
        if used + cells > width and used:
            lines.append([])
            used = 0
        lines[-1].append((text, style))
        used += cells
    return lines


def _text(line: list[Symbol]) -> "Text":
    from rich.text import Text

    runs = (("".join(text for text, _ in run), style) for style, run in groupby(line, key=itemgetter(1)))
    return Text.assemble(*runs, no_wrap=True, overflow="crop")
