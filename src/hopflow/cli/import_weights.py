"""hopflow import."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Debug, Offline, Settings
from .output import box, console, progress_line
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from ..adapters.import_weights import ImportedRun

LAYOUTS = "mdlm, duo, sedd, flow_matching or gidd"


def import_weights(
    layout: Annotated[str, typer.Argument(metavar="LAYOUT", help=f"Project: {LAYOUTS}.", show_default=False)],
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Weights: .safetensors, .ckpt, .pt, .pth or .bin, or a folder with one of them.",
            show_default=False,
        ),
    ],
    settings: Settings = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Turn weights of another project into a run, with its tokenizer and flow, to sample and evaluate them.

    A checkpoint of torch.save is read in a child process that can load tensors and nothing else.
    """
    from .command_settings import ImportSettings

    chosen = parse_settings(settings, ImportSettings)
    from ..adapters.import_weights import ImportOptions
    from ..adapters.import_weights import import_weights as convert

    out = Path(chosen.out) if chosen.out else Path("runs") / Path(path).resolve().name.partition(".")[0]
    options = ImportOptions(**chosen.typed("out"))
    with progress_line() as progress:
        run = convert(layout, path, out=out, options=options, offline=offline, progress=progress)
    _show(run)


def _show(run: "ImportedRun") -> None:
    count = sum(parameter.numel() for parameter in run.model.parameters())
    tokens = "none" if run.tokenizer is None else f"{run.tokenizer.name}, {run.tokenizer.size:,} tokens"
    rows = {
        "network": f"{type(run.model).__name__}, {count:,} parameters, {'averaged' if run.averages else 'raw'} weights",
        "flow": _flow_line(run),
        "tokenizer": tokens,
        "length": f"{run.length} tokens",
        "folder": str(run.folder),
    }
    rows |= {"note" if i == 0 else f"note {i + 1}": text for i, text in enumerate(run.remarks)}
    if run.flow is not None and run.tokenizer is not None:
        rows["next"] = f"hopflow sample {run.folder}, hopflow eval {run.folder} data=FILE"
    box(console(), "imported run", rows)


def _flow_line(run: "ImportedRun") -> str:
    if run.flow is None:
        return "none"
    flow = run.flow
    return f"{type(flow.source).__name__}, {flow.schedule}, {type(flow.prediction).__name__}; {flow.vocab}"
