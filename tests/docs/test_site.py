"""The site that `make docs` builds: nothing in it is fetched from elsewhere, and every public name has its place."""

import re
from html.parser import HTMLParser

from pages import ROOT

import hopflow

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Addresses(HTMLParser):
    """What a browser fetches when it opens a page; a link that waits for a click is not among it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        value = dict(attrs).get(FETCHED.get(tag, ""))
        if value:
            self.found.append(value)


def fetched(html: str) -> list[str]:
    reader = Addresses()
    reader.feed(html)
    return [address for address in reader.found if re.match(r"(https?:)?//", address)]


def test_no_page_or_style_fetches_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    assert {str(page): found for page in pages if (found := fetched(page.read_text(encoding="utf-8")))} == {}
    styles = [style.read_text(encoding="utf-8") for style in site.rglob("*.css")]
    assert [address for style in styles for address in re.findall(r"(?:url\(|@import)\s*[\"']?https?:", style)] == []


def test_what_a_browser_would_fetch_is_found():
    assert fetched('<script src="https://a.org/b.js"></script><link href="//a.org/c.css">') == [
        "https://a.org/b.js",
        "//a.org/c.css",
    ]
    assert fetched('<a href="https://a.org">read</a><img src="pictures/a.svg">') == []


def test_every_public_name_has_one_place_in_the_reference(site):
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((site / "api").glob("*.html")))
    names = [*hopflow._HOME, *(f"exact.{name}" for name in hopflow.exact.__all__)]
    assert {name: count for name in names if (count := text.count(f'id="hopflow.{name}"')) != 1} == {}


def test_every_formula_is_typeset(site):
    formulas = {}
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        assert "arithmatex" not in text, page
        formulas[str(page.relative_to(site))] = re.findall(r"<math.*?</math>", text, re.DOTALL)
    assert len(formulas["theory.html"]) > 200
    assert formulas["evaluation.html"]
    # a command or a letter that the converter does not know
    assert [math for found in formulas.values() for math in found if re.search(r"\\|<m[io]>&<|<merror", math)] == []
    prose = re.sub(
        r"<(script|style|code|pre)\b.*?</\1>", "", (site / "theory.html").read_text("utf-8"), flags=re.DOTALL
    )
    assert "$" not in prose


def test_a_formula_that_the_source_cites_is_in_the_page(site):
    tags = set(re.findall(r'<span class="tag">\((\w+)\)</span>', (site / "theory.html").read_text(encoding="utf-8")))
    cited = re.compile(r"theory\.md (?:§\d, )?((?:\(\w+\)(?:, )?)+)")
    found = {
        tag
        for folder in ("src", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for group in cited.findall(file.read_text(encoding="utf-8"))
        for tag in re.findall(r"\w+", group)
    }
    assert found >= {"F", "F_N", "B", "B_N", "B_κ", "E", "P", "V"}
    assert found - tags == set()


def test_no_link_is_called_after_its_file():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    pages += (ROOT / "docs").rglob("*.ipynb")
    found = {
        str(page.relative_to(ROOT)): names
        for page in pages
        if (names := re.findall(r"\[([^\]]*\.(?:md|ipynb))\]\(", page.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_drawing_leaves_its_colours_to_the_page():
    for picture in sorted((ROOT / "docs" / "pictures").glob("*.svg")):
        before, _, after = picture.read_text(encoding="utf-8").partition("</style>")
        assert "prefers-color-scheme: dark" in before, picture.name
        assert re.findall(r"(?:fill|stroke): (?!none|var)[^;\"]*", after) == [], picture.name


def test_the_pictures_of_a_page_are_small():
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [picture.name for picture in pictures if picture.stat().st_size > 100_000] == []
