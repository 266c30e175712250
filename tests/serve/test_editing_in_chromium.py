"""Holes, pinned tokens and changed words of the page in Chromium: what is shown, and what is asked of the server."""

from dataclasses import replace

import pytest
from chromium import missing
from page_server import PageServer
from page_visits import STILL, draw, drawn, holes, looks, move_slider, token, tokens, written

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

HINT = "Click a word to make it a hole"


@pytest.fixture
def flow():
    """A flow that draws “the cat sat on”, a token for each word, with or without its blank."""
    return written(["the", " cat", " sat", " on"], others=("cat", "dog", " dog", "a", " a"))


def typed(visit, position: int, text: str) -> None:
    """Focus a token and type, without Enter."""
    token(visit, position).focus()
    visit.page.keyboard.type(text)


def changed(visit, position: int, text: str, shown: str) -> None:
    typed(visit, position, text)
    visit.page.keyboard.press("Enter")
    visit.page.locator(f"[data-position='{position}']", has_text=shown).wait_for()


def prompted(server: PageServer) -> list[str | None]:
    """The texts of the last prompt; None for a hole."""
    request = server.draws[-1]
    decode = server.flow(request["flow"]).tokenizer.decode
    return [None if entry is None else decode([entry["id"]]) for entry in request["prompt"]]


def test_holes_and_pinned_tokens_are_swapped(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert visit.text("#edit-hint").startswith(HINT)
        assert visit.page.locator("#edit-tools").is_hidden()
        token(visit, 1).click()
        assert visit.text("#edit-hint") == "1 hole, 3 pinned. Draw again to fill the holes."
        assert token(visit, 1).get_attribute("aria-label") == "cat, hole"
        visit.page.click("#invert")
        assert holes(visit) == [0, 2, 3]
        assert visit.text("#edit-hint") == "3 holes, 1 pinned. Draw again to fill the holes."
        draw(visit, "#draw-again")
        assert prompted(server) == [None, " cat", None, None]
        assert visit.errors == []


def test_cancel_returns_to_the_sequence_that_was_drawn(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 1).click()
        changed(visit, 2, "dog", " dog")
        assert tokens(visit) == "the cat dog on"
        visit.page.click("#discard")
        assert (tokens(visit), set(looks(visit))) == ("the cat sat on", {"final"})
        assert visit.text("#edit-hint").startswith(HINT)
        assert visit.page.locator("#edit-tools").is_hidden()
        assert token(visit, 1).get_attribute("aria-pressed") is None


def test_a_prompt_that_is_typed_and_a_slider_that_is_moved_discard_the_holes(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 1).click()
        visit.page.fill("#prompt", "the")
        assert set(looks(visit)) == {"final"}
        token(visit, 1).click()
        move_slider(visit, 0)
        assert set(looks(visit)) == {"source"}
        assert visit.page.locator("#edit-tools").is_hidden()
        draw(visit)
        assert prompted(server) == ["the", None, None, None]
        assert visit.text("#edit-hint").startswith("1 pinned, 3 drawn. ")


def test_shift_takes_one_token_and_a_click_its_word(browser):
    with (
        PageServer([written(["ab", "c", "\n", "d", " e"])]).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        drawn(visit)
        token(visit, 1).click(modifiers=["Shift"])
        assert holes(visit) == [1]
        token(visit, 0).click()  # the rest of the word becomes a hole, too
        assert holes(visit) == [0, 1]
        token(visit, 1).click()
        assert holes(visit) == []
        token(visit, 3).click()  # its word begins after the line break
        assert holes(visit) == [3]


def test_a_changed_word_keeps_its_blank_and_alone_it_is_all_that_is_kept(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        typed(visit, 1, "d")
        assert visit.text("#changed-word") == "“ cat”"
        visit.page.keyboard.type("og")
        visit.page.keyboard.press("Enter")
        visit.page.locator("[data-position='1'][aria-label='dog, pinned']").wait_for()
        assert tokens(visit) == "the dog sat on"
        assert visit.text("#edit-hint").startswith("0 holes, 4 pinned. Draw again to keep only what was changed")
        draw(visit, "#draw-again")
        assert prompted(server) == [None, " dog", None, None]


def test_a_word_that_is_typed_is_taken_when_it_is_drawn_again(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).click()
        typed(visit, 2, "dog a")
        visit.page.click("#draw-again")
        visit.page.locator(".tokens", has_text=" cat dog a on").wait_for()
        drawn(visit)
        assert prompted(server) == [None, " cat", " dog", " a", " on"]
        assert server.draws[-1]["length"] == 5


def test_escape_returns_from_the_text_of_a_word_to_its_token(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        typed(visit, 2, "d")
        assert visit.run("() => document.activeElement.id") == "change"
        visit.page.keyboard.press("Escape")
        assert visit.run("() => document.activeElement.dataset.position") == "2"


def test_a_change_beyond_the_largest_length_is_refused(browser, flow):
    with PageServer([flow], longest=5).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        typed(visit, 1, "a a a")
        visit.page.keyboard.press("Enter")
        visit.page.locator("#message", has_text="more than 5 tokens").wait_for()
        assert tokens(visit) == "the cat sat on"
        visit.page.fill("#change", "a a")
        visit.page.press("#change", "Enter")
        visit.page.locator(".tokens", has_text="the a a sat on").wait_for()


def test_holes_that_were_filled_are_holes_of_the_next_draw(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 1).click()
        draw(visit, "#draw-again")
        assert looks(visit) == ["pinned", "final", "pinned", "pinned"]
        assert visit.text("#edit-hint").startswith("3 pinned, 1 drawn. ")
        token(visit, 2).click()
        assert holes(visit) == [1, 2]
        draw(visit, "#draw-again")
        assert prompted(server) == ["the", None, None, " on"]


def test_all_tokens_that_are_pinned_cannot_be_drawn(browser, flow):
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 1).click()
        token(visit, 1).click()
        assert visit.page.locator("#draw-again").is_disabled()
        visit.page.click("#draw")
        visit.page.locator("#message", has_text="Every token is pinned").wait_for()
        visit.page.locator("#panels[aria-busy='false']").wait_for()
        assert len(server.draws) == 1


def test_holes_are_drawn_by_all_flows_only_if_they_have_the_same_noise(browser, flow):
    other = replace(flow, id="runs/other")
    for same, count in ((True, 2), (False, 1)):
        with (
            PageServer([flow, other], same_noise=same).running() as server,
            browser.open(server.address, **STILL) as visit,
        ):
            drawn(visit)
            token(visit, 1).click()
            draw(visit, "#draw-again")
            assert prompted(server) == ["the", None, " sat", " on"]
            assert visit.texts("h2") == ["runs/known", "runs/other"][:count]
            assert visit.page.locator("#panels.two").count() == count - 1
            visit.page.select_option("#show", "flow runs/other")
            token(visit, 2).click()
            visit.page.click("#draw")
            if same:
                visit.page.locator("h2", has_text="runs/known").wait_for(state="detached")
                drawn(visit)
                assert server.draws[-1]["flow"] == "runs/other"
            else:
                visit.page.locator("#message", has_text="The holes are those of runs/known").wait_for()
            assert visit.errors == []
