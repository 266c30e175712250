"""The page: one file that loads nothing, contains every number of report.json, and escapes every text."""

import json
import random
import re
from html.parser import HTMLParser

import pytest
from run_folders import EVALUATION, OT, bound, coupled, frontier, make, step

pytest.importorskip("matplotlib")

from hopflow import report
from hopflow.report.run_data import RunData

HOSTILE = [
    "<script>alert(1)</script></pre>",
    "\x1b[31mred\x1b[0m",
    "שלום עולם",
    "\ud800 alone",
    "```\n</details>",
    "long " * 500,
]


class Reader(HTMLParser):
    """Elements, their attributes, and all text outside of styles and scripts."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text, self._skip = [], "", 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag):
        self._skip -= tag in ("script", "style")

    def handle_data(self, data):
        self.text += "" if self._skip else data


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report on two runs, one with hostile names and texts."""
    home = tmp_path_factory.mktemp("runs")
    metrics = [{**coupled(i), "ot_wait_share": 0.01 + i / 1000} for i in range(50)]
    metrics += [
        coupled(50, **{**EVALUATION, "b0_ppl": 25.0, "jumps": 48.0}),
        step(51, loss=float("nan")),
        coupled(52, **EVALUATION),
    ]
    recipe = {"seed": 0, "data": "<img src=x onerror=alert(1)>.txt"}
    one = make(home / "<b>bold & $x$", metrics=metrics, rows=[bound(), *frontier()], samples=HOSTILE, recipe=recipe)
    other = make(home / "plain", metrics=metrics, rows=[bound(value=18.0), *frontier()], recipe={"seed": 1})
    return report.write([one, other], home / "out")


@pytest.fixture(scope="module")
def page(written):
    return written.read_text(encoding="utf-8")


def test_a_report_writes_html_markdown_json_and_figures(written):
    folder = written.parent
    assert {file.name for file in folder.iterdir()} == {"report.html", "report.md", "report.json", "report"}
    names = {file.stem for file in (folder / "report").iterdir()}
    assert names == {"loss", "b0", "jumps", "quality-abcdef", "entropy", "transport-cost", "transport-time"}
    for name in names:
        assert (folder / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "report" / f"{name}.svg").read_text().startswith("<svg ")
        assert f"(report/{name}.png)" in (folder / "report.md").read_text()


def test_the_page_loads_nothing_and_its_policy_forbids_it(page):
    reader = Reader(page)
    policy = next(attrs for tag, attrs in reader.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")
    assert not re.search(r"https?://|//\w+\.\w+/|@import|url\((?!#)", page)
    for tag, attrs in reader.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form"), tag
        assert not {"src", "onclick", "onload", "onerror"} & attrs.keys()
        assert attrs.get("href", "#").startswith("#")


def test_text_of_a_run_never_becomes_markup(page):
    reader = Reader(page)
    for text in ("<script>alert(1)</script></pre>", "␛[31mred␛[0m", "שלום עולם", "\ufffd alone", "<b>bold & $x$"):
        assert text in reader.text
    assert "alert(1)" not in "".join(re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL))
    assert "\x1b" not in page


def test_samples_have_their_own_writing_direction_and_long_ones_are_collapsed(page):
    reader = Reader(page)
    boxes = [attrs for tag, attrs in reader.elements if tag == "pre" and "class" not in attrs]
    assert len(boxes) == len(HOSTILE)
    assert all(attrs.get("dir") == "auto" for attrs in boxes)
    assert page.count("long long") >= 1
    assert page.count("<details>") == 1


def test_every_table_cell_and_figure_of_report_json_is_on_the_page(written, page):
    text, numbers = Reader(page).text, json.loads((written.parent / "report.json").read_text())
    blocks = [block for section in numbers["sections"] for block in section["blocks"]]
    blocks += [inner for block in blocks if block["kind"] == "folded" for inner in block["blocks"]]
    cells = [cell for block in blocks if block["kind"] == "table" for row in block["rows"] for cell in row]
    assert len(cells) > 100
    assert [cell for cell in cells if cell not in text] == []
    for figure in (block for block in blocks if block["kind"] == "figure"):
        assert f'<figure id="{figure["name"]}">' in page
        assert figure["data"]
    assert [run["run"] for run in numbers["runs"]] == ["<b>bold & $x$", "plain"]
    assert numbers["runs"][1]["rows"][0]["value"] == 18.0


def test_every_link_of_the_contents_has_a_target_and_ids_are_unique(page):
    reader = Reader(page)
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"].removeprefix("#") for tag, attrs in reader.elements if tag == "a"]
    assert links[:2] == ["summary", "comparison"]
    assert set(links) <= set(ids)


def test_tables_scroll_and_the_page_has_print_and_dark_styles(page):
    assert re.search(r"\.table \{[^}]*overflow-x: auto", page)
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_text_of_a_run_never_becomes_markdown(written):
    text = (written.parent / "report.md").read_text(encoding="utf-8")
    assert "# \\<b\\>bold \\& \\$x\\$ and plain" in text
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "onerror" in outside
    assert not re.search(r"(?<!\\)<", outside)


def test_reports_on_the_same_folder_are_identical(written, tmp_path):
    folders = [written.parents[1] / name for name in ("<b>bold & $x$", "plain")]
    again = report.write(folders, tmp_path)
    for name in ("report.html", "report.md", "report.json", "report/loss.png", "report/loss.svg"):
        assert (again.parent / name).read_bytes() == (written.parent / name).read_bytes()


ODD = [None, True, "x", [], {}, -1, 0, 10**400, 1e149, -1e308, float("nan"), float("inf"), 5, 2.5]
KEYS = ("loss", "seconds", "b0_ppl", "b0_se", "b0_n", "jumps", "jumps_se", "jumps_n", "precision", "ot_cost", *OT)


@pytest.mark.parametrize("seed", range(3))
def test_metrics_with_unexpected_values_can_be_reported(tmp_path, seed):
    dice = random.Random(seed)
    rows = [{"step": i, **{key: dice.choice(ODD) for key in KEYS if dice.random() < 0.8}} for i in range(3 + 40 * seed)]
    folder = make(tmp_path / "odd", metrics=rows, samples=["", "\x00"])
    json.loads(report.write([folder]).with_name("report.json").read_text(), parse_constant=pytest.fail)


def test_a_single_run_needs_no_list(tmp_path):
    folder = make(tmp_path / "run", metrics=[step(0)])
    for run in (str(folder), folder, RunData.load(folder)):
        assert report.write(run) == folder / report.FILE


def test_loaded_runs_have_unique_names(tmp_path):
    folders = [make(tmp_path / place / "run", metrics=[step(0)], rows=[bound()]) for place in ("x", "y")]
    runs = report.load_runs([RunData.load(folders[0]), folders[1]])
    assert [run.name for run in runs] == ["x/run", "y/run"]
    assert [run.results.name for run in runs] == ["x/run", "y/run"]


@pytest.mark.slow
def test_a_run_of_a_hundred_thousand_logged_steps_makes_a_small_page(tmp_path):
    metrics = [coupled(i, **(EVALUATION if i % 100 == 99 else {})) for i in range(100_000)]
    file = report.write([make(tmp_path / "long", metrics=metrics)])
    assert file == tmp_path / "long" / "report.html"
    assert file.stat().st_size < 1_000_000
    assert (file.parent / "report.json").stat().st_size < 1_000_000
