"""The paper's tables about text in its own row order, with the values of the study next to the paper's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...recipes.paper_numbers import paper_values
from .cell import Cell
from .markdown import section, show, table
from .protocol import Protocol
from .statistics import Cells, bound_mean, entropy_mean, judged_mean, tightest_reversal

PAPER_SETS = {"wikitext-2": "wikitext2", "wikitext-103": "wikitext103"}
"""How the paper's numbers name the sets."""
PAPER_JUDGES = {"ar": "gpt2-large", "smollm2": "llama-3.1-8b"}
"""The paper's judge that stands in the place of each judge of the study."""
JUDGE_NAMES = {"gpt2-large": "GPT-2 Large", "llama-3.1-8b": "Llama 3.1 8B"}
GENERATIVE_TABLES = {
    "ar": "Tables 3 [tab:dfm_diff_gpt2_v2] and 10 [tab:gpt2_results_multiline]",
    "smollm2": "Table 11 [tab:llama_results_multiline]",
}
SETS = ("lambada", "wikitext-2", "ptb", "wikitext-103", "lm1b")


@dataclass(frozen=True)
class PaperRow:
    """A row of a table of the paper: its name there, the variant, and values that belong to no recipe."""

    name: str
    variant: str | None = None
    printed: tuple[float, ...] = ()


def _rows(*names: str) -> tuple[PaperRow, ...]:
    return tuple(PaperRow(name, name.lower().replace("-", "_").replace("256masks", "256")) for name in names)


SEDD_ABSORB = PaperRow("SEDD Absorb", None, (67.06, 69.39, 208.67, 69.18, 83.86))
LONG = (
    PaperRow("SEDD", None, (52.18, 42.02, 117.0, 41.83, 80.79)),
    PaperRow("DFM-N", "dfm_n", (53.19, 42.0, 111.58, 41.64, 77.87)),
    PaperRow("GPT2", "ar", (49.02, 37.68, 134.13, 37.55, 58.92)),
)
SINKHORN_AT_TEST = PaperRow("DFM-MMF-Sinkhorn", "dfm_mmf_sinkhorn", (68.63, 69.33, 204.06, 69.21, 83.45))
BAGS = _rows("DFM-B", "DFM-B-Sinkhorn", "DFM-B-Exact", "DFM-B-Exact-EMA")
MASKS = _rows("DFM-S", "DFM-N", "DFM-O")
MULTIMASKS = _rows("DFM-MMF", "DFM-MMF-Sinkhorn", "DFM-MMF-Exact", "DFM-MMF-Exact-EMA")
GENERATIVE = (*BAGS, *MASKS, *MULTIMASKS)
BOUND_TABLES: tuple[tuple[str, tuple[PaperRow, ...]], ...] = (
    ("Table 2 [large_scale_table]: sequences of 1,024 tokens in the paper, of 128 here", LONG),
    ("Table 6 [alt_bound_table]: masks", (SEDD_ABSORB, *_rows("DFM-O", "DFM-N", "DFM-S"))),
    ("Table 7 [5.3_bound_results]: bag of words", BAGS),
    (
        "Table 8 [5.4_bound_results]: multimask, test rows paired by Sinkhorn",
        (*_rows("DFM-O", "DFM-MMF"), SINKHORN_AT_TEST),
    ),
    ("Table 9 [5.4_bound_results_exacttesting]: multimask, test rows paired by OT", (*_rows("DFM-O"), *MULTIMASKS)),
)
ABLATIONS: tuple[tuple[str, tuple[PaperRow, ...]], ...] = (
    (
        "Ablation 1: the OT solver (Tables 15 [tab:exactot-512] and 16 [tab:metrics-512])",
        _rows("DFM-MMF-Sinkhorn", "DFM-MMF-Exact"),
    ),
    (
        "Ablation 2: the OT batch (Tables 17 [tab:exactot-4096] and 18 [tab:metrics-4096])",
        _rows("DFM-MMF-Exact", "DFM-MMF-Exact-OT4096"),
    ),
    (
        "Ablation 3: 256 masks (Tables 19 [tab:gpt2_256masks], 20 [tab:llama_256masks] and 21 [tab:bounds_256masks])",
        _rows("DFM-MMF-256masks", "DFM-MMF-256masks-Exact-EMA"),
    ),
    (
        "Ablation 4: a learned cost (Tables 22 [tab:learned_cost_gen] and 23 [tab:learned_cost_bound])",
        _rows("DFM-MMF-Exact", "DFM-MMF-Learned-Cost"),
    ),
)


def bound_tables(cells: Cells, protocol: Protocol) -> str:
    """The paper's tables of perplexity bounds on the zero-shot sets."""
    if not protocol.zero_shot:
        return ""
    note = (
        f"b0 on {protocol.zero_shot_rows} sequences of each set, exact for ar; the paper's value in parentheses. "
        f"The paper's values of flows with OT are computed on pairs that OT chose, and are not bounds."
    )
    parts = [section(f"#### {title}", _bounds(cells, rows)) for title, rows in BOUND_TABLES]
    return "\n\n".join([note, *parts, _tight_bounds(cells, protocol)])


def _bounds(cells: Cells, rows: Sequence[PaperRow]) -> str:
    shown = []
    for row in rows:
        group = cells.get(row.variant or "", ())
        quantity = "nll" if row.variant == "ar" else "b0"
        paper: tuple[float | None, ...] = row.printed or tuple(paper_value(row.variant, set=name) for name in SETS)
        numbers = zip(SETS, paper, strict=True)
        shown.append((row.name, *(show(bound_mean(group, name, quantity), value) for name, value in numbers)))
    return table(("model", *SETS), shown)


def _tight_bounds(cells: Cells, protocol: Protocol) -> str:
    """b1 and br on the zero-shot sets, where the source is not a mask."""
    kinds: list[tuple[str, Callable[[Sequence[Cell], str], object]]] = [
        ("b1", lambda group, name: bound_mean(group, name, "b1")),
        ("br, K = 1", lambda group, name: tightest_reversal(group, name, 1)),
    ]
    rows = []
    for variant, group in cells.items():
        for kind, measure in kinds:
            numbers = [measure(group, name) for name in protocol.zero_shot]
            if any(number is not None for number in numbers):
                rows.append((variant, kind, *(show(number) for number in numbers)))  # type: ignore[arg-type]
    note = "The paper has no such values: b1 bounds the sampler with η = 1, br that with η = 0."
    return section(
        "#### Other bounds on the same sequences", note, table(("variant", "bound", *protocol.zero_shot), rows)
    )


def generative_tables(cells: Cells, protocol: Protocol) -> str:
    """The paper's tables of generative perplexity by the number of sampling steps; then the same with other η."""
    parts = []
    for judge in protocol.judges:
        paper = JUDGE_NAMES[PAPER_JUDGES[judge]]
        which = GENERATIVE_TABLES[judge]
        rows = [(row.name, *_generative(cells, protocol, row, judge)) for row in GENERATIVE]
        parts.append(
            section(
                f"#### {which}: judge {judge}, in the paper {paper}",
                f"Sampler with η = 0, {protocol.samples} samples per seed; the paper's value of 10,240 samples in "
                f"parentheses. Perplexities per token of different judges are not comparable, their order is.",
                table(("model", *map(str, protocol.sampler_steps)), rows),
            )
        )
    return "\n\n".join([*parts, *_other_etas(cells, protocol)])


def _other_etas(cells: Cells, protocol: Protocol) -> list[str]:
    parts = []
    for eta in protocol.etas:
        for judge in protocol.judges if eta else ():
            rows = [
                (name, *(show(judged_mean(group, judge, steps, eta)) for steps in protocol.sampler_steps))
                for name, group in cells.items()
                if name != "ar"
            ]
            head = ("variant", *map(str, protocol.sampler_steps))
            parts.append(section(f"#### Sampler with η = {eta:g}, judge {judge}", table(head, rows)))
    return parts


def _generative(cells: Cells, protocol: Protocol, row: PaperRow, judge: str) -> list[str]:
    group = cells.get(row.variant or "", ())
    return [
        show(
            judged_mean(group, judge, steps),
            paper_value(row.variant, quantity="gen_ppl", judge=PAPER_JUDGES[judge], steps=steps),
        )
        for steps in protocol.sampler_steps
    ]


def entropy_table(cells: Cells, protocol: Protocol) -> str:
    """The paper's table of the entropy of the samples, in bits."""
    rows = [(row.name, *_entropy(cells, protocol, row)) for row in GENERATIVE]
    note = "Bits per token of the token frequencies within a sample, η = 0; the paper's value in parentheses."
    return section(
        "#### Table 12 [tab:entropy_results_multiline]: entropy",
        note,
        table(("model", *map(str, protocol.sampler_steps)), rows),
    )


def _entropy(cells: Cells, protocol: Protocol, row: PaperRow) -> list[str]:
    group = cells.get(row.variant or "", ())
    return [
        show(entropy_mean(group, steps), paper_value(row.variant, quantity="entropy_bits", steps=steps))
        for steps in protocol.sampler_steps
    ]


def ablation_tables(cells: Cells, protocol: Protocol) -> str:
    """The ablations, samples first and bounds after them."""
    parts = []
    for title, chosen in ABLATIONS:
        rows = [
            (row.name, f"{judge} ({JUDGE_NAMES[PAPER_JUDGES[judge]]})", *_generative(cells, protocol, row, judge))
            for judge in protocol.judges
            for row in chosen
        ]
        rows += [(row.name, "entropy, bits", *_entropy(cells, protocol, row)) for row in chosen]
        samples = table(("model", "judge", *map(str, protocol.sampler_steps)), rows)
        bounds = _bounds(cells, chosen) if protocol.zero_shot else ""
        parts.append("\n\n".join(part for part in (f"#### {title}", samples, bounds) if part))
    return "\n\n".join(parts)


def paper_value(variant: str | None, **keys: object) -> float | None:
    """The paper's value of a recipe with these facts; a name of a set is that of the study."""
    if "set" in keys:
        keys["set"] = PAPER_SETS.get(str(keys["set"]), keys["set"])
    for fact in paper_values():
        if fact["recipe"] == variant and all(fact.get(key) == value for key, value in keys.items()):
            return float(fact["value"])
    return None
