"""hopflow rectify."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import trained_network
from .build_sampler import build_sampler
from .draw_samples import Run
from .options import Debug, Json, Offline, Settings
from .output import box, check_target, console, progress_line, write_json
from .sampling_log import sampling
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from ..runs.pair_store import PairStore

ROWS = 1 << 14
"""Pairs whose texts are compared with independent noise."""


def rectify(
    run: Run, settings: Settings = None, json_file: Json = None, offline: Offline = False, debug: Debug = False
) -> None:
    """Draw pairs (noise, text) with a trained flow; a flow that is trained on them makes fewer hops.

    The same command continues an interrupted folder of pairs, n=LARGER appends to it, and several processes may run it
    at once.
    Train on it with `hopflow train … coupling=rectified:STORE`.
    """
    from .command_settings import RectifySettings

    chosen = parse_settings(settings, RectifySettings)
    check_target(json_file)
    sampler = build_sampler("euler", {"steps": chosen.steps})
    with progress_line() as progress:
        progress(f"loading {run}")
        network = trained_network.load(run, chosen.device, chosen.model, offline=offline)
    if network.flow is None:
        raise ValueError(f"{run} is an autoregressive network, which has no noise to pair with its texts")
    from ..runs import hub

    if chosen.out is None and hub.prefixed(run) is not None:
        raise ValueError(f"{run} has no folder to put the pairs next to: set out=FOLDER")
    length, out = network.sequence_length(chosen.length), Path(chosen.out or f"{network_home(network.folder)}-pairs")
    from ..runs.rectify import rectify as draw

    options: dict[str, Any] = chosen.typed("out", "n", "length", "steps", "device", "threads", "model")
    about = {"run": run, "recipe_hash": network.recipe_hash}
    with network.threads(chosen.threads), sampling(console(stderr=True), chosen.n) as progress:
        try:
            store = draw(
                network.model,
                network.flow,
                out=out,
                n=chosen.n,
                length=length,
                sampler=sampler,
                label_names=network.label_names,
                tokenizer=network.tokenizer.sha256,
                about=about,
                progress=progress,
                **options,
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted: finished files of {out} are kept, the same command continues"
            ) from None
    _show(store, network, json_file)


def network_home(checkpoint: Path) -> Path:
    """The run of a checkpoint, or the folder itself."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint


def _show(store: "PairStore", network: trained_network.TrainedNetwork, json_file: Path | None) -> None:
    import numpy as np

    from ..bounds.estimate import known
    from ..runs.rectified_pairs import independent_hops

    assert network.flow is not None
    hops, error = store.hops()
    before = independent_hops(network.flow, store.pairs(np.arange(min(len(store), ROWS)))[1])
    if json_file:
        facts = {"store": str(store.folder), "pairs": len(store), "sha256": store.sha256, "length": store.length}
        predicted = {"predicted_jumps": hops, "stderr": known(error)}
        independent = {"predicted_jumps": before[0], "stderr": known(before[1])}
        write_json(json_file, {**facts, **predicted, "independent": independent})
    rows = {
        "pairs": f"{len(store):,} of {store.length} tokens, sha256 {store.sha256[:16]}",
        "predicted hops": f"{hops:.2f} ± {error:.2f} per sequence",
        "independent noise": f"{before[0]:.2f} ± {before[1]:.2f}",
        "folder": str(store.folder),
        "train on them": f"hopflow train … coupling=rectified:{store.folder} init={network_home(network.folder)}",
    }
    box(console(), "rectified pairs", rows)
