"""Pages in the system's Chromium: what is seen of them, what they say and what they ask for."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SCREENSHOTS = "HOPFLOW_SCREENSHOTS"
"""Names a folder that pictures are saved to, for whoever wants to look."""

CONTRAST = """
() => {
  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const over = (front, back) => {
    const alpha = front.length > 3 ? front[3] : 1;
    return front.slice(0, 3).map((value, i) => alpha * value + (1 - alpha) * back[i]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const colour = parts(getComputedStyle(element).backgroundColor);
    return colour.length === 4 && colour[3] === 0 ? behind(element.parentElement)
      : over(colour, behind(element.parentElement));
  };
  for (const animation of document.getAnimations())
    if (Number.isFinite(animation.effect.getComputedTiming().endTime)) animation.finish();
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, style = getComputedStyle(element);
    const box = element.getBoundingClientRect();
    if (!walker.currentNode.data.trim() || !box.width || element.closest("script, style, title")) continue;
    const back = behind(element), front = over(parts(element.closest("svg") ? style.fill : style.color), back);
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), walker.currentNode.data.trim().slice(0, 60), element.tagName]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
"""
"""The contrast of every text with what is behind it, the lowest first (WCAG 2). Animations are skipped to their end."""

CUT = """
() => {
  const wide = document.documentElement.clientWidth, found = [];
  const scrolls = (element) => element && (
    ["auto", "scroll"].includes(getComputedStyle(element).overflowX) || scrolls(element.parentElement));
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect(), svg = element.closest("svg"), name = element.className || element.id;
    if (!box.width || ["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    if (svg && element.tagName === "text") {
      const frame = svg.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2
          || box.bottom > frame.bottom + 2) found.push(["beyond its drawing", element.textContent]);
    } else if (!svg && !scrolls(element)) {
      if (box.right > wide + 1 || box.left < -1) found.push(["beyond the page", element.tagName, name]);
      if (getComputedStyle(element).overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1)
        found.push(["hidden", element.tagName, name, element.textContent.slice(0, 40)]);
    }
  }
  return found;
}
"""
"""What cannot be seen at this width: it leaves the page or its drawing, or is hidden."""

LETTERS = """
() => [...document.querySelectorAll("svg text")].filter((text) => text.textContent.trim()).map((text) => {
  const matrix = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
})
"""
"""Sizes of the letters of drawings as they are seen, in pixels."""


def missing() -> str | None:
    """Why no page can be opened here, or None."""
    if find_spec("playwright") is None:
        return "playwright is not installed: pip install 'hopflow[dev]'"
    if not any(map(shutil.which, NAMES)):
        return f"there is no {', '.join(NAMES[:-1])} or {NAMES[-1]} on the PATH"
    return None


@dataclass
class Visit:
    """An open page, with everything that it said and asked for since."""

    page: Any
    errors: list[str] = field(default_factory=list)
    """Exceptions, and messages of the console that are errors or warnings."""
    said: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.page.locator(selector).all_text_contents()]

    def run(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def style(self, selector: str, name: str) -> str:
        script = "([selector, name]) => getComputedStyle(document.querySelector(selector)).getPropertyValue(name)"
        return str(self.run(script, [selector, name]))

    def stop_clock(self) -> None:
        """From now on, time passes for the page only in `page.clock.run_for(milliseconds)`."""
        self.page.clock.install(time=0)
        self.page.clock.pause_at(1000)

    @property
    def scrolls_sideways(self) -> bool:
        return bool(self.run("() => document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"))

    def contrasts(self) -> list[tuple[float, str, str]]:
        return [tuple(found) for found in self.run(CONTRAST)]

    def cut(self) -> list[list[str]]:
        return list(self.run(CUT))

    def letters(self) -> list[float]:
        return list(self.run(LETTERS))

    def picture(self, name: str, selector: str | None = None) -> None:
        """Save what is seen, whole or of one element, where a folder for pictures is named."""
        folder = os.environ.get(SCREENSHOTS)
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            seen = self.page.locator(selector).first if selector else self.page
            seen.screenshot(path=str(Path(folder) / f"{name}.png"), **({} if selector else {"full_page": True}))


class Chromium:
    """One browser for many pages."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    @classmethod
    @contextmanager
    def launched(cls) -> Iterator["Chromium"]:
        from playwright.sync_api import sync_playwright

        executable = next(filter(None, map(shutil.which, NAMES)))
        root = getattr(os, "geteuid", lambda: 1)() == 0  # its sandbox refuses to be root's
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=not root)
            try:
                yield cls(browser)
            finally:
                browser.close()

    @contextmanager
    def open(self, place: Path | str, width: int = 1440, height: int = 900, **media: str) -> Iterator[Visit]:
        """Open a file or an address. `media`: color_scheme="dark", media="print", reduced_motion="reduce"."""
        context = self._browser.new_context(viewport={"width": width, "height": height})
        try:
            visit = Visit(context.new_page())
            page = visit.page
            page.emulate_media(**media)
            page.on("console", lambda message: self._heard(visit, message))
            page.on("pageerror", lambda error: visit.errors.append(str(error)))
            page.on("request", lambda request: visit.requests.append(request.url))
            page.on("dialog", lambda dialog: (visit.dialogs.append(dialog.message), dialog.dismiss()))
            page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
            yield visit
        finally:
            context.close()

    @staticmethod
    def _heard(visit: Visit, message: Any) -> None:
        visit.said.append(f"{message.type}: {message.text}")
        if message.type in ("error", "warning"):
            visit.errors.append(message.text)
