"""Player: the page's element in which a film is played; player.js plays it, player.css colours it.

Without JavaScript, and on paper, the finished sequences are all there is of it.
"""

from .escaping import html, script_json
from .film import FINAL, MOVED, PROMPT, SOURCE, Still, stills
from .section import Player

TICKS, START = 200, 100
"""Of the slider, and where it stands at first: half-way all colours are seen. An arrow key moves it by one."""
LEGEND = {SOURCE: "source", MOVED: "just moved, or will again", FINAL: "final", PROMPT: "prompt"}


def markup(player: Player) -> str:
    """The element as it is without its script, and the film that the script plays."""
    last = stills(player.data, 1.0)
    return f"""<div class="player" id="{html(player.name)}">
<script type="application/json">{script_json(player.data)}</script>
<div class="hop-bar" role="group" aria-label="player" hidden>
<button type="button" aria-label="Play">▶</button>
<input type="range" min="0" max="{TICKS}" step="1" value="{START}" aria-label="time, from source to text">
<span class="hop-clock">t = <span class="hop-time">1.00</span></span>
<span class="hop-sum"><span class="hop-total">{sum(still.jumps for still in last)}</span> jumps</span>
</div>
<ol class="hop-sequences">
{"".join(map(_sequence, last))}</ol>
{_legend(last)}
</div>"""


def _sequence(still: Still) -> str:
    jumps = f'<span class="hop-jumps"><span class="hop-count">{still.jumps}</span> jumps</span>'
    return f'<li><bdi class="hop-text" dir="{still.direction}">{html(still.text)}</bdi>{jumps}</li>\n'


def _legend(last: list[Still]) -> str:
    prompted = any(state == PROMPT for still in last for _, state in still.tokens)
    names = {state: name for state, name in LEGEND.items() if prompted or state != PROMPT}
    keys = "".join(f'<span class="hop-{state}">{name}</span>' for state, name in names.items())
    return f'<p class="hop-legend" hidden>{keys}</p>'
