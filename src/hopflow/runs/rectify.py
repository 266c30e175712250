"""rectify: draw pairs (x0, x1) of a trained flow into a pair store, which the coupling `Rectified` trains on."""

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..flow import Flow, check_network
from ..network.network import Network, label_count
from ..sampling.generate import generate
from ..sampling.samplers import Euler, Sampler
from .pair_store import HEADER, PairStore, chunk_file, claimed, read_header, token_type, write_chunk, write_header
from .storage import to_plain

CHUNK = 1024
"""Pairs per file, which are drawn together."""
WAIT = 0.5
"""Seconds between two checks for chunks that other processes draw."""
KEPT = ("eta", "temperature", "top_k", "top_p", "min_p", "guidance")
"""Options that change the pairs, and are part of the header."""


def rectify(
    model: Network,
    flow: Flow,
    *,
    out: Path | str,
    n: int,
    length: int,
    seed: int = 0,
    chunk: int | None = None,
    labels: int | None = None,
    label_names: Sequence[str] = (),
    tokenizer: str | None = None,
    about: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, count: None,
    **options: Any,
) -> PairStore:
    """Draw n pairs (x0, x1) of this flow into the folder `out`; x1 is what the sampler makes of the noise x0.

    n is rounded up to full chunks of 1,024 pairs (or n, if that is less). The same call continues an interrupted
    store. With a larger n it appends pairs. Several processes may call it at once: each draws chunks that are missing.
    With `labels`, the number of labels, pair i is drawn for label i % labels, so that all are equally frequent; by
    default it is that of the network.
    `label_names` are their names: training refuses pairs whose labels have other names than those of its data.
    `tokenizer` is its sha256, and `about` are facts that are stored with the pairs. Sampling options are those of
    `generate`.
    """
    check_network(model, flow)
    labels = labels or label_count(model) or None
    for name, value in (("n", n), ("length", length), ("chunk", chunk or 1), ("labels", labels or 1)):
        if value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {value}.")
    folder = Path(out)
    size = chunk or _stored_chunk(folder) or min(CHUNK, n)
    sampler = options.pop("sampler", None) or Euler(options.pop("steps", 32))
    keys = {"seed": seed, "chunk": size, "length": length, "labels": labels, "tokenizer": tokenizer}
    more: dict[str, Any] = {"label_names": list(label_names), **({} if about is None else {"about": about})}
    header = _header(model, flow, sampler, options, {**keys, **more})
    write_header(folder, header)
    count = -(-n // size)
    missing = [number for number in range(count) if not chunk_file(folder, number).exists()]
    done = (count - len(missing)) * size
    while missing:
        before = len(missing)
        for number in missing:
            with claimed(folder, number) as ours:
                if ours:
                    options["progress"] = partial(_in_chunk, progress, done, count * size)
                    rows = _chunk(model, flow, number, size, length, labels, seed=seed, sampler=sampler, **options)
                    write_chunk(folder, number, rows, str(header["dtype"]))
                    done += size
            progress(done, count * size)
        missing = [number for number in missing if not chunk_file(folder, number).exists()]
        if missing and len(missing) == before:
            time.sleep(WAIT)  # other processes draw the last chunks
        done = (count - len(missing)) * size
    return PairStore.open(folder)


def _header(
    model: Network, flow: Flow, sampler: Sampler, options: dict[str, Any], keys: dict[str, Any]
) -> dict[str, Any]:
    """What the pairs are: two stores with equal headers have equal pairs."""
    return {
        **keys,
        "vocab": {"data": flow.vocab.data, "masks": flow.vocab.masks},
        "source": to_plain(flow.source),
        "sampler": to_plain(sampler),
        "options": {key: options[key] for key in KEPT if options.get(key) is not None},
        "network": network_sha256(model),
        "dtype": token_type(flow.vocab, keys["labels"]),
    }


def _chunk(
    model: Network,
    flow: Flow,
    number: int,
    size: int,
    length: int,
    labels: int | None,
    **options: Any,
) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The rows of a chunk: label, if there are labels, then x0, then x1."""
    index = torch.arange(number * size, (number + 1) * size)
    if labels is not None:
        options["labels"] = index % labels
    drawn = generate(model, flow, n=size, length=length, **{**options, "first": number * size})
    columns = [] if labels is None else [(index % labels)[:, None]]
    rows: Tensor = torch.cat([*columns, drawn.x0.cpu(), drawn.tokens.cpu()], 1)
    return rows.numpy()


def _in_chunk(progress: Callable[[int, int], None], before: int, total: int, done: int, count: int) -> None:
    progress(before + done, total)


def _stored_chunk(folder: Path) -> int | None:
    return int(read_header(folder)["chunk"]) if (folder / HEADER).exists() else None


def network_sha256(model: Network) -> str:
    """The sha256 of all weights; of the name of the class for a network without weights."""
    digest = hashlib.sha256(type(model).__name__.encode())
    if isinstance(model, nn.Module):
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
