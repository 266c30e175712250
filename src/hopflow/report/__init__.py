"""Reports on one or several runs: one offline page with figures.

report.html              the page, one file that loads nothing else
report.md                the same as markdown
report.json              every number of the page
report/NAME.svg .png     its figures
"""

import json
from collections.abc import Sequence
from pathlib import Path

from .. import atomic
from .compose import compose
from .figures import standalone
from .markdown import document
from .numbers import json_ready
from .page import page
from .section import Block, Figure, Folded
from .story import Story, named

FILE, FIGURES = "report.html", "report"
Told = Story | Path | str
"""A run: its story, or its folder."""


def write(runs: Told | Sequence[Told], out: Path | str | None = None) -> Path:
    """Write the report on one or several runs, each a folder or a story; return the path of the page.

    `out` is the folder to write to: by default the folder of a single run, `./report` for several.
    """
    stories = told([runs] if isinstance(runs, Story | Path | str) else runs)
    folder = Path(out) if out is not None else stories[0].folder if len(stories) == 1 else Path(FIGURES)
    report = compose(stories)
    drawings = folder / FIGURES
    drawings.mkdir(parents=True, exist_ok=True)
    for figure in (figure for section in report.sections for figure in _figures(section.blocks)):
        atomic.write(drawings / f"{figure.name}.svg", standalone(figure).encode())
        atomic.write(drawings / f"{figure.name}.png", figure.png)
    text = json.dumps(json_ready(report.as_json()), indent=1, allow_nan=False)
    atomic.write(folder / "report.json", f"{text}\n".encode())
    atomic.write(folder / "report.md", document(report, FIGURES).encode(errors="replace"))
    atomic.write(folder / FILE, page(report).encode(errors="replace"))
    return folder / FILE


def told(runs: Sequence[Told]) -> list[Story]:
    """The runs, each with a unique name."""
    names = named([run.folder if isinstance(run, Story) else Path(run) for run in runs])
    stories = [run if isinstance(run, Story) else Story.load(run) for run in runs]
    return [story.renamed(name) for story, name in zip(stories, names, strict=True)]


def _figures(blocks: Sequence[Block]) -> list[Figure]:
    """All figures, also folded ones."""
    folded = [figure for block in blocks if isinstance(block, Folded) for figure in _figures(block.blocks)]
    return [*(block for block in blocks if isinstance(block, Figure)), *folded]
