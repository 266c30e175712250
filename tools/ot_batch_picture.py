"""Measure how many hops an OT batch saves, and draw the README's picture of it.

    python tools/ot_batch_picture.py docs/pictures/ot_batch.svg

The line is measured here: the mean Hamming distance of pairs (Theorem 3.1 [theorem1]) of uniform sequences of 3
symbols, L = 128, paired by ExactOT(Hamming()), for OT batches of 1 to 4,096 sequences. The points are the hops of the
two networks of `make demo`, which are trained on Morse code.
"""

import argparse
import math
from pathlib import Path

import torch

import hopflow as hf
from choosing_pictures import BLUE, GREY, ORANGE, STYLE, pyplot, themed

SYMBOLS, LENGTH, SEED = 3, 128, 0
SIZES = [2**i for i in range(13)]
TRAINED = {1: (87.04, 0.55), 64: (75.53, 0.52)}
"""Hops per sample of `make demo` and their standard errors, by OT batch."""


def predicted(size: int) -> tuple[float, float, int]:
    """Mean cost of a pair, its standard error over OT batches, and the number of batches."""
    batches = max(4, 8192 // size)
    generator = torch.Generator().manual_seed(SEED)
    coupling = hf.ExactOT(hf.Hamming())
    costs = torch.tensor(
        [
            coupling.pair(*torch.randint(0, SYMBOLS, (2, size, LENGTH), generator=generator)).cost
            for _ in range(batches)
        ],
        dtype=torch.float64,
    )
    return float(costs.mean()), float(costs.std() / math.sqrt(batches)), batches


def draw(file: Path, line: dict[int, tuple[float, float, int]]) -> None:
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
        axes.plot(SIZES, [line[size][0] for size in SIZES], "--", color=GREY, label="predicted from the pairs alone")
        for size, (value, error) in TRAINED.items():
            colour, name = (ORANGE, "trained without OT") if size == 1 else (BLUE, "trained with OT batches of 64")
            axes.errorbar([size], [value], yerr=[2 * error], fmt="o", capsize=3, color=colour, label=name)
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.set_xticks(SIZES[::2], [f"{size:,}" for size in SIZES[::2]])
        axes.set(title="Hops per sequence of 128 tokens", xlabel="OT batch (1 = independent pairs)", ylim=(60, 92))
        axes.legend(loc="lower left")
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)
    file.write_text(themed(file.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="SVG file to write")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    line = {size: predicted(size) for size in SIZES}
    print("| OT batch | hops | batches |\n|---|---|---|")
    for size, (value, error, batches) in line.items():
        print(f"| {size:,} | {value:.2f} ± {error:.2f} | {batches:,} |")
    draw(asked.out, line)


if __name__ == "__main__":
    main()
