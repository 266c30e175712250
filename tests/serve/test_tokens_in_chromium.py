"""The tokens of the page in Chromium: their states, texts and lines, their history, and the keys that reach them."""

import pytest
from chromium import missing
from page_server import PageServer
from page_visits import STILL, drawn, known, looks, move_slider, states, token, tokens, written

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


def at_times(visit, times: tuple[float, ...]) -> list[str]:
    """The states of the tokens at these times, each as its first letters: s(ource), m(oved), h(opped), f(inal)."""
    found = []
    for t in times:
        move_slider(visit, t)
        found.append("".join(look[0] for look in looks(visit)))
    return found


def test_each_token_has_the_state_of_its_time_forwards_and_backwards(browser):
    flow = known(["a", "b", "c"], [(0.25, 0, "x"), (0.5, 0, "y"), (0.5, 1, "x")])
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        times = (0.2, 0.25, 0.27, 0.4, 0.5, 0.52, 0.7, 1.0)
        wanted = ["sss", "sss", "mss", "hss", "hss", "mms", "ffs", "fff"]
        assert at_times(visit, times) == wanted
        assert at_times(visit, times[::-1]) == wanted[::-1]
        move_slider(visit, 0.4)
        assert tokens(visit) == "xbc"
        assert visit.errors == []


def test_a_token_that_cannot_hop_again_is_final_soon_after_its_hop(browser):
    flow = known(["░", "░"], [(0.25, 0, "x"), (0.5, 1, "y")])
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert at_times(visit, (0.2, 0.27, 0.4, 0.52)) == ["ss", "ms", "fs", "fm"]


def test_a_hop_moves_its_token_once_while_hops_are_played(browser):
    flow = known(["a", "b", "c"], [(0.02, 0, "x"), (0.03, 2, "x")])
    with PageServer([flow]).running() as server, browser.open(server.address) as visit:
        visit.page.locator(".tokens .hop-a").nth(1).wait_for()
        assert [("hop-a" in name) for name in token_classes(visit)] == [True, False, True]
        assert visit.style(".tokens .hop-a", "animation-name") == "hop-a"
        visit.page.emulate_media(reduced_motion="reduce")
        assert visit.style(".tokens .hop-a", "animation-name") == "none"


def token_classes(visit) -> list[str]:
    return list(visit.page.locator(".tokens [data-position]").evaluate_all("(all) => all.map((one) => one.className)"))


def test_special_tokens_are_shown_as_symbols_and_have_names(browser):
    texts = ["\n", "\x1b", "\x7f", "\u202e", "", " ", "   ", "\t", "<|endoftext|>", " it"]
    with PageServer([written(texts)]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert visit.texts(".tokens .token") == ["⏎", "␛", "␡", "\ufffd", "∅", " ", "   ", "␉", "␃", " it"]
        names = visit.page.locator(".tokens .token").evaluate_all("(all) => all.map((one) => one.ariaLabel)")
        spoken = ["line break", "␛", "␡", "\ufffd", "empty token", "blank", "3 blanks", "tab", "end of text", "it"]
        assert names == spoken
        symbols = [" symbol" in name for name in states(visit)]
        assert symbols == [True, True, True, False, True, False, False, True, True, False]


def test_a_mask_is_shown_as_a_block_and_has_a_name(browser):
    with (
        PageServer([known(["░", "░"], [(0.5, 0, "x"), (0.6, 1, "y")])]).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        drawn(visit)
        move_slider(visit, 0.55)
        assert tokens(visit) == "x░"
        assert token(visit, 1).get_attribute("aria-label") == "mask"


def test_a_place_keeps_the_width_of_its_widest_token(browser):
    flow = known(["a", "b"], [(0.3, 0, "long"), (0.4, 1, "世界"), (0.6, 0, "x"), (0.6, 1, "y")])
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        left = []
        for t in (0.5, 0.9, 0):
            move_slider(visit, t)
            left.append(token(visit, 1).bounding_box()["x"])
        assert left == pytest.approx([left[0]] * 3, abs=0.5)
        script = "(all) => all.map((one) => one.style.minWidth)"
        assert visit.page.locator(".tokens .token").evaluate_all(script) == ["4ch", "4ch"]


def test_a_line_break_of_the_text_ends_its_line_once_the_text_is_complete(browser):
    with PageServer([written(["a", "\n", "b"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        first, end, second = (token(visit, i).bounding_box() for i in range(3))
        assert second["y"] >= first["y"] + first["height"]
        assert end["y"] < second["y"]
        move_slider(visit, 0.9)
        assert token(visit, 0).bounding_box()["y"] == token(visit, 2).bounding_box()["y"]


def focused(visit) -> int:
    """The position of the token with the keyboard. It is the only one that Tab reaches."""
    assert visit.page.locator(".tokens [tabindex='0']").count() == 1
    return int(visit.run("() => document.activeElement.dataset.position"))


def pressed(visit, *keys: str) -> list[int]:
    """The tokens that the keyboard reaches with these keys, one after the other."""
    found = []
    for key in keys:
        visit.page.keyboard.press(key)
        found.append(focused(visit))
    return found


def test_arrow_keys_move_between_tokens_and_between_lines(browser):
    texts = ["ab", "cd", "ef", "\n", "gh", "ij", "kl", "\n", "mn"]
    with PageServer([written(texts)]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).focus()
        assert pressed(visit, "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowLeft") == [1, 5, 1, 0, 0]
        assert pressed(visit, "ArrowUp", "End", "ArrowRight", "ArrowDown", "ArrowUp", "Home") == [0, 8, 8, 8, 4, 0]
        assert visit.errors == []


def test_a_text_from_right_to_left_is_laid_out_so_and_its_arrow_keys_follow(browser):
    with (
        PageServer([written(["של", "ום", " ע", "ולם"])]).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        drawn(visit)
        assert visit.page.locator(".tokens").get_attribute("dir") == "rtl"
        assert token(visit, 0).bounding_box()["x"] > token(visit, 3).bounding_box()["x"]
        token(visit, 0).focus()
        assert pressed(visit, "ArrowLeft", "ArrowLeft", "ArrowRight") == [1, 2, 1]


def test_shortcuts_of_the_browser_do_not_change_a_word(browser):
    with PageServer([written(["a", " b"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).focus()
        for key in ("Control+a", "Alt+a", "Meta+a"):
            visit.page.keyboard.press(key)
        assert looks(visit) == ["final", "final"]
        visit.page.keyboard.press("a")
        assert looks(visit) == ["pinned", "pinned"]
        assert visit.page.input_value("#change") == "a"


# -- the history of a token --------------------------------------------------------------------------------------------


def rows(visit) -> list[str]:
    assert visit.page.locator("#history").is_visible()
    return visit.texts("#history li")


def test_the_history_of_a_token_has_its_hops_until_the_time_shown(browser):
    flow = known(["a", "b"], [(0.25, 0, " x"), (0.5, 0, "y"), (0.6, 1, "y")])
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).hover()
        assert rows(visit) == ["t = 0.25“a” → “ x”", "t = 0.50“ x” → “y”"]
        assert visit.text("#history strong") == "Token 1 · final"
        script = "([slider, t]) => { slider.value = t; slider.dispatchEvent(new Event('input')); }"
        slider = visit.page.locator("[aria-label='Time t, from noise to text']").element_handle()
        visit.run(script, [slider, "400"])  # the pointer stays where it is
        assert rows(visit) == ["t = 0.25“a” → “ x”"]
        assert visit.text("#history strong") == "Token 1 · hopped, may hop again"
        visit.run(script, [slider, "100"])
        assert rows(visit) == ["no hop so far"]


def test_a_long_history_shows_its_last_ten_hops(browser):
    flow = known(["a", "b"], [((i + 1) / 20, 0, "xy"[i % 2]) for i in range(13)])
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).hover()
        found = rows(visit)
        assert (len(found), found[0]) == (11, "3 earlier hops")
        assert found[-1] == "t = 0.65“y” → “x”"
        token(visit, 1).hover()
        visit.page.locator("#history strong", has_text="Token 2").wait_for()
        assert rows(visit) == ["no hop"]


def test_a_pinned_token_says_that_the_prompt_pinned_it(browser):
    with PageServer([written(["a", " b"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#prompt", "a")
        visit.page.click("#draw")
        visit.page.locator(".tokens .pinned").wait_for()
        drawn(visit)
        token(visit, 0).hover()
        assert rows(visit) == ["pinned by the prompt"]
        assert token(visit, 0).get_attribute("aria-label") == "a, pinned"


def test_the_history_is_beside_its_token_and_inside_the_window(browser):
    with PageServer([written(["a"])]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).hover()
        box, place = visit.page.locator("#history").bounding_box(), token(visit, 0).bounding_box()
        assert box["y"] >= place["y"] + place["height"]
        visit.page.mouse.move(0, 0)
        assert visit.page.locator("#history").is_hidden()
        room = round(place["y"] + place["height"] + 10)
        visit.page.set_viewport_size({"width": 1440, "height": room})  # no room below
        token(visit, 0).hover()
        box = visit.page.locator("#history").bounding_box()
        assert 0 <= box["y"] <= box["y"] + box["height"] <= place["y"]


def test_scrolling_closes_the_history(browser):
    with (
        PageServer([written(["a", "\n"] * 30)]).running() as server,
        browser.open(server.address, 1440, 600, **STILL) as visit,
    ):
        drawn(visit)
        visit.page.locator("h2").scroll_into_view_if_needed()
        token(visit, 0).hover()
        assert visit.page.locator("#history").is_visible()
        visit.run("() => scrollBy(0, 40)")
        visit.page.locator("#history").wait_for(state="hidden")
