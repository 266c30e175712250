"""The site in a real browser, read from disk: it can be searched, its pictures follow the scheme, it fits a phone."""

import io

import pytest
from chromium import Chromium, missing
from matplotlib.image import imread

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@pytest.fixture(scope="module")
def browser():
    with Chromium.launched() as chromium:
        yield chromium


def brightness(visit, selector: str) -> float:
    """Of an element as it is seen: 0 is black, 1 white."""
    seen = visit.page.locator(selector).first.screenshot()
    return float(imread(io.BytesIO(seen))[..., :3].mean())


def test_the_site_is_searched_from_disk(browser, site):
    with browser.open(site / "api" / "index.html") as visit:
        visit.page.locator(".md-search__input").click()
        visit.page.locator(".md-search__input").press_sequentially("Sinkhorn")  # a search listens to keys
        visit.page.locator(".md-search-result__link").first.wait_for()
        assert "SinkhornOT" in visit.text(".md-search-result__list")
        assert visit.errors == []
        assert [request for request in visit.requests if not request.startswith("file:")] == []
        visit.page.locator(".md-search-result__link").first.click()
        visit.page.wait_for_url("**/flow.html*")
        assert visit.page.locator("h1").inner_text().startswith("Flow and its parts")


@pytest.mark.parametrize("page", ["choosing.html", "notebooks/what_the_oracle_says.html"])
def test_pictures_follow_the_reader_and_the_switch(browser, site, page):
    picture = "article img"
    with browser.open(site / page, color_scheme="dark") as visit:
        assert brightness(visit, picture) < 0.4
    with browser.open(site / page, color_scheme="light") as visit:
        assert brightness(visit, picture) > 0.8
        visit.page.locator(".md-header__option label:visible").first.click()
        visit.page.wait_for_function("() => document.body.dataset.mdColorScheme === 'slate'")
        visit.page.wait_for_timeout(500)  # colors fade
        assert brightness(visit, picture) < 0.4


def test_formulas_fit_a_phone_and_are_drawn_by_the_browser(browser, site):
    with browser.open(site / "theory.html", width=400) as visit:
        assert not visit.scrolls_sideways
        script = "() => [...document.querySelectorAll('math')].map((math) => math.getBoundingClientRect().height)"
        assert min(visit.run(script)) > 5
        assert visit.run("() => document.querySelector('math mfrac').getBoundingClientRect().height") > 20
        assert visit.errors == []
