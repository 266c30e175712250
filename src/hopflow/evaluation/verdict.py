"""Verdict: the main results of an evaluation in a few lines, printed before the tables."""

import math
from collections.abc import Sequence
from typing import Any

from ..bounds.estimate import plus_minus
from .best_bound import is_lower
from .rows import ITSELF, SAMPLES, Row


def verdict(rows: Sequence[Row]) -> list[str]:
    """Up to two lines per text (the best bound of each sampler, and reference values), and one line per judge.

    Of several checkpoints the newest counts.
    """
    lines = []
    for texts in dict.fromkeys(_text(row) for row in rows if row.unit == "ppl"):
        here = [row for row in rows if row.unit == "ppl" and _text(row) == texts and "ot_n" not in row.more]
        if chosen := _chosen(_newest(here)):
            lines += [_bounds(chosen), *_references(chosen[0][0])]
    return lines + _judged(rows)


def _text(row: Row) -> tuple[Any, ...]:
    return row.set, *(row.more.get(name) for name in ("data_sha256", "length", "detokenised"))


def _newest(rows: Sequence[Row]) -> list[Row]:
    last = max((row.more.get("checkpoint") or 0 for row in rows), default=0)
    return [row for row in rows if (row.more.get("checkpoint") or 0) == last]


def _chosen(rows: Sequence[Row]) -> list[list[Row]]:
    """For each sampler its tightest bound, together with the rows of other η that it holds for as well.

    Samplers are those in the most steps that br bounds; without br those in continuous time, or else in the most steps.
    """
    rows = [row for row in rows if "sampler_label" not in row.more]
    numbers = [row for row in rows if row.is_bound or row.more.get("exact")]
    if reversed_ := [row for row in numbers if row.quantity == "br"]:
        most = max((row.more["steps"], row.more["paths"]) for row in reversed_)
        numbers = [row for row in reversed_ if (row.more["steps"], row.more["paths"]) == most]
        numbers += [row for row in rows if row.quantity == "bn" and row.more["steps"] == most[0]]
    steps = max((row.more.get("steps") or 0 for row in numbers), default=0)
    if continuous := [row for row in numbers if row.more.get("steps") is None]:
        numbers, steps = continuous, 0
    best: dict[float | None, Row] = {}
    for row in numbers:
        if (row.more.get("steps") or 0) == steps and (row.eta not in best or is_lower(row, best[row.eta])):
            best[row.eta] = row
    groups: dict[float | None, list[Row]] = {}
    for eta, row in best.items():
        groups.setdefault(row.more["equal_to_eta"] if is_copy(row, list(best.values())) else eta, []).append(row)
    return list(groups.values())


def is_copy(row: Row, rows: Sequence[Row]) -> bool:
    """Whether this row copies the bound of another η that is among these rows."""
    of, steps = row.more.get("equal_to_eta"), row.more.get("steps")
    label = row.more.get("sampler_label")
    same = [other for other in rows if other.eta == of and other.more.get("sampler_label") == label]
    equal = [other for other in same if other.more.get("steps") == steps]
    return of is not None and any((other.value, other.n) == (row.value, row.n) for other in equal)


def _bounds(chosen: list[list[Row]]) -> str:
    parts, first = [], chosen[0][0]
    for place, group in enumerate(chosen):
        row = group[0]
        value, error, unit = _bits(row)
        at_most = "at most " if row.is_bound and not row.is_infinite else ""
        number = f"{at_most}{plus_minus(value, error)}{'' if place else ' ' + unit}"
        etas = " or ".join(f"{one.eta:g}" for one in group if one.eta is not None)
        names = " = ".join(dict.fromkeys(one.quantity for one in group))
        parts.append(f"{number}{f' with η = {etas}' if etas else ''} ({names}, n = {row.n:,})")
    steps = first.more.get("steps")
    how = "exact" if first.more.get("exact") else "in continuous time" if steps is None else f"in {steps} steps"
    return f"{first.set}: {', '.join(parts)}, {how}."


def _bits(row: Row) -> tuple[float, float, str]:
    """Bits per character where characters are known, otherwise per token."""
    if "bits_per_char" in row.more:
        error = row.more.get("bits_per_char_stderr")
        return row.more["bits_per_char"], math.nan if error is None else error, "bits per character"
    return math.log2(row.value), row.stderr / row.value / math.log(2), "bits per token"


def _references(row: Row) -> list[str]:
    if "unigram_nats" not in row.more:
        return []
    units = row.more["characters"] if "bits_per_char" in row.more else row.more["length"]
    random, unigram = (row.more[name] / math.log(2) / units for name in ("random_nats", "unigram_nats"))
    other = f"{random:.4g} for random tokens, {unigram:.4g} for the token frequencies of {row.more['unigram_of']}"
    return [f"Lower is better. For comparison: {other}."]


def _judged(rows: Sequence[Row]) -> list[str]:
    """Bits per byte of samples and of the held-out text, for each judge."""
    lines = []
    newest = _newest([row for row in rows if row.quantity == "gen_bits_per_byte"])
    for judge in dict.fromkeys(row.more.get("judge_hash") for row in newest):
        here = [row for row in newest if row.more.get("judge_hash") == judge]
        drawn, texts = ([row for row in here if (row.set == SAMPLES) is kind] for kind in (True, False))
        if drawn:
            most = max(row.more.get("steps") or 0 for row in drawn)
            best = next(row for row in drawn if (row.more.get("steps") or 0) == most)
            parts = [f"samples ({best.more['sampler']}) {plus_minus(best.value, best.stderr)}"]
            parts += [f"{ITSELF} {plus_minus(row.value, row.stderr)}" for row in texts[-1:]]
            name = best.more.get("judge", {}).get("name", judge)
            lines.append(f"Judge {name}, bits per byte: {', '.join(parts)} (n = {best.n:,}).")
    return lines
