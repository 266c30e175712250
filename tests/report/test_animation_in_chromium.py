"""The animation of a report in Chromium: a sequence whose hops are known, its controls and its lines."""

import pytest
from chromium import Chromium, missing

from hopflow.report.animation import MASKED
from hopflow.report.blocks import AnimationBlock, ReportDocument, Section
from hopflow.report.page import render_page

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

TEXTS = ["a", "cat", " sat", " on", " the", " mat", "x"]
WORDS = [number for i in range(40) for number in (0, i, 1 + i % 5)]
DATA = {
    "glow": 0.04,
    "times": [0.25, 0.5, 0.75],
    "texts": TEXTS,
    "sequences": [
        {"source": [MASKED, 6, 2], "prompt": [2], "hops": [0, 0, 1, 1, 1, 0, 2, 1, 6], "direction": "ltr"},
        {"source": [6] * 40, "prompt": [], "hops": WORDS, "direction": "ltr"},
    ],
}
PLAY = ".player button"
SLIDER = ".player input[type=range]"


@pytest.fixture(scope="module")
def browser():
    with Chromium.launched() as chromium:
        yield chromium


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("animation") / "report.html"
    section = Section("hops", "Hops", (AnimationBlock("player", DATA),))
    file.write_text(render_page(ReportDocument("known hops", "", "", (), (section,))), encoding="utf-8")
    return file


def move_slider(visit, t: float) -> None:
    visit.page.locator(SLIDER).fill(str(round(200 * t)))


def time(visit) -> float:
    return float(visit.text(".hop-time"))


def looks(visit, sequence: int = 0) -> list[str]:
    script = "(spans) => spans.map((span) => span.textContent + ' ' + span.className.replace('hop-', ''))"
    return list(visit.page.locator(".hop-text").nth(sequence).locator(".hop-line > span").evaluate_all(script))


def test_the_animation_shows_masks_as_wide_as_their_tokens_and_its_prompt(browser, page):
    with browser.open(page) as visit:
        move_slider(visit, 0)
        assert looks(visit) == ["░░░ source", "x source", " sat prompt"]
        move_slider(visit, 0.26)
        assert looks(visit) == ["cat moved", "x source", " sat prompt"]
        move_slider(visit, 0.6)
        assert looks(visit) == ["cat final", "a moved", " sat prompt"]
        move_slider(visit, 1)
        assert looks(visit) == ["cat final", "x final", " sat prompt"]
        assert visit.errors == []


def test_the_controls_say_time_and_hops_of_all_sequences(browser, page):
    with browser.open(page) as visit:
        for shown in (PLAY, SLIDER, ".hop-legend"):
            assert visit.page.locator(shown).is_visible()
        move_slider(visit, 0.6)
        assert visit.texts(".hop-count") == ["2", "40"]
        assert (visit.text(".hop-time"), visit.text(".hop-total")) == ("0.60", "42")
        assert visit.page.locator(SLIDER).get_attribute("aria-valuetext") == "t = 0.60, 42 hops"


def test_the_animation_takes_six_seconds_and_starts_again_at_its_end(browser, page):
    with browser.open(page) as visit:
        visit.stop_clock()
        move_slider(visit, 0.5)
        visit.page.click(PLAY)
        assert visit.page.locator(PLAY).get_attribute("aria-label") == "Pause"
        visit.page.clock.run_for(1500)
        visit.page.click(PLAY)
        assert abs(time(visit) - 0.75) < 0.03
        stopped = time(visit)
        visit.page.clock.run_for(1000)
        assert time(visit) == stopped
        visit.page.click(PLAY)
        visit.page.clock.run_for(3000)
        assert time(visit) == 1
        assert visit.page.locator(PLAY).get_attribute("aria-label") == "Play"
        visit.page.click(PLAY)
        visit.page.clock.run_for(1500)
        assert abs(time(visit) - 0.25) < 0.03


def test_a_moved_slider_pauses_the_animation(browser, page):
    with browser.open(page) as visit:
        visit.stop_clock()
        visit.page.click(PLAY)
        move_slider(visit, 0.3)
        assert visit.page.locator(PLAY).get_attribute("aria-label") == "Play"
        visit.page.clock.run_for(1000)
        assert time(visit) == 0.3


def test_with_reduced_motion_each_press_is_a_step_and_the_end_leads_to_the_noise(browser, page):
    with browser.open(page, reduced_motion="reduce") as visit:
        assert visit.page.locator(PLAY).get_attribute("aria-label") == "Step"
        move_slider(visit, 0.95)
        for t in (1, 0, 0.1):
            visit.page.click(PLAY)
            assert time(visit) == t
    with browser.open(page) as visit:
        visit.stop_clock()
        visit.page.click(PLAY)
        visit.page.emulate_media(reduced_motion="reduce")
        visit.page.locator("[aria-label='Step']").wait_for()
        stopped = time(visit)
        visit.page.clock.run_for(1000)
        assert time(visit) == stopped


def test_lines_are_broken_for_the_width_of_the_window_and_do_not_change_with_time(browser, page):
    with browser.open(page) as visit:
        lines = visit.page.locator(".hop-text").nth(1).locator(".hop-line")
        few = lines.count()
        visit.page.set_viewport_size({"width": 360, "height": 900})
        lines.nth(few).wait_for()
        broken = []
        for t in (0, 0.5, 1):
            move_slider(visit, t)
            broken.append(lines.evaluate_all("(all) => all.map((line) => line.childElementCount)"))
            assert visit.cut() == []
        assert broken[0] == broken[1] == broken[2]
        assert sum(broken[0]) == 40
        visit.page.set_viewport_size({"width": 1440, "height": 900})
        lines.nth(few).wait_for(state="detached")
