"""The default recipes for a text file: `text` on a CPU, `text_gpu` on a CUDA device.

Their values were chosen by the results of short runs (docs/results/first_hour.md). Every token starts as the same mask,
so that a coupling would change nothing.
"""

from dataclasses import replace

from .recipe import Recipe


def text() -> Recipe:
    """Defaults for a CPU: recognizable words after about five minutes on one core."""
    return Recipe(
        name="text",
        base="text",
        data="docs",
        tokens="auto",
        length=64,
        holdout=0.05,
        size="tiny",
        dropout=0.0,
        source="mask",
        steps=2000,
        batch=16,
        lr=1e-3,
        warmup=50,
        weight_ema=0.995,
        log_every=50,
        save_every=400,
        eval_every=400,
    )


def text_gpu() -> Recipe:
    """Defaults for a CUDA GPU: a larger network and more tokens per step."""
    return replace(
        text(),
        name="text_gpu",
        base="text_gpu",
        length=128,
        size="mini",
        dropout=0.1,
        batch=256,
        warmup=100,
        weight_ema=0.999,
        compile=True,
    )


TEXT = (text, text_gpu)
