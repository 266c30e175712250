"""Reports on one or several runs: one offline page with figures.

report.html              the page, one file that loads nothing else
report.md                the same as markdown
report.json              every number of the page
report/NAME.svg .png     its figures
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..bounds.estimate import for_json
from ..runs.run_folder import FIGURES
from ..system import atomic
from .blocks import Block, Collapsible, Figure
from .figures import standalone
from .markdown import render_markdown
from .page import render_page
from .run_data import RunData, unique_names
from .sections import compose

FILE = "report.html"
RunOrFolder = RunData | Path | str


def write(runs: RunOrFolder | Sequence[RunOrFolder], out: Path | str | None = None) -> Path:
    """Write the report on one or several runs, each a folder or a RunData; return the path of the page.

    `out` is the folder to write to: by default the folder of a single run, and `./report` for several.
    """
    loaded = load_runs([runs] if isinstance(runs, RunData | Path | str) else runs)
    folder = Path(out) if out is not None else loaded[0].folder if len(loaded) == 1 else Path(FIGURES)
    report = compose(loaded)
    figures = folder / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    for figure in (figure for section in report.sections for figure in _figures(section.blocks)):
        atomic.write(figures / f"{figure.name}.svg", standalone(figure).encode())
        atomic.write(figures / f"{figure.name}.png", figure.png)
    text = json.dumps(for_json(report.as_json()), indent=1, allow_nan=False)
    atomic.write(folder / "report.json", f"{text}\n".encode())
    atomic.write(folder / "report.md", render_markdown(report, FIGURES).encode(errors="replace"))
    atomic.write(folder / FILE, render_page(report).encode(errors="replace"))
    return folder / FILE


def load_runs(runs: Sequence[RunOrFolder]) -> list[RunData]:
    """The runs, each with a unique name."""
    names = unique_names([run.folder if isinstance(run, RunData) else Path(run) for run in runs])
    loaded = [run if isinstance(run, RunData) else RunData.load(run) for run in runs]
    return [run.renamed(name) for run, name in zip(loaded, names, strict=True)]


def _figures(blocks: Sequence[Block]) -> list[Figure]:
    """All figures, including those in collapsible blocks."""
    inner = [figure for block in blocks if isinstance(block, Collapsible) for figure in _figures(block.blocks)]
    return [*(block for block in blocks if isinstance(block, Figure)), *inner]
