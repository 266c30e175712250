"""Copies and saved pages of the page in Chromium."""

import pytest
from chromium import missing
from page_server import PageServer
from page_visits import STILL, count, draw, drawn, known, looks, move_slider, token, tokens, written

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def saved(visit, file):
    with visit.page.expect_download() as download:
        visit.page.click("#save")
    assert download.value.suggested_filename == "hops.html"
    download.value.save_as(file)
    visit.page.locator("#shared", has_text="Saved as hops.html.").wait_for()
    return file


def test_a_saved_page_has_the_counts_the_states_and_the_commands(browser, tmp_path):
    first = known(["a", "b"], [(0.2, 0, "x"), (0.4, 0, "y"), (0.6, 1, "x")], name="runs/a", predicted=4.0)
    second = known(["a", "b"], [(0.2, 0, "x"), (0.6, 1, "y")], name="runs/b")
    with PageServer([first, second]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.fill("#prompt", "a")
        draw(visit)
        file = saved(visit, tmp_path / "saved.html")
        shown = [(tokens(visit, i), looks(visit, i), count(visit, "hops", i)) for i in (0, 1)]
        assert shown[0][1:] == (["pinned", "final"], "1")
    with browser.open(file, **STILL) as page:
        assert [(tokens(page, i), looks(page, i), count(page, "hops", i)) for i in (0, 1)] == shown
        assert page.text("h1") == page.page.title() == "Hops of runs/a and runs/b"
        same = "the same number of hops, the same number of network calls"
        assert page.text("#difference") == f"runs/b against runs/a: {same}."
        assert page.text("#command") == "hopflow sample runs/a n=1 seed=0\nhopflow sample runs/b n=1 seed=0"
        assert count(page, "predicted") == "≈ 2 predicted"
        move_slider(page, 0)
        assert (looks(page), count(page, "hops")) == (["pinned", "source"], "0")
        assert page.errors == []


def test_names_in_a_saved_page_are_text_and_never_markup(browser, tmp_path):
    with PageServer([written(["a"], name=ATTACK)]).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        file = saved(visit, tmp_path / "saved.html")
        assert visit.dialogs == visit.errors == []
    with browser.open(file, **STILL) as page:
        assert page.texts("h2") == [ATTACK]
        assert page.text("h1") == page.page.title() == f"Hops of {ATTACK}"
        assert page.page.locator("img").count() == 0
        assert page.dialogs == page.errors == []


def test_programs_of_all_flows_are_copied_and_without_permission_they_can_be_selected(browser):
    flows = [written(["a"], name="runs/a"), written(["a"], name="runs/b")]
    programs = "\n\n".join(f"import hopflow as hf\n\nsaved = hf.from_pretrained('{flow.id}')" for flow in flows)
    with PageServer(flows).running() as server, browser.open(server.address, **STILL) as visit:
        drawn(visit)
        visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        visit.page.click("#copy-python")
        visit.page.locator("#shared", has_text="Copied.").wait_for()
        assert visit.run("() => navigator.clipboard.readText()") == programs
        assert visit.page.locator("#copied").is_hidden()
        visit.run("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')); }")
        visit.page.click("#copy-python")
        visit.page.locator("#shared", has_text="Select the text and copy it.").wait_for()
        assert visit.page.locator("#copied").is_visible()
        assert visit.run("() => String(getSelection())") == programs
        draw(visit)
        assert visit.page.locator("#copied").is_hidden()


def test_only_a_complete_draw_can_be_copied_saved_and_edited(browser):
    with (
        PageServer([written(["a", " b"])], complete=False).running() as server,
        browser.open(server.address) as visit,
    ):
        visit.page.locator(".panel .error", has_text="The connection ended").wait_for()
        visit.page.locator("#panels[aria-busy='false']").wait_for()
        for button in ("#copy-command", "#copy-python", "#save"):
            assert visit.page.locator(button).is_disabled()
        token(visit, 0).click()
        assert visit.page.locator("#edit-tools").is_hidden()
        server.complete = True
        draw(visit)
        for button in ("#copy-command", "#copy-python", "#save"):
            assert visit.page.locator(button).is_enabled()
        token(visit, 0).click()
        assert visit.page.locator("#edit-tools").is_visible()
