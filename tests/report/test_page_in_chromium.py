"""The page in a browser: at several widths, in light and dark colors, and in print."""

import io
import json
import math
import re
from functools import cache
from pathlib import Path

import pytest
import torch
from chromium import Chromium, missing
from commands import FOX

import hopflow as hf
from hopflow import report
from hopflow.evaluation import record
from hopflow.evaluation.evaluated_model import EvaluatedModel
from hopflow.evaluation.rows import Row
from hopflow.evaluation.suite import Suite
from hopflow.recipes import Recipe, build
from hopflow.report.animation import GLOW

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

MOST_BYTES = 5_000_000
KEYS = {"length": 24, "batch": 8, "ot_batch": 16, "holdout": 0.2, "steps": 12, "workers": 0, "warmup": 2}
KEYS |= {"device": "cpu", "log_every": 1, "eval_every": 4, "eval_rows": 4, "eval_samples": 4, "eval_steps": 4}
HOSTILE = (
    "</pre></li></ol><script>alert('a sample')</script>",
    "<img src=x onerror=\"alert('an image')\">",
    "\x1b[31mred\x1b[0m \x07 \x9b2J",
    "שלום עולם, the end",
    "\u202egnihtyna \u2066\u2069\u200f",
    "<!-- <script> ]]> {{7*7}} ${alert(1)} &lt;b&gt; \u2028 \ud800 \x00",
)


@pytest.fixture(scope="module")
def browser():
    with Chromium.launched() as chromium:
        yield chromium


# -- runs to report on -------------------------------------------------------------------------------------------------


def made(home: Path, name: str, metrics=(), samples=(), rows=()) -> Path:
    """A run folder with these metrics, samples and results."""
    folder = home / name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in metrics))
    if samples:
        lines = [json.dumps({"step": 9, "text": text}) for text in samples]
        (folder / "samples.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if rows:
        content = {"format": record.FORMAT, "version": record.VERSION, "rows": [row.as_json() for row in rows]}
        (folder / record.FILE).write_text(json.dumps(content))
    return folder


def step(number: int, cost: float = 40.0, **more: object) -> dict[str, object]:
    loss = 1.5 + 2 * math.exp(-number / 300) + 0.1 * math.sin(12.9898 * number)
    ot = {"ot_cost": cost, "ot_independent_cost": 46.0 + math.sin(number), "ot_wait_share": 0.02, "ot_seconds": 0.1}
    ot |= {"ot_marginal_error": 0.0}
    numbers = {"loss": loss, "grad_norm": 0.5, "lr": 1e-3, "tokens_per_s": 9000.0, "seconds": 0.1 * (number + 1)}
    return {"step": number, **numbers, "memory_bytes": 4e8, **ot, **more}


def evaluation(number: int, jumps: float) -> dict[str, object]:
    found = {"b0_ppl": 12 + 30 * math.exp(-number / 400), "b0_se": 0.6, "b0_n": 64}
    return {**found, "jumps": jumps, "jumps_se": 0.8, "jumps_n": 16}


def evaluated(jumps: float, better: float) -> list[Row]:
    """Bounds on a text, and samples with five numbers of steps and a judge, as in eval.json."""

    def row(where: str, quantity: str, value: float, error: float, unit: str, **more: object) -> Row:
        eta = more.pop("eta", 0.0)
        return Row("run", where, quantity, value, error, 64, unit, quantity[0] == "b", eta, "float32", None, more)

    text = {"of": 64, "length": 128, "weights": "averaged", "seed": 0, "data_sha256": "a" * 64}
    rows = [row("held-out", name, better * value, 0.31, "ppl", **text) for name, value in {"b0": 31, "bk": 29}.items()]
    judge = {"judge": {"name": "a judge"}, "judge_hash": "c0ffee0123456789", "retokenised": True}
    for eta in (0.0, 1.0):
        for steps in (8, 16, 32, 64, 128):
            at = {"sampler": f"η = {eta:g}, {steps} steps", "steps": steps, "temperature": 1.0, "eta": eta, "seed": 0}
            worse = better * (40 + 400 / steps - 6 * eta)
            rows.append(row("samples", "gen_ppl", worse, 0.05 * worse, "ppl", **at, **judge))
            rows.append(row("samples", "entropy_bits", 4.1 - 0.2 * eta - 1 / steps, 0.02, "bits", **at))
            rows.append(row("samples", "jumps", jumps + 9 * eta, 0.7, "hops per sample", **at))
            rows.append(row("samples", "calls", float(steps), 0.0, "network calls per sample", **at))
    itself = {"sampler": "the text itself", "eta": None, **text}
    rows.append(row("held-out", "gen_ppl", 21.3, 0.9, "ppl", **itself, **judge))
    rows.append(row("held-out", "entropy_bits", 4.15, 0.02, "bits", **itself))
    return rows


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def two(home) -> Path:
    """A report on two runs with every file except a checkpoint."""
    folders = []
    for name, cost, jumps, better in (("independent", 46.0, 88.0, 1.0), ("transported", 39.0, 71.0, 0.93)):
        rows = [step(n, cost, **(evaluation(n, jumps) if n % 50 == 49 else {})) for n in range(600)]
        folders.append(made(home, name, rows, [FOX[:100], FOX * 2], evaluated(jumps, better)))
    return report.write(folders, home / "two")


@pytest.fixture(scope="session")
def real(home) -> Path:
    """A report on a run that was trained and evaluated briefly."""
    (home / "fox.txt").write_text(FOX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        run = build(Recipe(data=str(home / "fox.txt"), source="bag_of_words", coupling="exact", **KEYS))
        run.train(out=home / "real")
        suite = Suite.of({"steps": (4, 8), "n": 6, "rows": 8, "draws": 2, "seconds": 600.0, "error": 0.0})
        record.keep(
            home / "real", list(suite.run(EvaluatedModel.load(home / "real", "cpu"), progress=lambda text: None))
        )
        return report.write([home / "real"])


STRANGE = {
    "no samples": lambda home: made(home, "no samples", [step(n) for n in range(20)]),
    "one point": lambda home: made(home, "one point", [step(0, **evaluation(0, 20.0))], ["a"]),
    "many points": lambda home: made(home, "many points", [step(n) for n in range(100_000)], [FOX * 400] * 12),
    "not numbers": lambda home: made(
        home,
        "not numbers",
        [
            step(n) | ({"loss": math.nan, "ot_cost": math.inf, "grad_norm": -math.inf} if n % 3 else {})
            for n in range(60)
        ]
        + [step(60) | dict.fromkeys(evaluation(0, 1.0), math.nan)],
    ),
    "nothing but nan": lambda home: made(home, "nothing but nan", [{"step": n, "loss": math.nan} for n in range(9)]),
    "hostile": lambda home: made(
        home,
        "<img src=x onerror=alert(1)> & \"'`$x$ שלום",
        [step(n, **evaluation(n, 3.0)) for n in range(9)],
        HOSTILE,
        [
            Row("run", "<script>alert(2)<", "b0", 3.0, 0.1, 4, "ppl", True, 0.0, "float32", None, {"sampler": "<b>"}),
            *evaluated(3.0, 1.0),
        ],
    ),
}


@pytest.fixture(scope="session")
def reported(home):
    """The page of a unusual run, by its name; each is made once."""
    return cache(lambda name: report.write([STRANGE[name](home)]))


@pytest.fixture(params=STRANGE)
def unusual(request, reported) -> Path:
    return reported(request.param)


@pytest.fixture(params=["two", "real"])
def page(request) -> Path:
    return request.getfixturevalue(request.param)


# -- what a reader sees ------------------------------------------------------------------------------------------------


def check_page(visit, file: Path) -> None:
    assert visit.errors == []
    assert visit.dialogs == []
    assert visit.requests == [file.resolve().as_uri()]  # the page itself, and nothing else


@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_complete_readable_and_without_errors(browser, page, width, scheme):
    with browser.open(page, width, color_scheme=scheme) as visit:
        for section in (None, "#training", "#quality", "#comparison", "#hops", "#transport", "#coupling", "#summary"):
            if section is None or visit.page.locator(section).count():
                visit.picture(f"{page.parent.name} {width} {scheme} {section or 'page'}", section)
        assert not visit.scrolls_sideways
        assert visit.cut() == []
        assert min(visit.letters()) >= 7.5
        lowest, text, kind = visit.contrasts()[0]
        assert lowest >= 4.5, (text, kind)
        check_page(visit, page)


def test_light_and_dark_schemes_colour_the_page_and_its_figures(browser, two):
    found = []
    for scheme in ("light", "dark"):
        with browser.open(two, color_scheme=scheme) as visit:
            curve = "#loss svg path[style*='--c1']"
            places = {"body": ("background-color", "color"), curve: ("stroke",), "#loss svg text": ("fill",)}
            found.append([visit.style(place, name) for place, names in places.items() for name in names])
    day, night = found
    assert all(one != other for one, other in zip(day, night, strict=True))


def cells(visit) -> list[list[list[str]]]:
    """Of every table of the page, as it is read."""
    return visit.run(
        "() => [...document.querySelectorAll('table')].map((table) => [...table.rows].map("
        "(row) => [...row.cells].map((cell) => cell.textContent)))"
    )


def tables(blocks: list[dict]) -> list[list[list[str]]]:
    inner = [table for block in blocks for table in tables(block.get("blocks", []))]
    return [[block["head"], *block["rows"]] for block in blocks if block["kind"] == "table"] + inner


def test_numbers_of_the_page_equal_those_of_report_json(browser, page):
    content = json.loads((page.parent / "report.json").read_text())
    expected = [table for section in content["sections"] for table in tables(section["blocks"])]
    with browser.open(page) as visit:
        assert sorted(cells(visit)) == sorted(expected)
        assert visit.texts("h2") == [section["title"] for section in content["sections"]]
        drawn = [b for s in content["sections"] for b in s["blocks"] if b["kind"] == "figure"]
        assert [visit.text(f"#{figure['name']} figcaption") for figure in drawn] == [f["caption"] for f in drawn]


def test_evaluation_results_are_on_the_page_with_error_and_n(browser, real):
    rows = json.loads((real.parent / "eval.json").read_text())["rows"]
    assert len(rows) > 20
    with browser.open(real) as visit:
        shown = [row for table in cells(visit) if table[0][:3] == ["quantity", "sampler", "value"] for row in table]
    for row in rows:
        if row["quantity"].endswith("bits_per_char"):
            continue  # the same number per character
        assert any(says(cell, row) for cell in shown if cell[0] == row["quantity"]), row


def says(cell: list[str], row: dict) -> bool:
    """Whether these cells hold the row's value and error, as far as their digits go."""
    match = re.fullmatch(r"(-?[\d,.]+) ± ([\d,.]+)", cell[2])
    if not match or int(cell[4].replace(",", "")) != row["n"]:
        return False
    return all(
        abs(float(text.replace(",", "")) - row[name]) <= 0.51 * 10 ** -len(text.partition(".")[2])
        for text, name in zip(match.groups(), ("value", "stderr"), strict=True)
    )


def test_in_print_nothing_is_cut_off(browser, page):
    with browser.open(page, 794, 1123, media="print", color_scheme="dark") as visit:  # A4
        visit.picture(f"{page.parent.name}-print")
        assert visit.style("body", "background-color") == "rgb(255, 255, 255)"
        assert visit.style("nav", "display") == "none"
        assert not visit.scrolls_sideways
        assert visit.page.locator(".table").count() > 0
        assert visit.run("() => [...document.querySelectorAll('.table')].every((t) => t.scrollWidth <= t.clientWidth)")
        assert visit.contrasts()[0][0] >= 4.5
        assert visit.page.pdf(format="A4").startswith(b"%PDF")
        check_page(visit, page)


@pytest.mark.parametrize("width", [1100, 1440])
def test_every_table_of_two_runs_fits_a_laptop_screen(browser, two, width):
    with browser.open(two, width) as visit:
        visit.run("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert visit.page.locator(".table").count() > 1
        fits = "() => [...document.querySelectorAll('.table')].filter((t) => t.scrollWidth > t.clientWidth).length"
        assert visit.run(fits) == 0


def test_every_entry_of_the_contents_leads_to_its_section(browser, two):
    with browser.open(two, reduced_motion="reduce") as visit:
        links = visit.page.locator("nav a")
        assert visit.texts("nav a") == visit.texts("section h2") != []
        for place in range(links.count()):
            links.nth(place).press("Enter")  # a click can miss a link that moves while the page scrolls
            arrived = "(link) => decodeURIComponent(location.hash) === decodeURIComponent(link)"
            visit.page.wait_for_function(arrived, arg=links.nth(place).get_attribute("href"))
            anchor = visit.run("() => decodeURIComponent(location.hash.slice(1))")
            assert visit.text(f"section[id='{anchor}'] h2") == links.nth(place).inner_text()


def test_long_samples_and_tables_are_collapsed_and_open(browser, two):
    with browser.open(two) as visit:
        sample = visit.page.locator(".samples details").first
        assert not sample.locator("pre").is_visible()
        sample.locator("summary").click()
        assert sample.locator("pre").inner_text() == FOX * 2
        visit.page.locator(".folded summary").first.click()
        assert visit.page.locator(".folded table").first.is_visible()
        assert visit.cut() == []


def edge(visit, selector: str) -> float:
    """How bright the rightmost pixels of an element are, from 0 to 1."""
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(visit.page.locator(selector).first.screenshot()))
    return float(pixels[:, -3:, :3].mean())


def test_a_table_wider_than_the_page_has_a_shadow_at_its_edge(browser, two):
    table = "#comparison .table"
    with browser.open(two, 360) as visit:
        assert visit.run("(s) => { const t = document.querySelector(s); return t.scrollWidth > t.clientWidth; }", table)
        before = edge(visit, table)
        visit.run("(s) => { const t = document.querySelector(s); t.scrollLeft = t.scrollWidth; }", table)
        after = edge(visit, table)
        assert before < after - 0.1  # a shadow, which is gone at the end
    with browser.open(two, 1440) as visit:
        assert edge(visit, table) > 0.9


def test_the_headline_is_the_first_thing_below_the_title(browser, two):
    content = json.loads((two.parent / "report.json").read_text())
    with browser.open(two) as visit:
        assert visit.text("header .headline").replace("\u00a0", " ") == content["headline"]
        assert content["headline"].startswith("transported: 19.3 ± 1.0 % fewer hops than independent; ")


def test_morse_code_is_decoded_below_its_symbols(browser, home):
    folder = made(home, "morse", [step(0)], ["... --- ... ", ".-  -... "])
    recipe = {"format": "hopflow run", "version": 1, "recipe_hash": "0", "identity": {}, "recipe": {"tokens": "morse"}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    with browser.open(report.write([folder]), 360) as visit:
        assert visit.texts(".samples .decoded") == ["decoded SOS", "decoded A B"]
        assert visit.cut() == []


# -- the animation -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def drawn(real) -> hf.Generation:
    """The generation that the page animates, computed again."""
    saved = hf.from_pretrained(real.parent)
    return hf.generate(saved.model, saved.flow, n=4, length=KEYS["length"], steps=32, seed=0, trajectory=True)


def move_slider(visit, t: float) -> None:
    slider = visit.page.locator(".player input[type=range]")
    slider.fill(str(round(t * int(slider.get_attribute("max")))))


def spans(visit) -> list[list[list[str]]]:
    """The text and the state of every token, sequence by sequence."""
    return visit.run(
        "() => [...document.querySelectorAll('.player .hop-text')].map((line) => [...line.querySelectorAll("
        "'.hop-line > span')].map((span) => [span.textContent, span.className.replace('hop-', '')]))"
    )


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 1.0])
def test_the_slider_shows_the_tokens_of_its_time(browser, real, drawn, t):
    tokenizer = hf.from_pretrained(real.parent).tokenizer
    before, jumps = drawn.hops.t < t, torch.zeros(drawn.tokens.shape, dtype=torch.long)
    places = drawn.hops.row * drawn.tokens.shape[1] + drawn.hops.position
    jumps.view(-1).index_add_(0, places[before], torch.ones_like(places[before]))
    with browser.open(real) as visit:
        move_slider(visit, t)
        visit.picture(f"animation {t}", ".player")
        shown = spans(visit)
        assert visit.text(".hop-time") == f"{t:.2f}"
        assert visit.texts(".hop-count") == [str(count) for count in jumps.sum(1).tolist()]
        assert visit.text(".hop-total") == str(int(jumps.sum()))
        check_page(visit, real)
    texts = [[tokenizer.decode([token]) for token in row] for row in drawn.at(t).tolist()]
    assert [[text for text, _ in row] for row in shown] == texts
    last = torch.full(drawn.tokens.shape, -1.0).view(-1)
    last = last.scatter_reduce(0, places[before], drawn.hops.t[before].float(), "amax").view_as(drawn.tokens)
    moving = (jumps > 0) & ((jumps < drawn.changes) | (t - last < GLOW)) & (t < 1)
    final = (t == 1) | ((jumps > 0) & ~moving)
    assert [[state == "moved" for _, state in row] for row in shown] == moving.tolist()
    assert [[state == "final" for _, state in row] for row in shown] == final.tolist()
    assert {state for row in shown for _, state in row} <= {"source", "moved", "final"}


def test_the_animation_plays_pauses_and_follows_keys(browser, real):
    with browser.open(real) as visit:
        move_slider(visit, 0)
        visit.stop_clock()
        button = visit.page.locator(".player button")
        button.click()
        visit.page.clock.run_for(600)
        button.click()
        stopped = visit.text(".hop-time")
        assert 0.05 < float(stopped) < 1
        visit.page.clock.run_for(600)
        assert visit.text(".hop-time") == stopped
        visit.page.locator(".player input").press("End")
        assert visit.text(".hop-time") == "1.00"
        visit.page.locator(".player input").press("ArrowLeft")
        assert visit.text(".hop-time") == "0.99"
        check_page(visit, real)


def test_with_reduced_motion_the_button_moves_the_slider_by_a_tenth(browser, real):
    with browser.open(real, reduced_motion="reduce") as visit:
        move_slider(visit, 0)
        visit.stop_clock()
        visit.page.locator(".player button").click()
        assert visit.text(".hop-time") == "0.10"
        visit.page.clock.run_for(600)
        assert visit.text(".hop-time") == "0.10"


@pytest.mark.parametrize("width", [320, 1440])
def test_lines_do_not_move_while_tokens_hop(browser, real, width):
    with browser.open(real, width) as visit:
        heights = []
        for t in (0.0, 0.5, 1.0):
            move_slider(visit, t)
            heights.append(visit.run("() => document.querySelector('.player').getBoundingClientRect().height"))
            assert visit.cut() == []
        assert len(set(heights)) == 1


# -- unusual runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [360, 1440])
def test_a_page_of_unusual_runs_is_complete_readable_and_small(browser, unusual, width):
    assert unusual.stat().st_size < MOST_BYTES
    with browser.open(unusual, width) as visit:
        visit.picture(f"unusual {unusual.parent.name[:12]} {width}")
        assert not visit.scrolls_sideways
        assert visit.cut() == []
        assert visit.contrasts()[0][0] >= 4.5
        assert "nan" not in visit.text("main").lower().replace(unusual.parent.name, "")
        check_page(visit, unusual)


def test_values_that_are_not_finite_are_counted_and_left_out(browser, reported):
    with browser.open(reported("not numbers")) as visit:
        assert "40 values of loss are not finite and are left out" in visit.text("#training")


def test_hostile_texts_are_shown_and_never_executed(browser, reported):
    file = reported("hostile")
    with browser.open(file) as visit:
        assert visit.dialogs == []
        assert visit.text("h1") == file.parent.name
        assert visit.page.locator("img, iframe, object, embed, link, base, form, main b").count() == 0
        scripts = visit.texts("script")
        assert len(visit.run("() => [...document.scripts].filter((s) => s.closest('main'))")) == 0
        assert not any("alert" in script for script in scripts)
        shown = visit.texts(".samples pre")
        assert shown[:2] == list(HOSTILE[:2])
        assert shown[2] == "␛[31mred␛[0m ␇ \ufffd2J"
        assert shown[3:5] == list(HOSTILE[3:5])
        ways = "() => [...document.querySelectorAll('.samples pre')].map((pre) => getComputedStyle(pre).direction)"
        assert visit.run(ways)[2:4] == ["ltr", "rtl"]
        assert "<script>alert(2)<" in visit.text("#summary")
