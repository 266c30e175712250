"""The player of sequences that hop; player.js plays it, player.css colours it.

Without JavaScript and on paper it shows the finished sequences.
"""

from .escaping import html, script_json
from .film import FINAL, MOVED, PROMPT, SOURCE, Still, stills
from .section import Player

TICKS, START = 200, 100
"""Positions of the slider, and the first one: half-way all colours are visible. An arrow key moves it by one."""
LEGEND = {SOURCE: "source", MOVED: "just hopped, or will hop again", FINAL: "final", PROMPT: "prompt"}


def markup(player: Player) -> str:
    """The element without its script, and the data that the script plays."""
    last = stills(player.data, 1.0)
    return f"""<div class="player" id="{html(player.name)}">
<script type="application/json">{script_json(player.data)}</script>
<div class="hop-bar" role="group" aria-label="player" hidden>
<button type="button" aria-label="Play">▶</button>
<input type="range" min="0" max="{TICKS}" step="1" value="{START}" aria-label="time, from source to text">
<span class="hop-clock">t = <span class="hop-time">1.00</span></span>
<span class="hop-sum"><span class="hop-total">{sum(still.jumps for still in last)}</span> hops</span>
</div>
<ol class="hop-sequences">
{_sequences(last, player.readings)}</ol>
{_legend(last)}
</div>"""


def decoded(reading: str, label: str = "decoded") -> str:
    """Morse symbols as letters, below them."""
    return f'<p class="decoded"><span>{label}</span> {html(reading)}</p>' if reading else ""


def _sequences(last: list[Still], readings: tuple[str, ...]) -> str:
    both = zip(last, readings or ("",) * len(last), strict=True)
    return "".join(_sequence(still, reading) for still, reading in both)


def _sequence(still: Still, reading: str) -> str:
    jumps = f'<span class="hop-jumps"><span class="hop-count">{still.jumps}</span> hops</span>'
    below = decoded(reading, "decoded at t = 1")
    return f'<li><bdi class="hop-text" dir="{still.direction}">{html(still.text)}</bdi>{below}{jumps}</li>\n'


def _legend(last: list[Still]) -> str:
    prompted = any(state == PROMPT for still in last for _, state in still.tokens)
    names = {state: name for state, name in LEGEND.items() if prompted or state != PROMPT}
    keys = "".join(f'<span class="hop-{state}">{name}</span>' for state, name in names.items())
    return f'<p class="hop-legend" hidden>{keys}</p>'
