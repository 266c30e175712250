"""Tables: rows of an evaluation as markdown, or as text that fits a terminal; both begin with the verdict."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ..estimate import plus_minus
from ..reversal import LIGHT_TAILED
from .frontier import ITSELF, SAMPLES
from .likelihood import CONTINUOUS
from .rows import TRANSPORT, Row
from .text_table import fits, text_table, wrapped_lines
from .transport_table import transport_table
from .verdict import is_copy, verdict

SHOWN = {
    "gen_ppl": "gen_ppl",
    "gen_ppl_mean": "gen_ppl_mean",
    "gen_bits_per_byte": "bits/byte",
    "entropy_bits": "entropy, bits",
    "distinct_2": "distinct 2-grams",
    "repeated_4": "repeated 4-grams",
    "jumps": "hops",
    "calls": "network calls",
}
"""Of the samples' numbers those that are shown, and their headings; the file holds all."""
PARTS = ("nats_draw_stderr", "nats_sequence_stderr")
"""Of the error of nats."""


def page(rows: Sequence[Row], remarks: Iterable[str] = (), width: int | None = None) -> str:
    """The verdict, likelihoods set by set, then samples beside texts; markdown, or text of this width."""
    parts = [] if width else [f"# Evaluation of {rows[0].run}" if rows else "# Evaluation"]
    parts += ["\n".join(wrapped(line, width) for line in verdict(rows))] if verdict(rows) else []
    likelihoods = [row for row in rows if row.unit == "ppl"]
    for (name, step, *_), here in _grouped(likelihoods, "set", "checkpoint", "data_sha256", "length", "detokenised"):
        parts += [wrapped(f"## {name}{_step(step)}", width), *_likelihoods(here, width)]
    travelled = [row for row in rows if row.set == TRANSPORT]
    points = [row for row in rows if row.unit != "ppl" and row.set != TRANSPORT]
    for (step,), here in _grouped(points, "checkpoint"):
        parts += [wrapped(f"## samples, and the text to compare them with{_step(step)}", width), *_points(here, width)]
    for (step, *_), here in _grouped(travelled, "checkpoint", "steps", "length", "data_sha256", "seed"):
        head, lines, notes = transport_table(here, full=width is None)
        parts += [f"## transport per sequence{_step(step)}", *([rendered(head, lines, width)] if lines else [])]
        parts += [wrapped(note, width) for note in notes]
    parts += [wrapped(f"{line[0].upper()}{line[1:]}.", width) for line in remarks]
    return "\n\n".join(parts) + "\n"


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A markdown table, its columns in line."""
    widths = [max(len(line[place]) for line in (columns, *lines)) for place in range(len(columns))]

    def drawn(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([drawn(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(drawn, lines)])


def rendered(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int | None, names: int = 1) -> str:
    """Markdown without a width, text that fits one with it."""
    return grid(columns, lines) if width is None else text_table(columns, lines, width, names)


def wrapped(text: str, width: int | None) -> str:
    """A paragraph as lines of this width."""
    return text if width is None else "\n".join(wrapped_lines(text, width, "  " * text.startswith("- ")))


def constant(
    lines: Sequence[dict[str, str]], among: Sequence[str] | None = None
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """The lines without the columns that are the same in all of them, and these columns with their one value."""
    same = {}
    for name in among if among is not None else list(lines[0])[1:]:
        cells = {line[name] for line in lines if name in line} - {"-"}
        if len(cells) == 1 and (len(lines) > 1 or among is not None):
            same[name] = cells.pop()
    return [{name: cell for name, cell in line.items() if name not in same} for line in lines], same


def _grouped(rows: Sequence[Row], *names: str) -> list[tuple[tuple[Any, ...], list[Row]]]:
    found: dict[tuple[Hashable, ...], list[Row]] = {}
    for row in rows:
        content = row.as_json()
        found.setdefault(tuple(content.get(name) for name in names), []).append(row)
    return list(found.items())


def _step(step: int | None) -> str:
    return "" if step is None else f", step {step:,}"


def _likelihoods(rows: Sequence[Row], width: int | None) -> list[str]:
    """A line for every number, and what is said under them; copies by theory share a line."""
    shown = [row for row in rows if not is_copy(row, rows)]
    exact, bounds = all(row.more.get("exact") for row in shown), all(row.is_bound for row in shown)
    lines = [_likelihood(row, [other for other in rows if _copies(other, row, rows)]) for row in shown]
    if width is not None:
        _shorten(lines, shown)
    lines, same = constant(lines, ("n", "is"))
    known = {} if exact else {"sampler": "bounds the sampler with"}
    known |= {"perplexity": "perplexity bound"} if bounds or (width is not None and not exact) else {}
    table = rendered([known.get(name, name) for name in lines[0]], [list(line.values()) for line in lines], width, 2)
    remarks = [wrapped(f"{row.remark}.", width) for row in shown if row.remark]
    return [table, wrapped(_origin(shown, same, full=width is None), width), *remarks]


def _shorten(lines: list[dict[str, str]], rows: Sequence[Row]) -> None:
    """What a terminal does without, because it is said elsewhere: in the files, under the table, by the name."""
    per_character = any("bits_per_char" in row.more for row in rows)
    couplings = {_name(row).partition(" ")[2] for row in rows if "ot_n" in row.more}
    for line, row in zip(lines, rows, strict=True):
        line["quantity"] = row.quantity if len(couplings) == 1 and "ot_n" in row.more else line["quantity"]
        line["quantity"] += " (no bound)" * (line.pop("is") == "no bound")
        line["sampler"] = line["sampler"].replace(CONTINUOUS, "continuous")
        line["n"] = f"{row.n:,} × {row.more['ot_n']}" if "ot_n" in row.more else line["n"]
        for name in ("nats/sequence" if per_character else "bits/char", "draws", "sequences"):
            line.pop(name)


def _copies(row: Row, of: Row, rows: Sequence[Row]) -> bool:
    alike = row.more.get("equal_to_eta") == of.eta and row.more.get("steps") == of.more.get("steps")
    return alike and "ot_n" not in of.more and of.quantity != "bk" and is_copy(row, rows)


def _likelihood(row: Row, copies: Sequence[Row]) -> dict[str, str]:
    more, name = row.more, _name(row)
    sampler = str(more["sampler"])
    if copies:
        name = " = ".join(dict.fromkeys([name, *(_name(copy) for copy in copies)]))
        sampler = sampler.replace(f"{row.eta:g}", " or ".join(f"{one.eta:g}" for one in (row, *copies)), 1)
    bits = _pm(more["bits_per_char"], more.get("bits_per_char_stderr")) if "bits_per_char" in more else "-"
    draws, sequences = ("?" if more[part] is None else f"{more[part]:.2g}" for part in PARTS)
    return {
        "quantity": name,
        "sampler": sampler,
        "perplexity": plus_minus(row.value, row.stderr),
        "bits/char": bits,
        "nats/sequence": _pm(more["nats"], more["nats_stderr"]),
        "draws": draws,
        "sequences": sequences,
        "n": f"{row.n:,} minibatches" if "ot_n" in more else f"{row.n:,}",
        "is": "exact" if more.get("exact") else "a bound" if row.is_bound else "no bound",
    }


def _name(row: Row) -> str:
    if row.paths:
        return f"{row.quantity} ({row.paths})"
    if "ot_n" not in row.more:
        return row.quantity
    eps = f", eps {row.more['eps']:g}" if "eps" in row.more else ""
    return f"{row.quantity} ({row.more['coupling']}, {row.more.get('cost', '-')}, n = {row.more['ot_n']}{eps})"


def _origin(rows: Sequence[Row], same: dict[str, str], full: bool) -> str:
    """What is said under a set's table."""
    row = rows[0]
    more = row.more
    said = [f"{more['of']:,} sequences of {more['length']} tokens"]
    said = [f"n = {same['n']} of {said[0]}"] if "n" in same else said
    said += [f"each is {same['is']}"] if "is" in same else []
    if not full and (coupled := dict.fromkeys(_name(one).partition(" ")[2] for one in rows if "ot_n" in one.more)):
        said.append(f"coupled minibatches × rows: {', '.join(name.strip('()') for name in coupled)}")
    said += [row.dtype, f"weights: {more['weights']}"]
    if "data_sha256" in more:
        said.append(f"text: {more['detokenised']}, {more['split']}, sha256 of its tokens {more['data_sha256'][:12]}")
    said += _heavy(rows)
    if more.get("trained_on"):
        said.append("this is the text that the run was trained on")
    said.append("± is the standard error" + ("; `draws` and `sequences` are its parts, in nats" if full else ""))
    return f"{'; '.join(said)}."


def _heavy(rows: Sequence[Row]) -> list[str]:
    """What is said of br where few of its paths count."""
    found = [row for row in rows if row.more.get("paths", 1) > 1]
    for row in sorted(found, key=lambda row: row.more["effective_paths"] / row.more["paths"]):
        paths, count = row.more["paths"], row.more["effective_paths"]
        if count < LIGHT_TAILED * paths:
            return [f"br: {paths} paths count as {count:.1f}, so that paths={8 * paths} would lower it"]
    return []


def _points(rows: Sequence[Row], width: int | None) -> list[str]:
    """One line for every point of the frontier, one column for every number by every judge.

    On a terminal the other way round, if there are few enough points.
    """
    several = len({_judge(row) for row in rows if _judge(row)}) > 1
    columns: dict[tuple[str, str], str] = {}
    for quantity, heading in SHOWN.items():
        for row in rows:
            if row.quantity == quantity and (width is None or quantity != "gen_ppl_mean"):
                columns[quantity, _judge(row)] = f"{heading} [{_judge(row)}]" if several and _judge(row) else heading
    texts = {row.set for row in rows if row.set != SAMPLES}
    lines = []
    for (name, sampler, temperature, *_), here in _grouped(rows, "set", "sampler", "temperature", "length", "seed"):
        usual = Counter(row.n for row in here).most_common(1)[0][0]
        numbers = {
            (row.quantity, _judge(row)): plus_minus(row.value, row.stderr) + f" (n = {row.n})" * (row.n != usual)
            for row in here
        }
        label = str(sampler) if name == SAMPLES or len(texts) == 1 else f"{ITSELF} ({name})"
        heat = {"temperature": "-" if temperature is None else f"{temperature:g}"}
        values = {heading: numbers.get(column, "-") for column, heading in columns.items()}
        lines.append({"sampler": label, **heat, **values, "n": f"{usual:,}"})
    lines, same = constant(lines, None if len(lines) > 1 else ("temperature", "n"))
    table = [list(lines[0]), *(list(line.values()) for line in lines)]
    turned = [list(line) for line in zip(*table, strict=True)]
    if width is not None and fits(turned, width):
        table = turned
    alike = f"The same for all: {', '.join(f'{name} {value}' for name, value in same.items())}." if same else ""
    notes = [text for text in (alike, *_judges(rows, several, width is None)) if text]
    return [rendered(table[0], table[1:], width), wrapped(" ".join(notes), width)]


def _judge(row: Row) -> str:
    """A mark for the judge and what it was given; none for a number without judge."""
    mark = str(row.more.get("judge_hash", ""))[:6]
    return mark if row.more.get("retokenised", True) else f"{mark} ids"


def _judges(rows: Sequence[Row], several: bool, full: bool) -> list[str]:
    said = {}
    average = "gen_ppl is over all tokens" + ", gen_ppl_mean the mean of texts" * full
    for row in rows:
        if mark := _judge(row):
            how = "its own tokens" if row.more["retokenised"] else "the ids as they were drawn"
            judge = row.more["judge"]
            name = f"Judge{f' [{mark}]' if several else ''}: {judge['name']}"
            said[mark] = f"{name}, {judge['precision']}, on {how}; {average}."
    return [*said.values(), "Entropy is that of the tokens within a sequence; hops are token changes per sample."]


def _pm(value: float, error: float | None) -> str:
    return plus_minus(value, math.nan if error is None else error)
