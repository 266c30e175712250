"""docs/paper_map.md agrees with the paper, the citations in the source, the functions and the test files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "paper_map.md"
SOURCES = sorted((ROOT / "src" / "hopflow").rglob("*.py"))

# Kind, printed number and LaTeX label ("-": none) of what the paper states, in print order.
# Equations without a label are left out from Eq. (19) on; the last one is Eq. (184).
PAPER = """
Eq. 1 -
Eq. 2 main_flow_def
Eq. 3 pos_independ
Eq. 4 convex_cond_flow
Eq. 5 convex_cond_velocity
Eq. 6 uncond_vect_field
Eq. 7 optimization_objective
Eq. 8 Kantorovich
Eq. 9 dynamic_formulation
Eq. 10 categorical_dynamic_formulation
Eq. 11 discrete_dynamic_formulation
Theorem 3.1 theorem1
Eq. 12 -
Cor. 3.2 coro1
Cor. 3.3 coro2
Remark 3.4 -
Theorem 4.1 theorem2
Eq. 13 -
Theorem 4.2 corollary4
Eq. 14 NNL_bound
Eq. 15 first_B
Prop. 4.3 proposition2
Eq. 16 -
Prop. 4.4 proposition3
Eq. 17 alt_bound
Eq. 18 special_flow
Table 1 toy-OT
Table 2 large_scale_table
Table 3 tab:dfm_diff_gpt2_v2
Table 4 combined-timing
Eq. 22 flag1
Eq. 42 big_term
Eq. 47 prob_jump_hmd1
Eq. 49 prob_jump_hmdk
Eq. 52 prob_jump_hmd0
Eq. 62 forward_KL_paths
Eq. 63 backward_KL_paths
Eq. 65 total_eq
Prop. A.1 proposition1
Eq. 66 full_kl
Eq. 86 init_ineq
Eq. 97 NNL_bound_closer
Eq. 98 NLL_rebuttal
Eq. 120 pre_md4
Theorem A.2 precise-perplexity-theorem
Eq. 125 The_perplexity
Prop. A.3 -
Prop. A.4 -
Eq. 145 start_eq
Eq. 159 loglikelighood_eq
Alg. 1 alg3
Alg. 2 alg1
Alg. 3 alg2
Table 5 toy-OT2
Table 6 alt_bound_table
Table 7 5.3_bound_results
Table 8 5.4_bound_results
Table 9 5.4_bound_results_exacttesting
Table 10 tab:gpt2_results_multiline
Table 11 tab:llama_results_multiline
Table 12 tab:entropy_results_multiline
Table 13 tab:bound_tightness
Table 14 tab:transport_costs
Table 15 tab:exactot-512
Table 16 tab:metrics-512
Table 17 tab:exactot-4096
Table 18 tab:metrics-4096
Table 19 tab:gpt2_256masks
Table 20 tab:llama_256masks
Table 21 tab:bounds_256masks
Table 22 tab:learned_cost_gen
Table 23 tab:learned_cost_bound
Table 24 continuous_table
Eq. 180 appendix_first
Eq. 182 appendix_transition_mechanism
Eq. 183 appendix_disc_lin_ode
Eq. 184 appendix_ode
"""
LAST_EQUATION = 184

# Sections need no row; one that has a row, or is cited, is cited like this.
SECTIONS = """
Section 2 AppendixD
Section 2.1 -
Section 2.1.1 -
Section 2.1.2 cpf
Section 2.1.3 -
Section 2.2 OT-background
Section 3 OT-section
Section 3.1 -
Section 3.2 -
Section 4 -
Section 4.1 bound_sec
Section 4.2 alt_bound_sec
Section 5 -
Section 5.1 toy_datasets
Section 5.2 perp_exp_sec
Section 5.3 exp_OT_l2
Section 5.4 -
Section 5.5 -
App. A A
App. A.1 A0
App. A.2 A1
App. A.3 A2
App. A.3.1 special_masked_case
App. A.4 A3
App. A.5 A4
App. A.6 A5
App. A.7 A6
App. A.8 A7
App. B B
App. C C
App. C.1 C1
App. C.2 C2-pre
App. C.3 C2
App. C.4 C3
App. C.5 C4
App. C.6 C5
App. C.7 C6
App. C.8 C7
App. C.9 C8
App. D DiscreteDiffusion
App. D.1 appendix_gen_inst
App. D.2 -
App. E E
"""

Key = tuple[str, str]
"""Kind and printed number."""


def read(table: str) -> dict[Key, str | None]:
    rows = [line.split() for line in table.split("\n") if line]
    return {(kind, number): None if label == "-" else label for kind, number, label in rows}


REQUIRED = read(PAPER)
PRINTED = REQUIRED | read(SECTIONS)

# -- citations -----------------------------------------------------------------------------------------------

KINDS = {
    "Th": "Theorem",
    "Pr": "Prop.",
    "Co": "Cor.",
    "Re": "Remark",
    "Eq": "Eq.",
    "Al": "Alg.",
    "Ta": "Table",
    "Ap": "App.",
    "Se": "Section",
}
GAP = r"[\s#]"  # a citation may be wrapped, in a docstring or in a comment
WORD = re.compile(
    rf"\b(?:(Equations?{GAP}|Eqs?\.)|(Theorems?|Thms?\.|Propositions?|Props?\.|Corollary|Corollaries|Cors?\.|Remarks?|"
    rf"Algorithms?|Algs?\.|Tables?|Appendix|Appendices|Apps?\.|Sections?|Secs?\.){GAP}){GAP}*"
)
NUMBER = rf"\(?([A-E](?:\.\d+)+|\d+(?:\.\d+)*|[A-E](?={GAP}*\[))\)?"
LABEL = rf"(?:(?:[ ]|\n{GAP}*)?\[([^\]\s]+)\])"
ITEM = re.compile(rf"{NUMBER}{LABEL}?|{LABEL}")
JOIN = re.compile(rf"{GAP}*(?:,{GAP}*and\b|,|and\b|(?P<to>–|to\b)){GAP}*")


@dataclass(frozen=True)
class Citation:
    kind: str
    number: str
    label: str | None
    line: int

    @property
    def key(self) -> Key:
        return self.kind, self.number

    def __str__(self) -> str:
        return show(self.key, self.label)


def show(key: Key, label: str | None) -> str:
    kind, number = key
    number = f"({number})" if kind == "Eq." else number
    return " ".join(part for part in (kind, number, f"[{label}]" if label else "") if part)


def citations(text: str) -> Iterator[Citation]:
    """`Eq. (15) [first_B]`, `Prop. A.3`, `Theorems 4.1 [theorem2] and 4.2 [corollary4]`, `Eqs. (19)–(21)`."""
    for word in WORD.finditer(text):
        name = (word[1] or word[2]).strip(" \n#.")
        kind, plural = KINDS[name[:2]], name.endswith("s")
        line = text.count("\n", 0, word.start()) + 1
        at, since = word.end(), ""
        while item := ITEM.match(text, at):
            number, label, alone = item[1] or "", item[2], item[3]
            if since.isdigit() and number.isdigit():  # a range
                yield from (Citation(kind, str(n), None, line) for n in range(int(since) + 1, int(number)))
            yield Citation(kind, number, label or alone, line)
            join = JOIN.match(text, item.end())
            if not plural or not join or alone:
                break
            at, since = join.end(), number if join["to"] else ""


def citation_errors(text: str, name: str, entries: dict[Key, str | None]) -> list[str]:
    """Each citation that the map does not know, or knows by another number or label."""
    homes = {label: key for key, label in entries.items() if label}
    errors = []
    for cited in citations(text):
        home = homes.get(cited.label or "")
        if cited.key in entries and entries[cited.key] == cited.label:
            continue
        if home:
            reason = f"the map has {show(home, cited.label)}"
        elif cited.key in entries:
            reason = f"the map has {show(cited.key, entries[cited.key])}"
        else:
            reason = "not in the map"
        errors.append(f"{name}:{cited.line}: {cited}: {reason}")
    return errors


# -- the map -------------------------------------------------------------------------------------------------

COLUMNS = ["statement", "says", "function", "test", "recipe"]


@dataclass(frozen=True)
class Row:
    line: int
    cells: dict[str, str]

    def names(self, column: str) -> list[str]:
        """What is in backticks; `eta=1` is no name."""
        return [name for name in re.findall(r"`([^`]+)`", self.cells.get(column, "")) if "=" not in name]


def rows(text: str) -> list[Row]:
    found: list[Row] = []
    header: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if not header:
            header = cells
        elif not all(set(cell) <= set("-:") for cell in cells):
            found.append(Row(number, dict(zip(header, cells, strict=True))))
    return found


def statements(text: str) -> list[tuple[Row, dict[Key, str | None]]]:
    """Each row with the statements in its first cell; a label given beside a range belongs to its number."""
    found = []
    for row in rows(text):
        if "statement" not in row.cells:
            continue
        own: dict[Key, str | None] = {}
        for cited in citations(row.cells["statement"]):
            own[cited.key] = cited.label or own.get(cited.key)
        found.append((row, own))
    return found


def entries(text: str) -> dict[Key, str | None]:
    return {key: label for _, own in statements(text) for key, label in own.items()}


def map_errors(text: str) -> list[str]:
    """Missing rows, rows that say otherwise than the paper, rows given twice, empty cells."""
    errors, seen = [], set()
    for row, own in statements(text):
        if list(row.cells) != COLUMNS or not all(row.cells.values()) or not own:
            errors.append(f"line {row.line}: a row cites a statement and fills the columns {', '.join(COLUMNS)}")
        for key, label in own.items():
            unlabelled = key[0] == "Eq." and 18 < int(key[1]) <= LAST_EQUATION
            if key not in PRINTED and not unlabelled:
                errors.append(f"line {row.line}: {show(key, label)} is not in the paper")
            elif label != PRINTED.get(key):
                errors.append(f"line {row.line}: {show(key, label)} is {show(key, PRINTED.get(key))} in the paper")
            if key in seen:
                errors.append(f"line {row.line}: {show(key, label)} has another row")
            if key[0] in ("Theorem", "Prop.", "Cor.") and not (row.names("function") and row.names("test")):
                errors.append(f"line {row.line}: {show(key, label)} needs a function and a test")
            seen.add(key)
    return errors + [f"{show(key, label)} has no row" for key, label in REQUIRED.items() if key not in seen]


def resolve(name: str) -> object:
    """What `exact.PathKL.bound` names below hopflow: modules first, then attributes and fields."""
    thing: object = import_module("hopflow")
    path = "hopflow"
    for part in name.split("."):
        path = f"{path}.{part}"
        if hasattr(thing, part):
            thing = getattr(thing, part)
        elif part in getattr(thing, "__dataclass_fields__", {}):
            thing = thing.__dataclass_fields__[part]  # type: ignore[attr-defined]
        else:
            thing = import_module(path)
    return thing


def function_errors(text: str) -> list[str]:
    errors = []
    for row in rows(text):
        for name in row.names("function"):
            try:
                resolve(name)
            except ImportError:
                errors.append(f"line {row.line}: hopflow.{name} does not exist")
    return errors


def file_errors(text: str, root: Path) -> list[str]:
    return [
        f"line {row.line}: {name} does not exist"
        for row in rows(text)
        for name in row.names("test")
        if not (name.startswith("tests/") and (root / name).is_file())
    ]


# -- the project's own files ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    return MAP.read_text(encoding="utf-8")


def test_the_source_cites_what_the_map_has_by_the_same_number_and_label(page):
    known = entries(page)
    errors = [
        error
        for file in SOURCES
        for error in citation_errors(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)), known)
    ]
    assert errors == []


def test_the_source_does_cite_the_paper():
    found = [cited for file in SOURCES for cited in citations(file.read_text(encoding="utf-8"))]
    assert len({cited.key for cited in found}) > 20


def test_the_map_has_a_row_for_every_statement_as_the_paper_prints_it(page):
    assert map_errors(page) == []


def test_every_function_in_the_map_exists(page):
    assert sum(len(row.names("function")) for row in rows(page)) > 50
    assert function_errors(page) == []


def test_every_test_in_the_map_exists(page):
    assert sum(len(row.names("test")) for row in rows(page)) > 20
    assert file_errors(page, ROOT) == []


@pytest.mark.parametrize("file", sorted(MAP.parent.glob("*.md")), ids=lambda file: file.name)
def test_the_prose_of_the_docs_cites_like_the_source(file, page):
    text = file.read_text(encoding="utf-8")
    prose = "\n".join("" if line.startswith("|") else line for line in text.split("\n"))
    assert citation_errors(prose, f"docs/{file.name}", entries(page)) == []


# -- each check can fail -------------------------------------------------------------------------------------

HEADER = "| statement | says | function | test | recipe |\n|---|---|---|---|---|\n"
KNOWN: dict[Key, str | None] = {
    ("Theorem", "4.1"): "theorem2",
    ("Theorem", "4.2"): "corollary4",
    ("Eq.", "13"): None,
    ("Eq.", "15"): "first_B",
    ("App.", "A.4"): "A3",
    ("Prop.", "A.3"): None,
}


def row_of(statement: str, function: str = "`flow.Flow`", test: str = "`tests/conftest.py`") -> str:
    return f"{HEADER}| {statement} | says | {function} | {test} | — |\n"


def whole() -> str:
    """A map without errors."""
    return HEADER + "".join(
        f"| {show(key, label)} | says | `flow.Flow` | `tests/conftest.py` | — |\n" for key, label in REQUIRED.items()
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Eq. (15) [first_B]", [("Eq.", "15", "first_B")]),
        ("Eq.(15)", [("Eq.", "15", None)]),
        ("Equation (15) and Alg. 2 [alg1].", [("Eq.", "15", None), ("Alg.", "2", "alg1")]),
        ("Prop. A.3, proved there", [("Prop.", "A.3", None)]),
        ("Proposition A.3\n", [("Prop.", "A.3", None)]),
        ("Section 3.1: Theorem 3.1 [theorem1]", [("Section", "3.1", None), ("Theorem", "3.1", "theorem1")]),
        ("Section 2.1, (i)", [("Section", "2.1", None)]),
        ("Table 13 [tab:bound_tightness]", [("Table", "13", "tab:bound_tightness")]),
        ("App. C [C]; App. A.4 [A3]", [("App.", "C", "C"), ("App.", "A.4", "A3")]),
        ("App. A.3.1 [special_masked_case]", [("App.", "A.3.1", "special_masked_case")]),
        ("Alg. [alg2]", [("Alg.", "", "alg2")]),
        ("# see Theorem\n    # 4.1 [theorem2]", [("Theorem", "4.1", "theorem2")]),
        ("Theorem A.2\n    [precise-perplexity-theorem]", [("Theorem", "A.2", "precise-perplexity-theorem")]),
        ("Theorems 4.1 [theorem2] and 4.2", [("Theorem", "4.1", "theorem2"), ("Theorem", "4.2", None)]),
        ("Corollaries 3.2 and 3.3 hold", [("Cor.", "3.2", None), ("Cor.", "3.3", None)]),
        ("Eqs. (19)–(21), (23)", [("Eq.", n, None) for n in ("19", "20", "21", "23")]),
        ("Sections 3.1 to 3.2", [("Section", "3.1", None), ("Section", "3.2", None)]),
        ("Table 3, 4 rows; Table(2); a table 5; the Tables", [("Table", "3", None)]),
    ],
)  # fmt: skip
def test_citations_are_read_in_every_spelling(text, found):
    assert [(cited.kind, cited.number, cited.label) for cited in citations(text)] == found


def test_a_citation_that_agrees_with_the_map_passes():
    text = "Eq. (15) [first_B], Eq. (13), App. A.4 [A3], Prop. A.3, Theorems 4.1 [theorem2] and 4.2 [corollary4]"
    assert citation_errors(text, "a.py", KNOWN) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Eq. (16) [first_B]", "Eq. (16) [first_B]: the map has Eq. (15) [first_B]"),
        ("App. A.3 [A3]", "App. A.3 [A3]: the map has App. A.4 [A3]"),
        ("Cor. 4.2 [corollary4]", "Cor. 4.2 [corollary4]: the map has Theorem 4.2 [corollary4]"),
        ("Eq. (15)", "Eq. (15): the map has Eq. (15) [first_B]"),
        ("Theorems 4.1 [theorem2] and 4.2", "Theorem 4.2: the map has Theorem 4.2 [corollary4]"),
        ("Eq. (15) [second_B]", "Eq. (15) [second_B]: the map has Eq. (15) [first_B]"),
        ("Eq. (13) [thirteen]", "Eq. (13) [thirteen]: the map has Eq. (13)"),
        ("App. [A3]", "App. [A3]: the map has App. A.4 [A3]"),
        ("Prop. A.7", "Prop. A.7: not in the map"),
        ("Table 9 [nine]", "Table 9 [nine]: not in the map"),
    ],
)
def test_a_wrong_number_a_wrong_label_a_bare_number_and_an_unknown_statement_are_found(text, error):
    assert citation_errors(f'"""Doc.\n\nSee {text}"""', "a.py", KNOWN) == [f"a.py:3: {error}"]


def test_a_whole_map_has_no_errors():
    assert map_errors(whole()) == []
    assert function_errors(whole()) == []
    assert file_errors(whole(), ROOT) == []


@pytest.mark.parametrize(
    "statement",
    [
        "Theorem 3.1 [theorem1]",
        "Prop. A.4",
        "Cor. 3.3 [coro2]",
        "Alg. 3 [alg2]",
        "Table 1 [toy-OT]",
        "Eq. (13)",
    ],
)
def test_a_missing_row_of_the_paper_map_is_found(statement):
    lines = [line for line in whole().split("\n") if f"| {statement} |" not in line]
    assert map_errors("\n".join(lines)) == [f"{statement} has no row"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("Table 15 [tab:bound_tightness]", "is Table 15 [tab:exactot-512] in the paper"),
        ("Eq. (66)", "is Eq. (66) [full_kl] in the paper"),
        ("Eq. (67) [full_kl]", "is Eq. (67) in the paper"),
        ("Theorem 4.2", "is Theorem 4.2 [corollary4] in the paper"),
        ("App. A.3 [A3]", "is App. A.3 [A2] in the paper"),
        ("Prop. 5.1", "is not in the paper"),
        ("Eq. (185)", "is not in the paper"),
    ],
)
def test_a_row_that_says_otherwise_than_the_paper_is_found(wrong, reason):
    assert f"line 3: {wrong} {reason}" in map_errors(row_of(wrong))


def test_a_label_inside_a_range_belongs_to_its_number():
    known = entries(row_of("Eq. (22) [flag1], Eqs. (19)–(36)"))
    assert len(known) == 18
    assert known["Eq.", "22"] == "flag1"
    assert known["Eq.", "23"] is None
    assert not [error for error in map_errors(row_of("Eq. (22) [flag1], Eqs. (19)–(36)")) if error.startswith("line")]


def test_a_second_row_for_a_statement_of_the_paper_is_found():
    assert map_errors(whole() + "| Alg. 2 [alg1] | says | — | — | — |\n") == [
        f"line {len(REQUIRED) + 3}: Alg. 2 [alg1] has another row"
    ]


@pytest.mark.parametrize("row", ["| Eq. (19) | says | | — | — |", "| a lemma | says | — | — | — |"])
def test_an_empty_cell_and_a_row_without_a_statement_are_found(row):
    (error,) = map_errors(whole() + row + "\n")
    assert "fills the columns" in error


@pytest.mark.parametrize("lacking", [{"function": "—"}, {"test": "later"}])
def test_a_theorem_without_a_function_or_a_test_is_found(lacking):
    assert "line 3: Prop. A.3 needs a function and a test" in map_errors(row_of("Prop. A.3", **lacking))


@pytest.mark.parametrize("name", ["exact.no_such_thing", "no_module.thing", "nll_bounds", "exact.PathKL.no_field"])
def test_a_function_that_does_not_exist_is_found(name):
    assert function_errors(row_of("Prop. A.3", function=f"`{name}`")) == [f"line 3: hopflow.{name} does not exist"]


def test_functions_methods_fields_and_modules_are_found():
    names = "`exact.kl_bound`, `exact.PathKL.bound`, `exact.PathKL.forward`, `evaluation.tightness`, `eta=1`"
    assert function_errors(row_of("Prop. A.3", function=names)) == []


@pytest.mark.parametrize("name", ["tests/theory/test_nothing.py", "src/hopflow/flow.py", "conftest.py"])
def test_a_test_that_does_not_exist_is_found(name):
    assert file_errors(row_of("Prop. A.3", test=f"`{name}`"), ROOT) == [f"line 3: {name} does not exist"]
