"""The table that `make torture` prints at its end: what was tried, how often, and what was lost.

A test stops at its first loss, so 0 in the column `lost` says that all its tries went well.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Row:
    """All cases of one torture test."""

    name: str
    tries: Counter = field(default_factory=Counter)
    seconds: float = 0.0
    failed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    cases: set[str] = field(default_factory=set)

    def cells(self) -> tuple[str, str, str, str]:
        tries = ", ".join(f"{count:,} {what}" for what, count in self.tries.items())
        if self.skipped == self.cases:
            return self.name, "skipped", "–", "–"
        lost = f"{len(self.failed)} of {len(self.cases)} cases failed" if self.failed else "0"
        return self.name, tries or f"{len(self.cases)} cases", lost, f"{self.seconds:.0f}"


def rows(reports) -> list[Row]:
    """One row for each torture test, by the reports of its setup, call and teardown."""
    found: dict[str, Row] = {}
    for report in reports:
        if "torture" not in report.keywords:
            continue
        name = report.nodeid.split("::")[-1].partition("[")[0].removeprefix("test_").replace("_", " ")
        row = found.setdefault(name, Row(name))
        row.cases.add(report.nodeid)
        row.seconds += report.duration
        if report.failed:
            row.failed.add(report.nodeid)
        if report.skipped:
            row.skipped.add(report.nodeid)
        if report.when == "teardown":
            row.tries.update({what: count for what, count in report.user_properties if isinstance(count, int)})
    return list(found.values())


def table(found: list[Row]) -> list[str]:
    """Lines of Markdown."""
    lines = [("torture test", "tried", "lost", "seconds"), ("---",) * 4, *(row.cells() for row in found)]
    failed = sum(len(row.failed) for row in found)
    total = (
        "all",
        f"{sum(len(row.cases) for row in found)} cases",
        str(failed),
        f"{sum(r.seconds for r in found):.0f}",
    )
    return [f"| {' | '.join(cells)} |" for cells in (*lines, total)]
