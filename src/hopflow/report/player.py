"""Player: the page's element in which sequences hop; player.js plays it, player.css colours it."""

from html import escape

from .escaping import script_json
from .section import Player


def markup(player: Player) -> str:
    """The element, and its data for the script."""
    return (
        f'<div class="player" id="{escape(player.name)}">'
        f'<script type="application/json">{script_json(player.data)}</script></div>'
    )
