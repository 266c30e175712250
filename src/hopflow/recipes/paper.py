"""The runs of the paper by the names of its tables, and a few that it does not have; each also as NAME_laptop.

A recipe is defined by its differences from another one. The paper does not state what its logits mean; all recipes use
the prediction Evidence, for which every bound is finite (docs/theory.md §6).
"""

from collections.abc import Callable
from dataclasses import replace

from ..training.settings import nearest
from .recipe import Recipe
from .text_file import TEXT

LAPTOP = "_laptop"


def dfm_b() -> Recipe:
    """Bag-of-words source on OpenWebText, no OT. Section 5.3 [exp_OT_l2]"""
    return Recipe(
        name="dfm_b",
        data="openwebtext",
        tokens="gpt2",
        length=128,
        size="small",
        source="bag_of_words",
        prediction="evidence",
        objective="cross_entropy",
        cost="squared_embedding",
        steps=400_000,
        batch=512,
        warmup=2500,
        weight_ema=0.9999,
        save_every=5000,
        eval_every=5000,
        log_every=50,
    )


def dfm_b_sinkhorn() -> Recipe:
    """Bag-of-words source with a Sinkhorn coupling."""
    return replace(dfm_b(), coupling="sinkhorn", eps=0.01)


def dfm_b_exact() -> Recipe:
    """Bag-of-words source with exact OT."""
    return replace(dfm_b(), coupling="exact")


def dfm_b_exact_ema() -> Recipe:
    """Exact OT whose cost uses an average of the embedding table."""
    return replace(dfm_b_exact(), ot_ema=0.99999)


def dfm_u() -> Recipe:
    """Uniform source."""
    return replace(dfm_b(), source="uniform")


def dfm_o() -> Recipe:
    """One mask, cross-entropy at all positions. App. C.2 [C2-pre]"""
    return replace(dfm_b(), source="mask")


def dfm_n() -> Recipe:
    """One mask, cross-entropy at the masked positions."""
    return replace(dfm_o(), objective="noisy_cross_entropy")


def dfm_s() -> Recipe:
    """One mask, the bound as the loss, as in MD4."""
    return replace(dfm_o(), objective="bound:0")


def dfm_n_1024() -> Recipe:
    """dfm_n with sequences of 1024 tokens."""
    return replace(dfm_n(), length=1024)


def dfm_mmf() -> Recipe:
    """As many masks as data tokens. Section 3.2"""
    return replace(dfm_b(), source="multimask")


def dfm_mmf_sinkhorn() -> Recipe:
    """Multiple masks with a Sinkhorn coupling."""
    return replace(dfm_mmf(), coupling="sinkhorn", eps=0.01)


def dfm_mmf_exact() -> Recipe:
    """Multiple masks with exact OT."""
    return replace(dfm_mmf(), coupling="exact")


def dfm_mmf_exact_ema() -> Recipe:
    """Multiple masks; exact OT whose cost uses an average of the embedding table."""
    return replace(dfm_mmf_exact(), ot_ema=0.99999)


def dfm_mmf_exact_ot4096() -> Recipe:
    """Eight updates per coupling. Ablation 2"""
    return replace(dfm_mmf_exact(), ot_batch=4096)


def dfm_mmf_256() -> Recipe:
    """256 masks."""
    return replace(dfm_mmf(), masks=256)


def dfm_mmf_256_exact_ema() -> Recipe:
    """256 masks; exact OT whose cost uses an average of the embedding table."""
    return replace(dfm_mmf_256(), coupling="exact", ot_ema=0.99999)


def dfm_mmf_learned_cost() -> Recipe:
    """The network's likelihood of x1 given x0 as the cost. Ablation 4"""
    return replace(dfm_mmf_exact(), cost="one_step_likelihood")


def mixed() -> Recipe:
    """Masks with 10 % of uniform data tokens; not in the paper."""
    return replace(dfm_o(), source="mixed")


def ar() -> Recipe:
    """The autoregressive baseline; can serve as a judge."""
    return replace(dfm_b(), model="causal")


def morse() -> Recipe:
    """Shakespeare in Morse code, bag of words. Section 5.1 [toy_datasets]"""
    return replace(
        dfm_b(), data="shakespeare", tokens="morse", cost="hamming", steps=100_000, batch=64, save_every=2000
    )


def morse_sinkhorn_0p1() -> Recipe:
    """Morse code with a Sinkhorn coupling, eps = 0.1."""
    return replace(morse(), coupling="sinkhorn", eps=0.1)


def morse_sinkhorn_0p01() -> Recipe:
    """Morse code with a Sinkhorn coupling, eps = 0.01."""
    return replace(morse(), coupling="sinkhorn", eps=0.01)


def morse_exact() -> Recipe:
    """Morse code with exact OT."""
    return replace(morse(), coupling="exact")


def shakespeare() -> Recipe:
    """Shakespeare by characters. App. C.1 [C1]"""
    return replace(morse(), tokens="char")


def shakespeare_exact() -> Recipe:
    """Shakespeare by characters with exact OT."""
    return replace(shakespeare(), coupling="exact")


PAPER: tuple[Callable[[], Recipe], ...] = (
    dfm_b,
    dfm_b_sinkhorn,
    dfm_b_exact,
    dfm_b_exact_ema,
    dfm_u,
    dfm_o,
    dfm_n,
    dfm_s,
    dfm_n_1024,
    dfm_mmf,
    dfm_mmf_sinkhorn,
    dfm_mmf_exact,
    dfm_mmf_exact_ema,
    dfm_mmf_exact_ot4096,
    dfm_mmf_256,
    dfm_mmf_256_exact_ema,
    dfm_mmf_learned_cost,
    ar,
    morse,
    morse_sinkhorn_0p1,
    morse_sinkhorn_0p01,
    morse_exact,
    shakespeare,
    shakespeare_exact,
)

FURTHER: tuple[Callable[[], Recipe], ...] = (mixed,)
"""Recipes that are not in the paper."""


def laptop(recipe: Recipe) -> Recipe:
    """A recipe in a size that two CPU cores train in minutes: a tiny network, on Shakespeare in place of web text."""
    text = recipe.tokens == "gpt2"
    return replace(
        recipe,
        name=f"{recipe.name}{LAPTOP}",
        data="shakespeare",
        tokens="bpe:1024" if text else recipe.tokens,
        length=min(recipe.length, 256),
        size="tiny",
        dropout=0.0,
        masks=min(recipe.masks, 64) if recipe.masks else recipe.masks,
        steps=2000,
        batch=32 if text else 64,
        ot_batch=recipe.ot_batch and 256,
        lr=1e-3,
        warmup=100,
        weight_ema=min(recipe.weight_ema, 0.999),
        save_every=500,
        eval_every=500,
        log_every=10,
    )


def names() -> list[str]:
    """The names of all recipes."""
    sized = [f"{recipe.__name__}{ending}" for recipe in (*PAPER, *FURTHER) for ending in ("", LAPTOP)]
    return [*(recipe.__name__ for recipe in TEXT), *sized]


def named(name: str) -> Recipe:
    """The recipe of that name."""
    if name in (own := {recipe.__name__: recipe for recipe in TEXT}):
        return own[name]()
    base = name.removesuffix(LAPTOP)
    make = {recipe.__name__: recipe for recipe in (*PAPER, *FURTHER)}.get(base)
    if make is None:
        raise ValueError(f"there is no recipe {name!r}; {nearest(name, names())} (`hopflow list` shows all)")
    recipe = replace(make(), name=base)
    return laptop(recipe) if name.endswith(LAPTOP) else recipe
