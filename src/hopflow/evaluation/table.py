"""The page of an evaluation, as markdown or as text for a terminal: the verdict, then tables."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from ..bounds.estimate import plus_minus
from ..bounds.reversal_estimate import LIGHT_TAILED
from .likelihood import CONTINUOUS
from .metrics import headings, is_shown
from .rows import ITSELF, SAMPLES, TRANSPORT, Row
from .text_table import fits, text_table, wrapped_lines
from .transport_table import transport_table
from .verdict import is_copy, verdict

JUDGED = {"gen_ppl": "gen_ppl", "gen_ppl_mean": "gen_ppl_mean", "gen_bits_per_byte": "bits/byte"}
"""Numbers of a judge that are shown, and their headings; eval.json has all."""
HIDDEN = ("gen_nats",)
"""Numbers of a judge that are only in eval.json."""
DRAWS, SEQUENCES = "s.e. (draws)", "s.e. (sequences)"
PARTS = ("nats_draw_stderr", "nats_sequence_stderr")
"""The two parts of the standard error of nats."""


def page(rows: Sequence[Row], remarks: Iterable[str] = (), width: int | None = None) -> str:
    """The verdict, a table of bounds per set, samples next to text, and transport; markdown, or text of this width."""
    parts = [] if width else [f"# Evaluation of {rows[0].run}" if rows else "# Evaluation"]
    parts += ["\n".join(wrapped(line, width) for line in verdict(rows))] if verdict(rows) else []
    likelihoods = [row for row in rows if row.unit == "ppl"]
    for (name, step, *_), here in _grouped(likelihoods, "set", "checkpoint", "data_sha256", "length", "detokenised"):
        parts += [wrapped(f"## {name}{_step(step)}", width), *_likelihoods(here, width)]
    transport = [row for row in rows if row.set == TRANSPORT]
    points = [row for row in rows if row.unit != "ppl" and row.set != TRANSPORT]
    for (step,), here in _grouped(points, "checkpoint"):
        parts += [wrapped(f"## samples and held-out text{_step(step)}", width), *_points(here, width)]
    for (step, *_), here in _grouped(transport, "checkpoint", "steps", "length", "data_sha256", "seed"):
        head, lines, notes = transport_table(here, full=width is None)
        parts += [f"## transport per sequence{_step(step)}", *([rendered(head, lines, width)] if lines else [])]
        parts += [wrapped(note, width) for note in notes]
    parts += [wrapped(f"{line[0].upper()}{line[1:]}.", width) for line in remarks]
    return "\n\n".join(parts) + "\n"


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A markdown table with aligned columns."""
    widths = [max(len(line[place]) for line in (columns, *lines)) for place in range(len(columns))]

    def cells(line: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"

    return "\n".join([cells(columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(cells, lines)])


def rendered(columns: Sequence[str], lines: Sequence[Sequence[str]], width: int | None, names: int = 1) -> str:
    """A table as markdown, or as text of this width."""
    return grid(columns, lines) if width is None else text_table(columns, lines, width, names)


def wrapped(text: str, width: int | None) -> str:
    """A paragraph, broken into lines of this width."""
    return text if width is None else "\n".join(wrapped_lines(text, width, "  " * text.startswith("- ")))


def constant(
    lines: Sequence[dict[str, str]], among: Sequence[str] | None = None
) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Lines without the columns that have one value in all of them, and these columns with their value."""
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
    """The table of the bounds of one set, and the notes under it; equal bounds of several η share a line."""
    shown = [row for row in rows if not is_copy(row, rows)]
    exact, bounds = all(row.more.get("exact") for row in shown), all(row.is_bound for row in shown)
    lines = [_likelihood(row, [other for other in rows if _copies(other, row, rows)]) for row in shown]
    if width is not None:
        _shorten(lines, shown)
    lines, same = constant(lines, ("n", "is"))
    known = {} if exact else {"sampler": "bounds the sampler with"}
    known |= {"perplexity": "perplexity bound"} if bounds or (width is not None and not exact) else {}
    table = rendered([known.get(name, name) for name in lines[0]], [list(line.values()) for line in lines], width, 2)
    remarks = [wrapped(f"{remark}.", width) for remark in dict.fromkeys(row.remark for row in shown) if remark]
    return [table, wrapped(_origin(shown, same, full=width is None), width), *remarks]


def _shorten(lines: list[dict[str, str]], rows: Sequence[Row]) -> None:
    """Drop columns that a terminal has no room for; they are in eval.md, or in the notes under the table."""
    per_character = any("bits_per_char" in row.more for row in rows)
    couplings = {_name(row).partition(" ")[2] for row in rows if "ot_n" in row.more}
    kinds = {line["kind"] for line in lines}
    for line, row in zip(lines, rows, strict=True):
        line["quantity"] = row.quantity if len(couplings) == 1 and "ot_n" in row.more else line["quantity"]
        line["quantity"] += {"not a bound": " (not a bound)", "exact": " (exact)" * (len(kinds) > 1)}.get(
            line.pop("kind"), ""
        )
        line["sampler"] = line["sampler"].replace(CONTINUOUS, "continuous")
        line["n"] = f"{row.n:,} × {row.more['ot_n']}" if "ot_n" in row.more else line["n"]
        for name in ("nats/sequence" if per_character else "bits/char", DRAWS, SEQUENCES):
            line.pop(name)


def _copies(row: Row, of: Row, rows: Sequence[Row]) -> bool:
    same = all(row.more.get(name) == of.more.get(name) for name in ("steps", "sampler_label"))
    equal = same and row.more.get("equal_to_eta") == of.eta
    return equal and "ot_n" not in of.more and of.quantity != "bk" and is_copy(row, rows)


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
        DRAWS: draws,
        SEQUENCES: sequences,
        "n": f"{row.n:,} minibatches" if "ot_n" in more else f"{row.n:,}",
        "kind": "exact" if more.get("exact") else "a bound" if row.is_bound else "not a bound",
    }


def _name(row: Row) -> str:
    if row.paths:
        return f"{row.quantity} ({row.paths})"
    if "ot_n" not in row.more:
        return row.quantity
    eps = f", eps {row.more['eps']:g}" if "eps" in row.more else ""
    return f"{row.quantity} ({row.more['coupling']}, {row.more.get('cost', '-')}, n = {row.more['ot_n']}{eps})"


def _origin(rows: Sequence[Row], same: dict[str, str], full: bool) -> str:
    """The notes under the table of a set."""
    row = rows[0]
    more = row.more
    notes = [f"{more['of']:,} sequence{'s' * (more['of'] != 1)} of {more['length']} tokens"]
    notes = [f"n = {same['n']} of {notes[0]}"] if "n" in same else notes
    notes += [f"each is {same['kind']}"] if "kind" in same else []
    if not full and (coupled := dict.fromkeys(_name(one).partition(" ")[2] for one in rows if "ot_n" in one.more)):
        notes.append(f"coupled minibatches × rows: {', '.join(name.strip('()') for name in coupled)}")
    notes += [row.dtype, f"weights: {more['weights']}"]
    if "data_sha256" in more:
        notes.append(f"text: {more['detokenised']}, {more['split']}, sha256 of its tokens {more['data_sha256'][:12]}")
    notes += _heavy(rows)
    if more.get("trained_on"):
        notes.append("the run was trained on this text")
    notes.append("± is the standard error" + ("; the columns s.e. are its two parts, in nats" if full else ""))
    return f"{'; '.join(notes)}."


def _heavy(rows: Sequence[Row]) -> list[str]:
    """A note on br where few of its paths have most of the weight."""
    found = [row for row in rows if row.more.get("paths", 1) > 1 and not row.is_infinite]
    for row in sorted(found, key=lambda row: row.more["effective_paths"] / row.more["paths"]):
        paths, count = row.more["paths"], row.more["effective_paths"]
        if count < LIGHT_TAILED * paths:
            return [f"br: the {paths} paths count as {count:.1f} effective paths; paths={8 * paths} would lower br"]
    return []


def _points(rows: Sequence[Row], width: int | None) -> list[str]:
    """The table of samples: one line for each sampler and temperature, one column for each metric and judge.

    On a terminal it is transposed where that fits.
    """
    several = len({_judge(row) for row in rows if _judge(row)}) > 1
    columns: dict[tuple[str, str], str] = {}
    for quantity, heading in _columns(rows, width is None).items():
        for row in rows:
            if row.quantity == quantity:
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
    transposed = [list(line) for line in zip(*table, strict=True)]
    if width is not None and fits(transposed, width):
        table = transposed
    equal = f"The same for all: {', '.join(f'{name} {value}' for name, value in same.items())}." if same else ""
    notes = [text for text in (equal, *_judges(rows, several, width is None), *_unbounded(rows)) if text]
    return [rendered(table[0], table[1:], width), wrapped(" ".join(notes), width)]


def _columns(rows: Sequence[Row], full: bool) -> dict[str, str]:
    """Heading by quantity: the numbers of a judge, then metrics; a quantity that is in no list has its own name."""
    judged = {name: heading for name, heading in JUDGED.items() if full or name != "gen_ppl_mean"}
    known = {*JUDGED, *HIDDEN, *headings()}
    others = {row.quantity: row.quantity for row in rows if row.quantity not in known and is_shown(row.quantity)}
    return {**judged, **headings(), **others}


def _unbounded(rows: Sequence[Row]) -> list[str]:
    """A note on samplers that b0, bn and br do not bound, and the likelihood of planners."""
    others = [row for row in rows if "sampler_label" in row.more and not row.more.get("bounded")]
    labels = dict.fromkeys(str(row.more["sampler_label"]) for row in others)
    planned = " `planned` is the likelihood of these samples." if any("planned" in row.more for row in others) else ""
    return [f"bn and br bound Euler steps on an even grid, not: {'; '.join(labels)}.{planned}"] if labels else []


def _judge(row: Row) -> str:
    """A mark for the judge and whether it scored token ids; empty for a number without judge."""
    mark = str(row.more.get("judge_hash", ""))[:6]
    return mark if row.more.get("retokenised", True) else f"{mark} ids"


def _judges(rows: Sequence[Row], several: bool, full: bool) -> list[str]:
    notes = {}
    average = "gen_ppl is over all tokens" + ", gen_ppl_mean the mean of texts" * full
    for row in rows:
        if mark := _judge(row):
            how = "its own tokens" if row.more["retokenised"] else "the sampled token ids"
            judge = row.more["judge"]
            name = f"Judge{f' [{mark}]' if several else ''}: {judge['name']}"
            notes[mark] = f"{name}, {judge['precision']}, on {how}; {average}."
    return [*notes.values(), "Entropy is that of the tokens within a sequence; hops are token changes per sample."]


def _pm(value: float, error: float | None) -> str:
    return plus_minus(value, math.nan if error is None else error)
