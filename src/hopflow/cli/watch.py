"""--watch: shows on the terminal how sequences hop from noise to text, while the network draws them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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

    from ..sampling.stream import Frame

NOISE, HOPPING, CHANGED, SETTLED, PROMPT = "dim", "bold yellow", "not dim", "green", "underline blue"
"""Styles that differ without colors (NO_COLOR), too, except for changed and settled tokens."""
LEGEND = {"noise": NOISE, "hopping": HOPPING, "changed": CHANGED, "settled": SETTLED, "prompt": PROMPT}
MOST = 4
"""At most this many sequences are shown."""
SECONDS = 6.0
"""A fast network is shown this slowly."""
RATE = 16
"""Pictures per second."""
GLOW = 4
"""Pictures in which a hop is highlighted."""
STILLS = (0.0, 0.25, 0.5, 0.75, 1.0)
WIDEST = 100
FREQUENT = 1000
"""The first tokens of a vocabulary, which are frequent ones."""

Symbol = tuple[str, str]
"""A token's text and its style."""


@dataclass
class ShownSequence:
    """One sequence as it is now."""

    tokens: list[int]
    fixed: list[bool]
    final: list[bool]
    changed: set[int] = field(default_factory=set)
    glow: dict[int, int] = field(default_factory=dict)
    """Positions that have just hopped, and in how many pictures they are still highlighted."""
    t: float = 0.0
    jumps: int = 0
    done: bool = False

    def take(self, frame: "Frame") -> None:
        for position, token in zip(frame.position.tolist(), frame.after.tolist(), strict=True):
            self.tokens[position] = token
            self.changed.add(position)
            self.glow[position] = GLOW
        self.final, self.t, self.jumps, self.done = frame.final.tolist(), frame.t, frame.jumps, frame.done
        if self.done:
            self.t = 1.0

    def style(self, position: int) -> str:
        if self.fixed[position]:
            return PROMPT
        if self.done:
            return SETTLED
        if position in self.glow:
            return HOPPING
        if self.final[position]:
            return SETTLED
        return CHANGED if position in self.changed else NOISE

    def age(self) -> None:
        """Another picture was shown."""
        self.glow = {position: left - 1 for position, left in self.glow.items() if left > 1}


class HopView:
    """The first sequences of a stream, as far as their frames were taken."""

    def __init__(self, tokenizer: Any, data: int, label: str, count: int) -> None:
        self.label, self.most = label, min(MOST, count)
        self.sequences: dict[int, ShownSequence] = {}
        self._tokenizer, self._data = tokenizer, data
        self._texts = symbols(tokenizer, range(min(data, FREQUENT)), data)
        self._mask = MASK * max(1, median_low(map(len, self._texts.values())))  # about as wide as a data token

    def take(self, frame: "Frame") -> None:
        """Add a frame; those of further sequences are left out."""
        if frame.row not in self.sequences and len(self.sequences) < self.most:
            rows = (frame.tokens.tolist(), frame.fixed.tolist(), frame.final.tolist())
            self.sequences[frame.row] = ShownSequence(*rows)
        if frame.row in self.sequences:
            self.sequences[frame.row].take(frame)

    @property
    def done(self) -> bool:
        """Whether all sequences that are shown are complete."""
        return len(self.sequences) == self.most and all(each.done for each in self.sequences.values())

    @property
    def t(self) -> float:
        """The time of the sequence that is behind."""
        return min((each.t for each in self.sequences.values()), default=0.0)

    @property
    def shown(self) -> list[ShownSequence]:
        """The sequences in their order."""
        return [self.sequences[row] for row in sorted(self.sequences)]

    @property
    def prompted(self) -> bool:
        return any(any(each.fixed) for each in self.sequences.values())

    def symbols(self, sequence: ShownSequence) -> list[Symbol]:
        """The text and the style of each token."""
        missing = {token for token in sequence.tokens if token < self._data and token not in self._texts}
        self._texts |= symbols(self._tokenizer, missing, self._data)
        return [
            (self._texts.get(token, self._mask), sequence.style(position))
            for position, token in enumerate(sequence.tokens)
        ]


def watch(
    frames: Iterator["Frame"],
    view: HopView,
    screen: "Console",
    stopped: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Show the frames on a terminal until all sequences of the view are complete; returns how many can be seen.

    A network that needs less than some seconds is shown slowly. `stopped` ends the display early; frames are left then.
    """
    from rich.live import Live

    width, room = max(8, min(screen.width, WIDEST) - 4), screen.height - 4
    began = last = clock()
    fit = view.most
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as live:

        def show() -> None:
            nonlocal last, fit
            count = _fitting(view, width, room)
            if count < len(view.shown):
                fit = min(fit, count)  # never more than before: panels would come and go
            live.update(_screen(view, max(1, fit), width, room), refresh=True)
            last = clock()
            for sequence in view.shown:
                sequence.age()

        for frame in frames:
            if not frame.calls and not len(frame.position):
                began = clock()  # the noise of a sequence
            while not stopped() and (early := began + frame.t * SECONDS - clock()) > 0:
                show()
                sleep(min(early, 1 / RATE))
            view.take(frame)
            if stopped():
                return 0
            if view.done:
                break
            if clock() - last >= 1 / RATE:
                show()
        show()
    return fit if view.done else 0


def stills(frames: Iterator["Frame"], view: HopView, screen: "Console") -> None:
    """Print a few snapshots of the sequences, for an output that is not a terminal."""
    taken: dict[int, list[tuple[str, int]]] = {}
    for frame in frames:
        if (sequence := view.sequences.get(frame.row)) is not None:
            mine = taken.setdefault(frame.row, [])
            while len(mine) < len(STILLS) and STILLS[len(mine)] <= frame.t:
                mine.append(_still(view, sequence))
        view.take(frame)
    for number, t in enumerate(STILLS):
        now = [
            taken[row][number] if number < len(taken.get(row, ())) else _still(view, view.sequences[row])
            for row in sorted(view.sequences)
        ]
        screen.print(f"t = {t:.2f}, {sum(jumps for _, jumps in now)} hops")
        for place, (text, _) in enumerate(now, 1):
            screen.print(f"{place:>3}  {text}", soft_wrap=True)


def _still(view: HopView, sequence: ShownSequence) -> tuple[str, int]:
    return "".join(text for text, _ in view.symbols(sequence)), sequence.jumps


def _fitting(view: HopView, width: int, room: int) -> int:
    """How many sequences fit on the terminal, each in its frame."""
    heights = [len(_lines(view.symbols(each), width)) + 2 for each in view.shown]
    return sum(sum(heights[: i + 1]) <= room for i in range(len(heights)))


def _screen(view: HopView, count: int, width: int, room: int) -> "Group":
    from rich.console import Group
    from rich.text import Text

    seen = view.shown[:count]
    legend = Text("  ", no_wrap=True, overflow="ellipsis").join(
        Text(name, style) for name, style in LEGEND.items() if view.prompted or style != PROMPT
    )
    panels = [_panel(i, view.symbols(each), each.jumps, width, room - 2) for i, each in enumerate(seen)]
    return Group(_header(view.t, sum(each.jumps for each in seen), view.label, width), *panels, legend)


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
