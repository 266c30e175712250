"""The page in a browser, with a server that replays draws: what is seen, clicked, typed, copied and saved."""

import json

import pytest
from chromium import missing
from page_server import PageServer, ServedFlow
from page_visits import LENGTH, STILL, count, draw, drawn, expected, states, text_of, token, tokens

import hopflow as hf

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def test_a_draw_shows_the_tokens_and_counts_of_generate(browser, flows):
    flow = flows[0]
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        out = hf.generate(flow.model, flow.flow, n=1, length=LENGTH, steps=32, seed=0)
        assert tokens(visit) == text_of(flow, out)
        assert (count(visit, "hops"), count(visit, "calls")) == (str(int(out.jumps[0])), str(int(out.calls[0])))
        assert (count(visit, "predicted"), count(visit, "steps")) == ("≈ 36 predicted", "of 32 steps")
        assert set(states(visit)) == {"token final"}
        assert visit.errors == []
        assert all(url.startswith((server.address, "data:")) for url in visit.requests)


def test_hops_are_played_and_the_slider_returns_to_the_noise(browser, flows):
    flow = flows[0]
    with PageServer([flow]).running() as server, browser.open(server.address) as visit:
        visit.page.select_option("[aria-label='Speed']", "4")
        visit.page.locator(".tokens .token.moved").first.wait_for()
        drawn(visit)
        slider = visit.page.locator("[aria-label='Time t, from noise to text']")
        slider.fill("0")
        out = expected(server)
        assert tokens(visit) == flow.tokenizer.decode(out.x0[0].tolist())
        assert set(states(visit)) == {"token source"}
        token(visit, 0).hover()
        assert visit.text("#history").startswith("Token 1 · noise")
        assert count(visit, "hops") == "0"
        slider.fill("500")
        assert out.hops is not None
        assert count(visit, "hops") == str(int((out.hops.t < 0.5).sum()))
        assert slider.get_attribute("aria-valuetext").startswith("t = 0.50, ")
        visit.page.click("[aria-label='Play']")
        drawn(visit)
        assert tokens(visit) == text_of(flow, out)
        assert visit.errors == []


def test_a_token_tells_its_history_on_hover_and_on_focus(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        hops = expected(server).hops
        assert hops is not None
        moved = int(hops.position[0])
        rows = int((hops.position == moved).sum())
        for look in (token(visit, moved).hover, token(visit, moved).focus):
            visit.page.mouse.move(0, 0)
            assert visit.page.locator("#history").is_hidden()
            look()
            assert visit.page.locator("#history").is_visible()
            assert visit.text("#history").startswith(f"Token {moved + 1} · final")
            assert visit.page.locator("#history li").count() == rows
            assert token(visit, moved).get_attribute("aria-describedby") == "history"
        visit.page.keyboard.press("Escape")
        assert visit.page.locator("#history").is_hidden()


def test_a_clicked_word_is_a_hole_that_is_drawn_again(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        before = tokens(visit)
        word = next(i for i in range(1, LENGTH) if before[i] != " " and before[i - 1] == " ")
        until = next((i for i in range(word, LENGTH) if before[i] == " "), LENGTH)
        token(visit, word).click()
        assert [i for i, state in enumerate(states(visit)) if "hole" in state] == list(range(word, until))
        assert token(visit, word).get_attribute("aria-pressed") == "true"
        token(visit, word).click()
        assert set(states(visit)) == {"token pinned"}
        assert visit.page.locator("#draw-again").is_disabled()
        token(visit, word).click()
        draw(visit, "#draw-again")
        prompt = server.draws[-1]["prompt"]
        assert [entry is None for entry in prompt] == [word <= i < until for i in range(LENGTH)]
        assert tokens(visit) == text_of(server.flows[0], expected(server))
        assert tokens(visit)[:word] == before[:word]
        assert [i for i, state in enumerate(states(visit)) if "final" in state] == list(range(word, until))
        draw(visit, "#draw-again")  # the same request once more takes the next seed
        assert (server.draws[-1]["prompt"], server.draws[-1]["seed"]) == (prompt, 1)
        assert visit.errors == []


def test_a_click_during_the_hops_takes_a_word_of_the_text(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        text = tokens(visit)
        visit.page.locator("[aria-label='Time t, from noise to text']").fill("0")
        noise = tokens(visit)
        words = [(i, text.find(" ", i)) for i in range(1, LENGTH) if text[i] != " " and text[i - 1] == " "]
        word, until = next((start, end) for start, end in words if end > 0 and noise[start:end] != text[start:end])
        token(visit, word).click()
        assert tokens(visit) == text
        assert visit.text(".clock") == "t = 1.00"
        assert [i for i, state in enumerate(states(visit)) if "hole" in state] == list(range(word, until))
        assert visit.errors == []


def test_a_refused_change_stays_to_be_corrected(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        token(visit, 0).focus()
        visit.page.keyboard.type("f☃x")
        visit.page.keyboard.press("Enter")
        message = visit.page.locator("#message", has_text="☃")
        message.wait_for()
        assert visit.page.input_value("#change") == "f☃x"
        hint = visit.page.locator("#prompt-hint").bounding_box()
        assert message.bounding_box()["y"] >= hint["y"] + hint["height"] + 8
        visit.page.fill("#change", "fox")
        visit.page.press("#change", "Enter")
        visit.page.locator("[data-position='0'][aria-label='f, pinned']").wait_for()
        assert visit.page.input_value("#change") == ""
        assert message.is_hidden()


def test_a_slider_of_powers_of_two_says_the_number(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        slider = visit.page.locator("[aria-label='Steps, slider']")
        assert slider.get_attribute("aria-valuetext") == "32"
        visit.page.fill("#setting-steps", "8")
        assert slider.get_attribute("aria-valuetext") == "8"
        slider.fill("4")
        assert (visit.page.input_value("#setting-steps"), slider.get_attribute("aria-valuetext")) == ("16", "16")


def test_settings_between_the_steps_of_their_sliders_are_drawn(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#setting-temperature", "0.33")
        visit.page.fill("#setting-eta", "0.25")
        draw(visit)
        assert (server.draws[-1]["temperature"], server.draws[-1]["eta"]) == (0.33, 0.25)
        visit.page.locator("[aria-label='Temperature, slider']").fill("0.7")
        assert visit.page.input_value("#setting-temperature") == "0.7"
        assert visit.page.input_value("#setting-eta") == "0.25"


def test_the_bar_of_hops_needs_a_prediction(browser, flows):
    unknown = ServedFlow("runs/new", flows[1].model, flows[1].flow, flows[1].tokenizer, None, LENGTH)
    with PageServer([flows[0], unknown]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        assert [visit.page.locator(".meter").nth(panel).is_visible() for panel in (0, 1)] == [True, False]
        assert (count(visit, "predicted", 0), count(visit, "predicted", 1)) == ("≈ 36 predicted", "")


def test_the_keyboard_makes_holes_and_changes_words(browser, flows):
    flow = flows[0]
    with PageServer([flow]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        before = tokens(visit)
        token(visit, 0).focus()
        visit.page.keyboard.press("End")
        visit.page.keyboard.press("Shift+Enter")
        assert [i for i, state in enumerate(states(visit)) if "hole" in state] == [LENGTH - 1]
        visit.page.keyboard.press("Home")
        visit.page.keyboard.type("fox")
        visit.page.keyboard.press("Enter")
        visit.page.locator("[data-position='0'][aria-label='f, pinned']").wait_for()
        assert visit.run("() => document.activeElement.dataset.position") == "0"
        draw(visit, "#draw-again")
        assert tokens(visit).startswith("fox")
        assert tokens(visit)[3:-1] in before
        assert visit.errors == []


def test_a_prompt_is_kept_around_its_holes(browser, flows):
    with PageServer(flows[:1]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#prompt", "the [MASK:3] fox")
        draw(visit)
        ids = iter(server.flows[0].tokenizer.encode("the  fox"))
        wanted = [{"id": next(ids)} if i < 4 or 6 < i < 11 else None for i in range(LENGTH)]
        assert server.draws[-1]["prompt"] == wanted
        assert tokens(visit)[:4] + tokens(visit)[7:11] == "the  fox"
        visit.page.fill("#prompt", "the ☃")
        visit.page.click("#draw")
        visit.page.locator("#message", has_text="☃").wait_for()


def test_two_flows_start_from_the_same_noise_and_their_counters_are_compared(browser, flows):
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        made = [hf.generate(each.model, each.flow, n=1, length=LENGTH, steps=32, seed=0) for each in flows]
        for panel, (flow, out) in enumerate(zip(flows, made, strict=True)):
            assert tokens(visit, panel) == text_of(flow, out)
            assert count(visit, "hops", panel) == str(int(out.jumps[0]))
        first, second = (int(out.jumps[0]) for out in made)
        assert first != second
        compared = f"{abs(second - first)} {'fewer' if second < first else 'more'} hop"
        assert f"runs/second against runs/first: {compared}" in visit.text("#difference")
        visit.page.locator("[aria-label='Time t, from noise to text']").fill("0")
        assert tokens(visit, 0) == tokens(visit, 1)
        assert "The noise differs" not in visit.text("#difference")
        visit.page.select_option("#show", "steps runs/second")
        draw(visit)
        assert visit.texts("h2") == ["runs/second, 32 steps", "runs/second, 4 steps"]
        calls = [int(count(visit, "calls", panel)) for panel in (0, 1)]
        assert calls[1] <= 4 < calls[0]
        assert f"{calls[0] - calls[1]} fewer network calls" in visit.text("#difference")
        assert visit.errors == []


def test_a_saved_page_plays_by_itself_without_any_request(browser, flows, tmp_path):
    hostile = tmp_path / "saved.html"
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        shown = [tokens(visit, 0), tokens(visit, 1)]
        with visit.page.expect_download() as download:
            visit.page.click("#save")
        download.value.save_as(hostile)
    with browser.open(hostile) as saved:
        saved.page.select_option("[aria-label='Speed']", "4")
        saved.page.locator(".tokens .token.moved").first.wait_for()
        saved.page.locator(".clock", has_text="t = 1.00").wait_for()
        assert [tokens(saved, 0), tokens(saved, 1)] == shown
        assert saved.requests == [hostile.resolve().as_uri()]
        assert saved.page.locator("[role='button']").count() == 0
        assert saved.errors == []


def test_commands_and_programs_are_copied(browser, flows):
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visit.page.click("#copy-command")
        visit.page.locator("#shared", has_text="Copied.").wait_for()
        copied = "hopflow sample runs/first n=1 seed=0\nhopflow sample runs/second n=1 seed=0"
        assert visit.run("() => navigator.clipboard.readText()") == copied
        draw(visit)
        assert visit.text("#shared") == ""


def test_what_the_server_says_is_text_and_never_markup(browser, flows, masked):
    attack = "<img src=x onerror=alert(1)>\u202e"
    flow = ServedFlow(attack, masked.model, masked.flow, masked.tokenizer, None, LENGTH)
    with (
        PageServer([flow], error=attack).running() as server,
        browser.open(server.address, **STILL) as visit,
    ):
        visit.page.locator(".panel .error", has_text="<img").wait_for()
        assert visit.page.locator("img").count() == 0
        assert visit.dialogs == visit.errors == []
        assert visit.page.locator("[aria-label='Play'], [aria-label='Step']").count() == 1


def test_a_busy_server_is_asked_again_and_a_token_leaves_the_address(browser, masked):
    server = PageServer([masked], busy=1, token="secret")
    with server.running(), browser.open(f"{server.address}#token=secret", **STILL) as visit:
        visit.page.locator("#message", has_text="busy").wait_for()
        drawn(visit)
        assert visit.page.url == server.address
        assert visit.page.locator("#message").is_hidden()
    with server.running(), browser.open(server.address, **STILL) as visit:
        visit.page.locator("#message", has_text="needs a token").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_fits_the_window_and_its_text_has_contrast(browser, flows, masked, width, scheme):
    with (
        PageServer([flows[0], masked]).running() as server,
        browser.open(server.address, width, color_scheme=scheme) as visit,
    ):
        visit.page.locator(".tokens .token.moved").first.wait_for()
        visit.page.click("[aria-label='Pause']")
        visit.picture(f"page {width} {scheme}")
        assert not visit.scrolls_sideways
        assert [found for found in visit.cut() if "unseen" not in found] == []
        low = [found for found in visit.contrasts() if found[0] < 4.5 and set(found[1]) != {"░"}]
        assert low == []
        assert visit.errors == []


def test_only_the_end_of_a_draw_is_announced(browser, flows):
    """What a screen reader hears by itself: live regions, which change once per draw."""
    with PageServer(flows[:1], delay=0.01).running() as server, browser.open(server.address) as visit:
        visit.run(
            """() => {
              window.heard = [];
              const live = document.querySelectorAll("[role='status'], [role='alert'], [aria-live], output");
              const watch = new MutationObserver((changes) => window.heard.push(changes[0].target.textContent));
              for (const region of live) watch.observe(region, { childList: true, characterData: true, subtree: true });
            }"""
        )
        drawn(visit)
        heard = [text for text in visit.run("() => window.heard") if text]
        assert len(heard) == 1
        assert json.dumps(text_of(flows[0], expected(server)))[1:-1].strip() in heard[0]
