"""One process of a gloo group that pairs, started by tests/training/test_distributed.py.

python gloo_run.py FOLDER RANK WORLD COUPLING KIND START END
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from paired_runs import BATCH, COUPLINGS, LENGTH, OT_BATCH, VOCAB, Net, labels, rows, table
from safetensors.torch import load_file, save_file

from hopflow import Flow, Uniform
from hopflow.runs.ot_batch import Share
from hopflow.training.pairing.global_pairs import GlobalPairing
from hopflow.training.pairing.pairs import Pairing

KINDS = {"global": GlobalPairing, "grouped": GlobalPairing, "rank": Pairing}


def main(folder: Path, rank: int, world: int, coupling: str, kind: str, start: int, end: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    share = Share.here()
    options = {"share": share} if kind == "rank" else {}
    flow = Flow(Uniform(VOCAB), coupling=COUPLINGS[coupling])

    def batches(index):
        return share.take(rows(index), BATCH)

    def groups(index):
        return share.take(labels(index)[:, None], BATCH)[:, 0]

    options |= {"groups": groups} if kind == "grouped" else {}

    sizes = {"length": LENGTH, "batch": BATCH, "ot_batch": OT_BATCH, "seed": 3}
    try:
        with KINDS[kind](flow, batches, **sizes, workers=int(kind != "rank"), **options) as paired:
            saved = folder / "state.safetensors"
            paired.load_state_dict(load_file(saved) if start and rank == 0 and saved.exists() else {})
            got, net = [], Net()
            for step in range(start, end):
                bad = float("nan") if coupling == "embedded" and end > 100 and step >= 8 else 1.0
                got.append(torch.stack(paired.step(step, table(step) * bad, net.at(step))))
            if kind != "rank":  # rows of earlier OT batches are dropped
                assert len(paired._mine) == paired._pairing.ahead + 1
            if rank == 0:
                save_file(paired.state_dict(), saved)
            save_file({"pairs": torch.stack(got)}, folder / f"{rank}.safetensors")
    except (ValueError, RuntimeError) as error:
        (folder / f"{rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6], *map(int, sys.argv[6:8]))
