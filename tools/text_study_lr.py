"""Choose the learning rate of the text study once, on `dfm_o`: short runs, and b0 on validation rows for each.

python tools/text_study_lr.py --steps 800 --out runs/lr 5e-4 1e-3 2e-3
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import hopflow as hf
from hopflow.recipes import build
from hopflow.reproduce.text.protocol import FULL, training_recipe
from hopflow.runs.devices import choose_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rates", nargs="+", type=float)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("runs/lr"))
    arguments = parser.parse_args()
    device = choose_device("auto")
    for rate in arguments.rates:
        start = time.perf_counter()
        keys = {"lr": rate, "compile": device.type == "cuda", "log_every": 100}
        built = build(replace(training_recipe("dfm_o", FULL, 0, arguments.steps), **keys), progress=print)
        built.train(out=arguments.out / f"{rate:g}", logger=lambda row: print(row["step"] + 1, row["loss"], flush=True))
        seconds = time.perf_counter() - start
        found = hf.from_pretrained(arguments.out / f"{rate:g}", device=device)
        rows = built.corpus.test[: arguments.rows].to(device)
        bound = hf.nll_bound(found.model, found.flow, rows, draws=8, seed=0)
        print(f"lr {rate:g}: {bound}; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
