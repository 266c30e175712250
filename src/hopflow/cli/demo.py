"""hopflow demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Debug, Offline, Settings
from .output import console, lines, table
from .report import write_report_after
from .settings_parser import parse_settings
from .training_log import lines_of

if TYPE_CHECKING:
    from ..demo import Demo


def demo(
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the runs and the report.")] = Path(
        "demo"
    ),
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Train two small flows on Morse code, without and with optimal transport, and compare their hops.

    Takes minutes on two CPU cores. The same command continues an unfinished demo.
    """
    from .command_settings import DemoSettings

    chosen = parse_settings(settings, DemoSettings)
    from ..demo import STEPS, run, run_data

    with lines() as progress:
        found = run(
            out,
            seed=chosen.seed,
            offline=offline,
            say=progress,
            logger=lambda row: progress("\n".join(lines_of(row, STEPS))),
        )
    _show(found)
    write_report_after(run_data(found), found.folder)


def _show(found: "Demo") -> None:
    from ..report.numbers import ValueWithError

    rows = table("coupling", "hops per sample", "predicted hops", "b0 ppl", "b1 ppl", "bk ppl", "entropy, bits")
    for name, r in found.rows.items():
        rows.add_row(
            name,
            f"{r.jumps:.2f} ± {r.jumps_se:.2f}",
            f"{r.predicted_jumps:.2f} ± {r.predicted_jumps_se:.2f}",
            f"{r.b0_ppl:.3f} ± {r.b0_se:.3f}",
            f"{r.b1_ppl:.3f} ± {r.b1_se:.3f}",
            f"{r.bk_ppl:.3f} ± {r.bk_se:.3f}",
            f"{r.entropy_bits:.2f}",
        )
    screen = console()
    screen.print(rows)
    one, other = found.rows.values()
    saved = ValueWithError(other.jumps, other.jumps_se).percent_below(ValueWithError(one.jumps, one.jumps_se))
    predicted = ValueWithError(other.predicted_jumps, other.predicted_jumps_se).percent_below(
        ValueWithError(one.predicted_jumps, one.predicted_jumps_se)
    )
    screen.print(f"\n{saved} % fewer hops with optimal transport; {predicted} % predicted from the coupled pairs.")
    screen.print(f"For comparison: an untrained flow has perplexity {found.source_ppl:.3f}.")
    screen.print(f"Checkpoints, samples and results: {found.folder}")
    screen.print(f"Next: hopflow sample {found.folder / 'ot'} --watch, hopflow train YOUR.txt, hopflow list")
