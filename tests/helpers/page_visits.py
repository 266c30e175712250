"""The page of `hopflow serve` in tests: what they wait for, what they see, and flows whose draws are known."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from chromium import Visit
from page_server import PageServer, ServedFlow

import hopflow as hf

LENGTH = 40
STILL = {"reduced_motion": "reduce"}
"""Draws are shown at their end at once."""
LOOKS = ("source", "moved", "hopped", "final", "pinned", "hole")
SLIDER = "[aria-label='Time t, from noise to text']"


def drawn(visit: Visit) -> None:
    """Wait until everything was drawn and is shown at its end."""
    visit.page.locator("#panels[aria-busy='false']").wait_for()
    visit.page.locator("#save:enabled").wait_for()
    visit.page.locator(".clock", has_text="t = 1.00").wait_for()


def draw(visit: Visit, button: str = "#draw") -> None:
    visit.page.click(button)
    drawn(visit)


def move_slider(visit: Visit, t: float) -> None:
    visit.page.locator(SLIDER).fill(str(round(1000 * t)))


def tokens(visit: Visit, panel: int = 0) -> str:
    return str(visit.page.locator(".tokens").nth(panel).text_content())


def states(visit: Visit, panel: int = 0) -> list[str]:
    script = "(spans) => spans.map((span) => span.className.replace(/ hop-[ab]/, ''))"
    return list(visit.page.locator(".tokens").nth(panel).locator("[data-position]").evaluate_all(script))


def looks(visit: Visit, panel: int = 0) -> list[str]:
    """The state of each token, without the other classes."""
    return [" ".join(name for name in each.split() if name in LOOKS) for each in states(visit, panel)]


def holes(visit: Visit) -> list[int]:
    return [i for i, state in enumerate(looks(visit)) if state == "hole"]


def token(visit: Visit, position: int) -> Any:
    return visit.page.locator(".tokens").first.locator(f"[data-position='{position}']")


def count(visit: Visit, name: str, panel: int = 0) -> str:
    return str(visit.page.locator(f"[data-part='{name}']").nth(panel).text_content())


def expected(server: PageServer) -> hf.Generation:
    """What the last request has to show, drawn in Python."""
    request = server.draws[-1]
    return server.flow(request["flow"]).drawn(request)


def text_of(flow: ServedFlow, out: hf.Generation) -> str:
    return str(flow.tokenizer.decode(out.tokens[0].tolist()))


class Pieces:
    """A tokenizer of these texts; a text is split from left to right into the longest of them."""

    end = None

    def __init__(self, texts: list[str]) -> None:
        self.texts = list(dict.fromkeys(texts))

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        while text:
            fitting = [each for each in self.texts if each and text.startswith(each)]
            if not fitting:
                raise ValueError(f"there is no token for {text[0]!r}")
            longest = max(fitting, key=len)
            found.append(self.texts.index(longest))
            text = text[len(longest) :]
        return found

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.texts[token] for token in tokens)


@dataclass(frozen=True)
class KnownFlow(ServedFlow):
    """A flow whose draws are known: these source tokens, and these hops as (t, position, text)."""

    source: tuple[str, ...] = ()
    hops: tuple[tuple[float, int, str], ...] = ()

    def id_of(self, text: str) -> int:
        return int(self.flow.vocab.data if text == "░" else self.tokenizer.texts.index(text))

    def drawn(self, request: dict[str, Any]) -> Any:
        length = request["length"]
        prompt = request.get("prompt") or [None] * length
        row = [self.id_of(self.source[i % len(self.source)]) for i in range(length)]
        row = [mine if entry is None else entry["id"] for mine, entry in zip(row, prompt, strict=True)]
        now, made = list(row), []
        for t, position, text in self.hops:
            if position < length and prompt[position] is None:
                made.append((t, position, now[position], self.id_of(text)))
                now[position] = made[-1][-1]
        columns = [torch.tensor(column) for column in zip(*made, strict=True)] or [torch.tensor([])] * 4
        hops = SimpleNamespace(**dict(zip(("t", "position", "before", "after"), columns, strict=True)))
        fixed = torch.tensor([[entry is not None for entry in prompt]])
        calls = torch.tensor([len({hop[0] for hop in made})])
        end = {"tokens": torch.tensor([now]), "jumps": torch.tensor([len(made)]), "calls": calls}
        return SimpleNamespace(x0=torch.tensor([row]), fixed=fixed, hops=hops, **end)


def known(
    source: list[str],
    hops: list[tuple[float, int, str]],
    others: tuple[str, ...] = (),
    name: str = "runs/known",
    predicted: float | None = None,
) -> KnownFlow:
    """A flow whose draws are known; `others` are further texts of its tokenizer. A mask is written ░."""
    texts = [text for text in [*source, *(text for _, _, text in hops), *others] if text != "░"]
    pieces = Pieces(texts)
    made = hf.Mask if "░" in source else hf.Uniform
    flow = hf.Flow(made(hf.Vocab(len(pieces.texts), masks=int("░" in source))))
    return KnownFlow(name, None, flow, pieces, predicted, len(source), source=tuple(source), hops=tuple(hops))


def written(texts: list[str], name: str = "runs/known", others: tuple[str, ...] = ()) -> KnownFlow:
    """A flow that draws this text, each token with one hop from the token “?”."""
    hops = [((i + 1) / (len(texts) + 2), i, text) for i, text in enumerate(texts)]
    return known(["?"] * len(texts), hops, others, name)
