"""The sections of a report, in the order of the page; each is None if there is nothing to show."""

from collections.abc import Callable, Sequence

from ..blocks import ReportDocument, Section
from ..headline import headline
from ..run_data import DETAILED_RUNS, RunData
from . import coupling, curves, evaluation, hops, samples, settings, summary, transport

SectionBuilder = Callable[[Sequence[RunData]], Section | None]

SECTIONS: tuple[SectionBuilder, ...] = (
    evaluation.comparison,
    curves.section,
    samples.quality,
    hops.section,
    transport.section,
    coupling.section,
    samples.texts,
    evaluation.all_results,
    settings.section,
    settings.reproduce,
)
"""The sections after the summary; they show the first `DETAILED_RUNS` runs."""
NAMES_IN_TITLE = 3
"""Runs in the title of a report on more than `DETAILED_RUNS` runs."""


def compose(runs: Sequence[RunData]) -> ReportDocument:
    """The report on one run, or on several side by side; details are limited to the first `DETAILED_RUNS` runs."""
    if not runs:
        raise ValueError("report needs a run: hopflow report RUN")
    first = runs[:DETAILED_RUNS]
    details = (section for build in SECTIONS if (section := build(first)) is not None)
    sections = (summary.section(runs), *details)
    return ReportDocument(_title(runs), headline(first), _lead(runs), tuple(runs), sections)


def _title(runs: Sequence[RunData]) -> str:
    names = [run.name for run in runs]
    if len(names) > DETAILED_RUNS:
        return f"{', '.join(names[:NAMES_IN_TITLE])} and {len(names) - NAMES_IN_TITLE} more"
    *before, last = names
    return f"{', '.join(before)} and {last}" if before else last


def _lead(runs: Sequence[RunData]) -> str:
    """One sentence on what these runs are."""
    if len(runs) > DETAILED_RUNS:
        return (
            f"{len(runs)} runs of hopflow. The summary lists all of them; the headline and all other sections show the "
            f"first {DETAILED_RUNS}. To see others, name fewer runs."
        )
    if len(runs) > 1:
        return f"{len(runs)} runs of hopflow, compared with the first one, {runs[0].name}."
    recipe, identity = runs[0].recipe, runs[0].identity
    facts = [str(identity["model.kind"])] if identity.get("model.kind") else []
    facts += [f"text {recipe['data']}"] if recipe.get("data") else []
    kinds = {word: identity.get(f"flow.{word}.kind") for word in ("source", "coupling", "prediction")}
    facts += [f"{word} {kind}" for word, kind in kinds.items() if kind]
    return f"A run of hopflow: {', '.join(facts)}." if facts else "A run of hopflow."
