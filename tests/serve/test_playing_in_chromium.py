"""How the page in Chromium plays a draw, its counters and comparisons, and its layout."""

from dataclasses import replace

import pytest
from chromium import missing
from page_server import PageServer
from page_visits import SLIDER, STILL, count, draw, drawn, known, move_slider, tokens, written

import hopflow as hf

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

PLAY = ".play"


def clock(visit) -> str:
    return visit.text(".clock")


def test_hops_are_played_in_six_seconds_at_the_speed_that_is_set(browser):
    with PageServer([written(["a", "b"])]).running() as server, browser.open(server.address) as visit:
        drawn(visit)
        visit.stop_clock()
        for speed, seconds in (("1", 3), ("4", 0.75), ("0.25", 12)):
            visit.page.select_option("[aria-label='Speed']", speed)
            move_slider(visit, 0)
            visit.page.click(PLAY)
            visit.page.clock.run_for(round(1000 * seconds))
            visit.page.click(PLAY)
            assert abs(float(clock(visit).removeprefix("t = ")) - 0.5) < 0.03


def test_play_and_pause_change_places_and_the_end_is_played_again_from_the_noise(browser):
    with PageServer([written(["a", "b"])]).running() as server, browser.open(server.address) as visit:
        drawn(visit)
        visit.stop_clock()
        visit.page.click("[aria-label='Play']")
        visit.page.clock.run_for(1500)
        visit.page.click("[aria-label='Pause']")
        t = clock(visit)
        assert 0.2 < float(t.removeprefix("t = ")) < 0.3
        visit.page.clock.run_for(1500)
        assert clock(visit) == t
        visit.page.click("[aria-label='Play']")
        visit.page.clock.run_for(6000)
        assert clock(visit) == "t = 1.00"
        assert visit.page.locator("[aria-label='Play']").is_visible()
        assert tokens(visit) == "ab"


def test_with_reduced_motion_the_button_moves_the_slider_by_a_tenth(browser):
    with PageServer([written(["a", "b"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        for t in ("0.00", "0.10", "0.20"):
            visit.page.click("[aria-label='Step']")
            assert clock(visit) == f"t = {t}"
        move_slider(visit, 0.95)
        visit.page.click("[aria-label='Step']")
        assert clock(visit) == "t = 1.00"


# -- counters ----------------------------------------------------------------------------------------------------------


def test_the_bar_shows_hops_against_the_prediction_for_the_tokens_that_are_drawn(browser):
    flow = known(["a", "b"], [((i + 1) / 20, i % 2, "xy"[i // 2 % 2]) for i in range(8)], predicted=16.0)
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        shares = "([inner, outer]) => inner.getBoundingClientRect().width / outer.getBoundingClientRect().width"
        parts = [visit.page.locator(f"[data-part='{name}']").element_handle() for name in ("bar", "meter")]
        assert visit.run(shares, parts) == pytest.approx(8 / 20, abs=0.01)
        assert visit.page.locator("[data-part='mark']").evaluate("(mark) => mark.style.left") == "80%"
        visit.page.fill("#prompt", "a")
        draw(visit)
        assert (count(visit, "predicted"), count(visit, "hops")) == ("≈ 8 predicted", "4")
        move_slider(visit, 0)
        assert visit.run(shares, parts) == 0


def test_counts_have_a_comma_between_thousands_and_the_rate_one_decimal_if_it_is_small(browser):
    class Slow(PageServer):
        """Its draws have these counts and this rate."""

        def events(self, request):
            for name, data in super().events(request):
                more = {"jumps": 1234567, "calls": 999, "tokens_per_second": 9.04} if name == "end" else {}
                yield name, data | more

    with Slow([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert [count(visit, name) for name in ("hops", "calls", "rate")] == ["1,234,567", "999", "9"]
        assert visit.text("#spoken") == "runs/known: 1,234,567 hops, 999 network calls. a"
    with PageServer([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert visit.text("#spoken") == "runs/known: 1 hop, 1 network call. a"
        assert float(count(visit, "rate").replace(",", "")) > 0


def test_two_flows_are_compared_in_words_with_a_sign(browser):
    hops = [((i + 1) / 20, 0, "xy"[i % 2]) for i in range(8)]
    flows = [known(["a", "b"], hops[:number], ("x", "y"), name=f"runs/{number}") for number in (4, 5, 4, 1)]
    wanted = {
        (0, 1): "runs/5 against runs/4: 1 more hop (+25 %), 1 more network call (+25 %).",
        (1, 2): "runs/4 against runs/5: 1 fewer hop (−20 %), 1 fewer network call (−20 %).",
        (0, 3): "runs/1 against runs/4: 3 fewer hops (−75 %), 3 fewer network calls (−75 %).",
    }
    for (first, second), text in wanted.items():
        with (
            PageServer([flows[first], flows[second]]).running() as server,
            browser.open(server.address, **STILL) as visit,
        ):
            drawn(visit)
            assert visit.text("#difference") == text


def test_noise_that_differs_is_said_until_a_draw_from_the_same_noise_begins(browser):
    first = known(["a", "b"], [(0.5, 1, "x")], ("c",), name="runs/a")
    flows = [first, replace(first, id="runs/c", source=("c", "b"))]
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        same = "runs/c against runs/a: the same number of hops, the same number of network calls."
        assert visit.text("#difference") == f"{same} The noise differs."
        visit.page.select_option("#show", "steps runs/a")
        server.going.clear()
        visit.page.click("#draw")
        visit.page.locator("h2", has_text="runs/a, 4 steps").wait_for()
        visit.page.locator("#difference").wait_for()
        assert "The noise differs" not in visit.text("#difference")
        server.going.set()
        drawn(visit)
        assert "The noise differs" not in visit.text("#difference")


# -- layout ------------------------------------------------------------------------------------------------------------


def test_the_page_shows_its_version_the_description_of_a_flow_and_wide_settings(browser, flows):
    with PageServer(flows).running() as server:
        for width, wide in ((1440, True), (700, False)):
            with browser.open(server.address, width, **STILL) as visit:
                drawn(visit)
                assert visit.text("footer") == f"hopflow {hf.__version__}"
                assert visit.texts("[data-part='description']") == ["BagOfWords, Independent"] * 2
                assert visit.page.locator("#settings fieldset").is_visible() == wide
        with browser.open(server.address, 900, **STILL) as visit:
            drawn(visit)
            left, right = (visit.page.locator(".panel").nth(i).bounding_box() for i in (0, 1))
            assert left["y"] == right["y"]
            assert left["x"] + left["width"] < right["x"]
            visit.page.set_viewport_size({"width": 700, "height": 900})
            above, below = (visit.page.locator(".panel").nth(i).bounding_box() for i in (0, 1))
            assert above["y"] + above["height"] < below["y"]


def test_a_printed_page_has_tokens_and_counters_but_no_controls(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert visit.page.locator(SLIDER).is_visible()
        visit.page.emulate_media(media="print")
        for gone in ("#draw", "#settings", "#editing", "#share", SLIDER):
            assert visit.page.locator(gone).is_hidden()
        for shown in (".panel .tokens", ".counters", "h2"):
            assert visit.page.locator(shown).first.is_visible()
