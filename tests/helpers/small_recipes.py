"""Recipes in a size for tests."""

from dataclasses import replace

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on; who would not? " * 40


def shrunk(recipe, text, **keys):
    """The same choices in a size for tests; what a recipe is about, its flow, stays."""
    tokens = {"gpt2": "bpe:260", "bpe:1024": "bpe:260"}.get(recipe.tokens, recipe.tokens)
    return replace(
        recipe,
        data=text,
        tokens=tokens,
        length=16,
        size="tiny",
        masks=recipe.masks and 4,
        batch=4,
        ot_batch=recipe.ot_batch and 8,
        workers=0,
        log_every=1,
        holdout=0.1,
        eval_rows=2,
        eval_samples=2,
        eval_steps=2,
        eval_every=0,
        warmup=1,
        compile=False,
        **keys,
    )
