"""Draw how the tokens of one sample hop from noise to text, as an animated SVG.

    python tools/hops_animation.py runs/hops docs/pictures/hops.svg --seed 1

The sample is drawn here from the run's newest checkpoint; every hop in the picture is one that the sampler made. The
animation is SMIL and needs no script, so that a code host shows it. It follows the reader's light or dark scheme, and
shows the finished text alone to readers who prefer reduced motion.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

import hopflow as hf

CHARACTER, LINE, SIZE, MARGIN = 9.0, 30.0, 15, 22.0
"""Width of a character, height of a line, font size and margin, in pixels."""
COLUMNS = 78
"""Characters of the finished text per line."""
HOLD, MOVE, END = 1.0, 6.0, 3.0
"""Seconds that show the noise, the way from t = 0 to t = 1, and the text."""
GLIDE = 0.18
"""Seconds in which a token takes its new place in the line."""
FLASH = 0.7
"""Seconds in which a token that has just hopped is highlighted."""
TOTAL = HOLD + MOVE + END
STYLE = """
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink) }
:root { --ink: #1f2328; --noise: #9aa1a9; --hop: #d55e00; --bar: #d8dee4 }
.noise { fill: var(--noise) }
.hop { fill: var(--hop) }
.still { display: none }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --noise: #6e7681; --hop: #f0a35e; --bar: #30363d } }
@media (prefers-reduced-motion: reduce) { .moving { display: none } .still { display: inline } }
"""


@dataclass(frozen=True)
class State:
    """A token at one position, from a time on."""

    since: float
    text: str


def histories(run: str, length: int, steps: int, seed: int) -> list[list[State]]:
    """The tokens of each position of one sample, in the order of time."""
    saved = hf.from_pretrained(run)
    sample = hf.generate(saved.model, saved.flow, n=1, length=length, steps=steps, seed=seed, trajectory=True)

    def shown(token: int) -> str:
        text = saved.tokenizer.decode([token]) if token < saved.flow.vocab.data else "░"
        return text.replace("\n", "⏎")

    found = [[State(0.0, shown(token))] for token in sample.x0[0].tolist()]
    hops = sample.hops
    assert hops is not None
    for t, position, token in zip(hops.t.tolist(), hops.position.tolist(), hops.after.tolist(), strict=True):
        found[position].append(State(t, shown(token)))
    return found


def lines(positions: list[list[State]]) -> list[list[list[State]]]:
    """Positions cut into lines where the finished text is long enough and a word ends."""
    found: list[list[list[State]]] = [[]]
    width = 0
    for states in positions:
        final = states[-1].text
        if width + len(final) > COLUMNS and final.startswith(" "):
            found.append([])
            width = 0
        found[-1].append(states)
        width += len(final)
    return found


def at(states: list[State], t: float) -> State:
    return [state for state in states if state.since <= t][-1]


def second(t: float) -> float:
    return HOLD + MOVE * t


def key_times(seconds: list[float]) -> str:
    return ";".join(f"{max(0.0, min(1.0, s / TOTAL)):.4f}".rstrip("0").rstrip(".") for s in seconds)


def animate(attribute: str, frames: list[tuple[float, str]], mode: str = "discrete") -> str:
    """An animation of one attribute: values, each from its second on."""
    if len({value for _, value in frames}) < 2:
        return ""
    values = ";".join(value for _, value in frames)
    return (
        f'<animate attributeName="{attribute}" values="{values}" keyTimes="{key_times([s for s, _ in frames])}" '
        f'calcMode="{mode}" dur="{TOTAL:g}s" repeatCount="indefinite"/>'
    )


def positions_over_time(line: list[list[State]]) -> Iterator[list[tuple[float, float]]]:
    """For each position of a line where it begins, in characters, at each time at which the line changes."""
    times = sorted({state.since for states in line for state in states})
    starts = []
    for t in times:
        texts = [at(states, t).text for states in line]
        if texts:  # the blank before the first word of a line is not shown
            texts[0] = texts[0].lstrip(" ")
        starts.append([sum(map(len, texts[:i])) for i in range(len(texts))])
    for i in range(len(line)):
        yield list(zip(times, (row[i] for row in starts), strict=True))


def glide(places: list[tuple[float, float]]) -> str:
    """The shift of a token as the words before it change their lengths."""
    frames = [(0.0, places[0][1])]
    for t, place in places[1:]:
        if place != frames[-1][1]:
            frames += [(second(t), frames[-1][1]), (second(t) + GLIDE, place)]
    frames.append((TOTAL, frames[-1][1]))
    # a second change before the first glide has ended must not go back in time
    seconds = [max(s for s, _ in frames[: i + 1]) for i in range(len(frames))]
    values = ";".join(f"{MARGIN + CHARACTER * place:g} 0" for _, place in frames)
    if len({place for _, place in frames}) == 1:
        return ""
    return (
        f'<animateTransform attributeName="transform" type="translate" values="{values}" '
        f'keyTimes="{key_times(seconds)}" dur="{TOTAL:g}s" repeatCount="indefinite"/>'
    )


def visible(begin: float, end: float) -> str:
    """What shows an element from one second to another; `begin` 0 and `end` TOTAL need no switch."""
    frames = [(0.0, "0")] * (begin > 0) + [(begin, "1")] + [(end, "0")] * (end < TOTAL)
    return animate("opacity", frames)


def token(states: list[State], i: int, y: float, first: bool) -> str:
    """One token of a position: seen from its hop to the next one, and highlighted for a moment after its hop."""
    text = states[i].text.lstrip(" ") if first else states[i].text
    blanks = len(text) - len(text.lstrip(" "))
    begin = second(states[i].since) if i else 0.0
    end = second(states[i + 1].since) if i + 1 < len(states) else TOTAL
    if i == 0:
        parts = [("noise" if len(states) > 1 else "", begin, end)]
    elif i + 1 < len(states):
        parts = [("hop", begin, end)]
    else:
        parts = [("hop", begin, begin + FLASH), ("", begin + FLASH, end)]
    start = f' x="{CHARACTER * blanks:g}"' if blanks else ""
    hidden = ' opacity="0"' if i else ""
    return "".join(
        f'<text{start} y="{y:g}" class="{kind}"{hidden}>{escape(text.strip(" "))}{visible(*seconds)}</text>'
        for kind, *seconds in parts
    )


def picture(positions: list[list[State]]) -> str:
    rows = lines(positions)
    width = 2 * MARGIN + CHARACTER * (COLUMNS + 10)
    height = MARGIN + LINE * (len(rows) + 1.6)
    moving, still = [], []
    for number, line in enumerate(rows):
        y = MARGIN + LINE * (number + 0.5)
        for i, (states, places) in enumerate(zip(line, positions_over_time(line), strict=True)):
            tokens = "".join(token(states, n, y, first=i == 0) for n in range(len(states)))
            start = f"{MARGIN + CHARACTER * places[0][1]:g}"
            moving.append(f'<g transform="translate({start} 0)">{tokens}{glide(places)}</g>')
        text = "".join(states[-1].text for states in line).lstrip(" ")
        still.append(f'<text x="{MARGIN:g}" y="{y:g}">{escape(text)}</text>')
    times = sorted(state.since for states in positions for state in states[1:])
    y = height - LINE * 0.7
    bar = width - 2 * MARGIN - 200
    grown = [(0.0, "0"), (second(0), "0"), (second(1), f"{bar:g}"), (TOTAL, f"{bar:g}")]
    moving.append(
        f'<rect x="{MARGIN:g}" y="{y - 8:g}" width="{bar:g}" height="4" rx="2" fill="var(--bar)"/>'
        f'<rect x="{MARGIN:g}" y="{y - 8:g}" width="0" height="4" rx="2" fill="var(--hop)">'
        f"{animate('width', grown, 'linear')}</rect>"
    )
    counts = [(0.0, "t = 0.00    0 hops")]
    for n in range(1, 41):
        t = n / 40
        counts.append((second(t), f"t = {t:.2f}  {sum(time <= t for time in times):3d} hops"))
    for i, (begin, label) in enumerate(counts):
        end = counts[i + 1][0] if i + 1 < len(counts) else TOTAL
        hidden = ' opacity="0"' if i else ""
        moving.append(
            f'<text x="{width - MARGIN:g}" y="{y:g}" text-anchor="end" xml:space="preserve"{hidden}>'
            f"{label}{visible(begin, end)}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-size="{SIZE}" role="img"><title>Tokens that hop from noise to text</title>'
        f'<style>{STYLE}</style><g class="moving">{"".join(moving)}</g><g class="still">{"".join(still)}</g></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="folder of a run")
    parser.add_argument("out", type=Path, help="SVG file to write")
    parser.add_argument("--length", type=int, default=64, help="tokens of the sample")
    parser.add_argument("--steps", type=int, default=256, help="Euler steps")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    positions = histories(asked.run, asked.length, asked.steps, asked.seed)
    asked.out.write_text(picture(positions), encoding="utf-8")
    print("".join(states[-1].text for states in positions))
    print(f"{sum(len(states) - 1 for states in positions)} hops; {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
