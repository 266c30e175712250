"""The site that `make docs` builds: nothing in it is fetched from elsewhere, and every public name has its place."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import hopflow
from pages import ROOT

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


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if not find_spec("mkdocs"):
        pytest.skip("needs mkdocs: pip install 'hopflow[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


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


def test_the_pictures_of_a_page_are_small():
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [picture.name for picture in pictures if picture.stat().st_size > 100_000] == []
