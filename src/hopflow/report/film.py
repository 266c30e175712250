"""Sequences on their way from source to text, as plain data that the player of a page reads.

`texts` are the symbols that are shown, each once; a token is an index into them, and `MASKED` stands for any mask.
A sequence holds its `source` tokens, the positions of its `prompt`, and its `hops` in the order of time, each as three
numbers in a row: the index of its time in `times`, its position, its new token. player.js reads the same data.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..generation import Generation
from ..symbols import MASK, symbols

MASKED = -1
GLOW = 0.04
"""How long a hop is highlighted, in units of t."""
MOST, BYTES = 4, 300_000
"""Sequences and bytes of a film at most."""
WIDEST = 12
"""Characters of a mask at most; a mask is as wide as its final token."""
SOURCE, MOVED, FINAL, PROMPT = "source", "moved", "final", "prompt"

Film = Mapping[str, Any]


@dataclass(frozen=True)
class Still:
    """One sequence at one time: the text and the state of each token, and its hops so far."""

    tokens: tuple[tuple[str, str], ...]
    jumps: int
    direction: str

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.tokens)


def film(out: Generation, tokenizer: Any, data: int) -> dict[str, Any]:
    """The first sequences of a generation that kept its hops: at most four, fewer where they hop a lot."""
    whole = _film(out, tokenizer, data, min(MOST, len(out.tokens)))
    while len(whole["sequences"]) > 1 and len(json.dumps(whole, separators=(",", ":"))) > BYTES:
        whole = {**whole, "sequences": whole["sequences"][:-1]}
    return whole


def stills(film: Film, t: float) -> list[Still]:
    """The sequences at time t, before the hops at t; at t = 1 everything is final."""
    return [_still(film, sequence, t) for sequence in film["sequences"]]


def _film(out: Generation, tokenizer: Any, data: int, count: int) -> dict[str, Any]:
    assert out.hops is not None
    x0, lengths = out.x0[:count].tolist(), out.lengths[:count].tolist()
    mine = out.hops.row < count
    times, when = out.hops.t[mine].unique(return_inverse=True)  # sorted
    columns = (out.hops.row, out.hops.position, out.hops.after)
    row, position, after = (column[mine].tolist() for column in columns)
    rows = [row[:length] for row, length in zip(x0, lengths, strict=True)]
    known = symbols(tokenizer, sorted({token for row in [*rows, after] for token in row}), data)
    place = {token: index for index, token in enumerate(known)}
    sequences: list[dict[str, Any]] = [
        {
            "source": [place.get(token, MASKED) for token in tokens],
            "prompt": out.fixed[index].nonzero()[:, 0].tolist(),
            "hops": [],
            "direction": _direction(tokenizer.decode(out.tokens[index, : len(tokens)].tolist())),
        }
        for index, tokens in enumerate(rows)
    ]
    for index, *hop in zip(row, when.tolist(), position, after, strict=True):
        sequences[index]["hops"] += [hop[0], hop[1], place.get(hop[2], MASKED)]
    return {"glow": GLOW, "times": times.tolist(), "texts": list(known.values()), "sequences": sequences}


def _still(film: Film, sequence: dict[str, Any], t: float) -> Still:
    tokens, hops = list(sequence["source"]), sequence["hops"]
    final, left = list(tokens), [0] * len(tokens)
    for position, after in zip(hops[1::3], hops[2::3], strict=True):
        final[position] = after
        left[position] += 1
    states, jumps = [SOURCE] * len(tokens), 0
    for when, position, after in zip(hops[::3], hops[1::3], hops[2::3], strict=True):
        if (at := film["times"][when]) >= t:
            break  # they are in order
        tokens[position], left[position], jumps = after, left[position] - 1, jumps + 1
        states[position] = MOVED if left[position] or t - at < film["glow"] else FINAL
    if t >= 1:
        states = [FINAL] * len(tokens)
    for position in sequence["prompt"]:
        states[position] = PROMPT
    shown = (_shown(film["texts"], token, end) for token, end in zip(tokens, final, strict=True))
    return Still(tuple(zip(shown, states, strict=True)), jumps, sequence["direction"])


def _shown(texts: Sequence[str], token: int, final: int) -> str:
    if token != MASKED:
        return texts[token]
    return MASK * (1 if final == MASKED else min(WIDEST, len(texts[final])))


def _direction(text: str) -> str:
    """Writing direction of the finished text, so that lines keep it while tokens hop."""
    found = (unicodedata.bidirectional(character) for character in text)
    return next(("ltr" if kind == "L" else "rtl" for kind in found if kind in ("L", "R", "AL")), "ltr")
