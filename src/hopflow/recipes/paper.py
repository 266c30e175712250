"""The paper's runs, by the names of its tables, and each of them in a laptop's size.

A recipe is its difference from another one. The paper does not say what its logits mean; every recipe here names its
prediction, Evidence, under which all bounds are finite (docs/theory.md §6).
"""

from collections.abc import Callable
from dataclasses import replace

from ..training.settings import nearest
from .recipe import Recipe
from .text import TEXT

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
    return replace(dfm_b(), coupling="sinkhorn", eps=0.01)


def dfm_b_exact() -> Recipe:
    return replace(dfm_b(), coupling="exact")


def dfm_b_exact_ema() -> Recipe:
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
    """One mask, the bound itself as the loss, which is MD4's."""
    return replace(dfm_o(), objective="bound:0")


def dfm_n_1024() -> Recipe:
    return replace(dfm_n(), length=1024)


def dfm_mmf() -> Recipe:
    """As many masks as data tokens. Section 3.2"""
    return replace(dfm_b(), source="multimask")


def dfm_mmf_sinkhorn() -> Recipe:
    return replace(dfm_mmf(), coupling="sinkhorn", eps=0.01)


def dfm_mmf_exact() -> Recipe:
    return replace(dfm_mmf(), coupling="exact")


def dfm_mmf_exact_ema() -> Recipe:
    return replace(dfm_mmf_exact(), ot_ema=0.99999)


def dfm_mmf_exact_ot4096() -> Recipe:
    """Eight updates per coupling. Ablation 2"""
    return replace(dfm_mmf_exact(), ot_batch=4096)


def dfm_mmf_256() -> Recipe:
    """256 masks."""
    return replace(dfm_mmf(), masks=256)


def dfm_mmf_256_exact_ema() -> Recipe:
    return replace(dfm_mmf_256(), coupling="exact", ot_ema=0.99999)


def dfm_mmf_learned_cost() -> Recipe:
    """What the network says of x1 given x0 as the cost. Ablation 4"""
    return replace(dfm_mmf_exact(), cost="one_step_likelihood")


def ar() -> Recipe:
    """The autoregressive baseline, and a judge."""
    return replace(dfm_b(), model="causal")


def morse() -> Recipe:
    """Shakespeare in Morse code, bag of words. Section 5.1 [toy_datasets]"""
    return replace(
        dfm_b(), data="shakespeare", tokens="morse", cost="hamming", steps=100_000, batch=64, save_every=2000
    )


def morse_sinkhorn_0p1() -> Recipe:
    return replace(morse(), coupling="sinkhorn", eps=0.1)


def morse_sinkhorn_0p01() -> Recipe:
    return replace(morse(), coupling="sinkhorn", eps=0.01)


def morse_exact() -> Recipe:
    return replace(morse(), coupling="exact")


def shakespeare() -> Recipe:
    """The same text as it is, letter by letter. App. C.1 [C1]"""
    return replace(morse(), tokens="char")


def shakespeare_exact() -> Recipe:
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


def laptop(recipe: Recipe) -> Recipe:
    """The same in a size that two CPU cores train in minutes: a tiny network, and Shakespeare for the web's text."""
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
    """Every recipe's name."""
    paper = [f"{recipe.__name__}{ending}" for recipe in PAPER for ending in ("", LAPTOP)]
    return [*(recipe.__name__ for recipe in TEXT), *paper]


def named(name: str) -> Recipe:
    """The recipe of that name."""
    if name in (own := {recipe.__name__: recipe for recipe in TEXT}):
        return own[name]()
    base = name.removesuffix(LAPTOP)
    make = {recipe.__name__: recipe for recipe in PAPER}.get(base)
    if make is None:
        raise ValueError(f"there is no recipe {name!r}; {nearest(name, names())} (`hopflow list` shows all)")
    recipe = replace(make(), name=base)
    return laptop(recipe) if name.endswith(LAPTOP) else recipe
