"""The animation of sequences that hop from source to text: its data, which animation.js plays, and its frames.

`texts` are the texts of tokens, each once; a token is an index into them, and `MASKED` stands for any mask token.
A sequence has its `source` tokens, the positions of its `prompt`, and its `hops` in the order of time, each as three
consecutive numbers: the index of its time in `times`, its position, its new token. `frames_at` and `stateAt` in
animation.js compute the same.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..sampling.generation import Generation
from ..system.safe_text import MASK, symbols

MASKED = -1
GLOW = 0.04
"""How long a hop is highlighted, in units of t."""
MAX_SEQUENCES, MAX_BYTES = 4, 300_000
"""Sequences and bytes of the data at most."""
MAX_MASK_WIDTH = 12
"""Characters of a mask at most; a mask is as wide as its final token."""
SOURCE, MOVED, FINAL, PROMPT = "source", "moved", "final", "prompt"
"""States of a token; each has a color."""

AnimationData = Mapping[str, Any]


@dataclass(frozen=True)
class AnimationFrame:
    """One sequence at one time: the text and the state of each token, and the hops so far."""

    tokens: tuple[tuple[str, str], ...]
    jumps: int
    direction: str
    """Writing direction, ltr or rtl."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.tokens)


def animation_data(out: Generation, tokenizer: Any, data_tokens: int) -> dict[str, Any]:
    """The first sequences of a generation with recorded hops: at most four, fewer if they would take too many bytes."""
    content = _data(out, tokenizer, data_tokens, min(MAX_SEQUENCES, len(out.tokens)))
    while len(content["sequences"]) > 1 and len(json.dumps(content, separators=(",", ":"))) > MAX_BYTES:
        content = {**content, "sequences": content["sequences"][:-1]}
    return content


def frames_at(animation: AnimationData, t: float) -> list[AnimationFrame]:
    """All sequences at time t, before the hops at t; at t = 1 every token is final."""
    return [_frame(animation, sequence, t) for sequence in animation["sequences"]]


def _data(out: Generation, tokenizer: Any, data_tokens: int, count: int) -> dict[str, Any]:
    assert out.hops is not None
    x0, lengths = out.x0[:count].tolist(), out.lengths[:count].tolist()
    shown = out.hops.row < count
    times, time_index = out.hops.t[shown].unique(return_inverse=True)  # sorted
    columns = (out.hops.row, out.hops.position, out.hops.after)
    row, position, after = (column[shown].tolist() for column in columns)
    rows = [row[:length] for row, length in zip(x0, lengths, strict=True)]
    texts = symbols(tokenizer, sorted({token for row in [*rows, after] for token in row}), data_tokens)
    index_of = {token: index for index, token in enumerate(texts)}
    sequences: list[dict[str, Any]] = [
        {
            "source": [index_of.get(token, MASKED) for token in tokens],
            "prompt": out.fixed[index].nonzero()[:, 0].tolist(),
            "hops": [],
            "direction": _direction(tokenizer.decode(out.tokens[index, : len(tokens)].tolist())),
        }
        for index, tokens in enumerate(rows)
    ]
    for index, *hop in zip(row, time_index.tolist(), position, after, strict=True):
        sequences[index]["hops"] += [hop[0], hop[1], index_of.get(hop[2], MASKED)]
    return {"glow": GLOW, "times": times.tolist(), "texts": list(texts.values()), "sequences": sequences}


def _frame(animation: AnimationData, sequence: dict[str, Any], t: float) -> AnimationFrame:
    tokens, hops = list(sequence["source"]), sequence["hops"]
    final, hops_left = list(tokens), [0] * len(tokens)
    for position, after in zip(hops[1::3], hops[2::3], strict=True):
        final[position] = after
        hops_left[position] += 1
    states, jumps = [SOURCE] * len(tokens), 0
    for time_index, position, after in zip(hops[::3], hops[1::3], hops[2::3], strict=True):
        if (at := animation["times"][time_index]) >= t:
            break  # hops are in the order of time
        tokens[position], hops_left[position], jumps = after, hops_left[position] - 1, jumps + 1
        states[position] = MOVED if hops_left[position] or t - at < animation["glow"] else FINAL
    if t >= 1:
        states = [FINAL] * len(tokens)
    for position in sequence["prompt"]:
        states[position] = PROMPT
    texts = (_token_text(animation["texts"], token, end) for token, end in zip(tokens, final, strict=True))
    return AnimationFrame(tuple(zip(texts, states, strict=True)), jumps, sequence["direction"])


def _token_text(texts: Sequence[str], token: int, final: int) -> str:
    if token != MASKED:
        return texts[token]
    return MASK * (1 if final == MASKED else min(MAX_MASK_WIDTH, len(texts[final])))


def _direction(text: str) -> str:
    """Writing direction of the final text, so that lines keep it while tokens hop."""
    found = (unicodedata.bidirectional(character) for character in text)
    return next(("ltr" if kind == "L" else "rtl" for kind in found if kind in ("L", "R", "AL")), "ltr")
