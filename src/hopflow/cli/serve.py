"""hopflow serve."""

import gc
import re
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import trained_network
from .options import Debug, Offline
from .output import echo, progress_line
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from ..serve.served_flow import ServedFlow
    from .trained_network import TrainedNetwork

NOVELS, DEMO = "novels", "demo/ot"
MOST = 2
"""Flows that the page can show side by side."""
SETTING = re.compile(r"([a-z_]+)=")
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|KEY=VALUE",
        help="One or two trained networks, and settings, such as port=8231.",
        show_default=False,
    ),
]


def serve(words: Words = None, offline: Offline = False, debug: Debug = False) -> None:
    """Serve a web page that shows how tokens hop, and an API like OpenAI's completions.

    The address of the page is printed; nothing is opened. Ctrl-C ends the server.

    Without RUN it serves novels if pretrained/novels exists, or else the demo's run demo/ot.
    """
    from .command_settings import ServeSettings

    settings = [word for word in words or [] if _is_setting(word)]
    chosen = parse_settings(settings, ServeSettings)
    runs = [word for word in words or [] if not _is_setting(word)] or [_default_run()]
    if len(runs) > MOST:
        raise ValueError(f"serve takes one or two runs, got {len(runs)}")
    # a missing extra, a used port or a missing token is reported before a network is loaded
    from ..serve.errors import one_line
    from ..serve.limits import Limits
    from ..serve.server import check_address
    from ..serve.server import serve as serve_flows

    check_address(chosen.host, chosen.port, chosen.token)
    with progress_line() as progress:
        networks = []
        for run in runs:
            progress(f"loading {run}")
            networks.append(trained_network.load(run, chosen.device, chosen.model, offline=offline))
        same = {key: value for key, value in chosen.typed().items() if key in ("device", "threads", "model", "label")}
        flows = served_flows(runs, networks, same)
    limits = Limits(chosen.steps, chosen.length, chosen.n, chosen.queue, chosen.body)

    def ready(address: str) -> None:
        echo(f"{', '.join(flow.run for flow in flows)} at {address}{'#token=…' if chosen.token else ''}")
        echo("Ctrl-C ends the server", err=True)

    def failed(error: Exception) -> None:
        if debug:
            echo("".join(traceback.format_exception(error)), err=True, nl=False)
        echo(f"note: a request failed: {type(error).__name__}: {one_line(str(error))}", err=True)

    host, port, token = chosen.host, chosen.port, chosen.token
    with networks[0].threads(chosen.threads):
        serve_flows(flows, host=host, port=port, token=token, limits=limits, ready=ready, failed=failed)
    echo("the server has ended", err=True)
    gc.freeze()  # or Python looks through every object of torch once more before it ends, for most of a second


def served_flows(
    runs: Sequence[str], networks: "Sequence[TrainedNetwork]", typed: Mapping[str, Any] = MappingProxyType({})
) -> "list[ServedFlow]":
    """The networks as the server needs them, each with its own name; `typed` are settings of `hopflow sample`."""
    from ..serve.served_flow import ServedFlow

    flows: list[ServedFlow] = []
    for run, network in zip(runs, networks, strict=True):
        if network.flow is None:
            raise ValueError(f"{run} is an autoregressive network, which has no flow; use `hopflow sample`")
        ot_batch, predicted = _stored_numbers(network.folder)
        name, length = _name(run, [flow.id for flow in flows]), network.sequence_length(None)
        labels = network.labels([typed["label"]] if "label" in typed else [], 1)
        label = None if labels is None else int(labels)
        parts = network.model, network.flow, network.tokenizer, length, network.device
        flows.append(ServedFlow(name, run, *parts, ot_batch, predicted, typed, label))
    return flows


def _is_setting(word: str) -> bool:
    """Whether a word is key=value rather than the folder of a run."""
    return SETTING.match(word) is not None and not Path(word).is_dir()


def _default_run() -> str:
    """What is served without an argument."""
    from ..runs.named_networks import network_folder

    try:
        network_folder(NOVELS)
        return NOVELS
    except ValueError:
        pass
    if Path(DEMO).is_dir():
        return DEMO
    raise ValueError(
        f"there is nothing to serve: neither pretrained/{NOVELS} nor {DEMO} is here\n"
        f"name a run, e.g. `hopflow serve runs/my_book`, or make the demo's: `hopflow demo`"
    )


def _name(run: str, taken: Collection[str]) -> str:
    """The last part of a path, made different from other names."""
    name = Path(run).resolve().name or "run"
    number = 2
    while name in taken:
        name = f"{Path(run).resolve().name}-{number}"
        number += 1
    return name


def _stored_numbers(folder: Path) -> tuple[int | None, tuple[float, int] | None]:
    """The OT batch of a run, and its predicted hops with their length, as far as they were stored."""
    from ..evaluation import record
    from ..runs.run_folder import is_run, read_recipe

    home = folder.resolve().parent.parent if folder.resolve().parent.name == "checkpoints" else folder
    try:
        ot_batch = read_recipe(home)["identity"].get("ot_batch") if is_run(home) else None
        rows = [row for row in record.read(home) if row.quantity == "predicted_jumps"]
    except ValueError as error:
        echo(f"note: {str(error).partition(chr(10))[0]}", err=True)
        return None, None
    found = [(row.value, row.more["length"]) for row in rows if isinstance(row.more.get("length"), int)]
    return ot_batch if isinstance(ot_batch, int) else None, found[-1] if found else None
