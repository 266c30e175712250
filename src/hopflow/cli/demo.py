"""hopflow demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import console, lines, table
from .report import afterwards
from .training_log import lines_of
from .words import Debug, Offline, Settings, parse_settings, whole_number

if TYPE_CHECKING:
    from ..demo import Demo


def demo(
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write.")] = Path("demo"),
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Train two small flows on Morse code, without and with optimal transport, and compare how often tokens hop.

    Takes minutes on two CPU cores. Started again in the same folder it goes on where it stopped. Settings: seed=0.
    """
    chosen = parse_settings(settings or [], {"seed": whole_number})
    from .. import demo as show

    with lines() as say:
        found = show.run(
            out,
            seed=chosen.get("seed", 0),
            offline=offline,
            say=say,
            logger=lambda row: say("\n".join(lines_of(row, show.STEPS))),
        )
    _show(found)
    afterwards(show.stories(found), found.folder)


def _show(found: "Demo") -> None:
    from ..report.headline import Number

    rows = table("pairs", "hops per sample", "predicted", "b0 ppl", "b1 ppl", "bk ppl", "entropy, bits")
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
    saved = Number(other.jumps, other.jumps_se).saved(Number(one.jumps, one.jumps_se))
    predicted = Number(other.predicted_jumps, other.predicted_jumps_se).saved(
        Number(one.predicted_jumps, one.predicted_jumps_se)
    )
    screen.print(f"\n{saved} % fewer hops with optimal transport; {predicted} % predicted from the pairs alone.")
    screen.print(f"An untrained flow has the perplexity of its source, {found.source_ppl:.3f}.")
    screen.print(f"Checkpoints, samples and numbers: {found.folder}")
    screen.print(f"Next: hopflow sample {found.folder / 'ot'} --watch, hopflow train YOUR.txt, hopflow list")
