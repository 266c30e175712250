"""The protocol of the text study: data, training and measurements, the same for every variant. Fixed before it ran."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from ...recipes import Recipe, named

SEEDS = (0, 1, 2)
JUDGE_SEED = 1000
"""The seed of the autoregressive judge; no cell has it."""


@dataclass(frozen=True)
class Protocol:
    """Every number that the cells of one study share."""

    data: str = "novels"
    tokens: str = "gpt2"
    length: int = 128
    size: str = "mini"
    steps: int = 2500
    batch: int = 512
    lr: float = 1.5e-3
    warmup: int = 250
    weight_ema: float = 0.999
    dropout: float = 0.0
    test_set: str = "novels:test"
    rows: int = 512
    zero_shot: tuple[str, ...] = ("lambada", "wikitext-2", "ptb", "wikitext-103", "lm1b")
    zero_shot_rows: int = 256
    draws: int = 8
    """Monte Carlo draws per sequence of b0, b1, bk and bn."""
    bound_steps: tuple[int, ...] = (32, 1024)
    """Sampler steps of bn."""
    reversal_steps: int = 128
    """Sampler steps of br."""
    paths: int = 8
    """Reversed paths per sequence of br on the test set; 1 on the zero-shot sets."""
    sampler_steps: tuple[int, ...] = (8, 16, 32, 64, 128, 1024)
    etas: tuple[float, ...] = (0.0, 1.0)
    samples: int = 512
    """Samples of each number of steps and η."""
    ot_batches: int = 20
    """OT batches from which hops and transport costs are predicted."""
    judge_steps: int = 2500
    judges: tuple[str, ...] = ("ar", "smollm2")

    @property
    def sha256(self) -> str:
        """A hash of all numbers: cells of different protocols are never mixed in one table."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def all_reversal_steps(self) -> tuple[int, ...]:
        """Every number of sampler steps for which br is measured."""
        return (self.reversal_steps,)


FULL = Protocol()
LAPTOP = replace(
    FULL,
    data="shakespeare",
    tokens="bpe:1024",
    size="tiny",
    steps=800,
    batch=32,
    warmup=100,
    test_set="held-out",
    rows=32,
    zero_shot=(),
    bound_steps=(32,),
    reversal_steps=32,
    paths=4,
    sampler_steps=(8, 32),
    samples=32,
    ot_batches=10,
    judge_steps=500,
    judges=("ar",),
)
"""Two variants and one seed: 22 minutes on two busy CPU cores."""
CHARACTERS = replace(
    LAPTOP,
    tokens="char",
    length=64,
    steps=1500,
    rows=128,
    bound_steps=(32, 1024),
    paths=8,
    sampler_steps=(8, 32, 1024),
    etas=(0.0,),
    samples=128,
    judge_steps=1500,
)
"""A small network on the characters of Shakespeare, for two CPU cores."""
PAPER_SIZE = replace(FULL, size="small", steps=5000)
"""The paper's own network, as a check of size."""


@dataclass(frozen=True)
class Teacher:
    """The flow that draws the pairs of a rectified variant. Training starts from its weights."""

    variant: "StudyVariant"
    pairs: int = 100_000
    steps: int = 128
    """Sampler steps with which the pairs are drawn."""


@dataclass(frozen=True)
class StudyVariant:
    """One row of the study: a recipe of the paper, and what differs from it."""

    name: str
    recipe: str
    keys: tuple[tuple[str, object], ...] = ()
    seeds: tuple[int, ...] = SEEDS
    protocol: Protocol = FULL
    teacher: Teacher | None = None

    def resolved(self, seed: int) -> Recipe:
        """The recipe that a cell of this variant trains."""
        return replace(training_recipe(self.recipe, self.protocol, seed), **dict(self.keys))  # type: ignore[arg-type]


def training_recipe(name: str, protocol: Protocol, seed: int, steps: int | None = None) -> Recipe:
    """A recipe of the paper with the protocol's data, size and budget."""
    recipe = named(name)
    with_x0_head = recipe.coupling != "independent" and recipe.source in ("bag_of_words", "uniform")
    return replace(
        recipe,
        data=protocol.data,
        tokens=protocol.tokens,
        length=protocol.length,
        size=protocol.size,
        dropout=protocol.dropout,
        steps=steps or protocol.steps,
        batch=protocol.batch,
        lr=protocol.lr,
        warmup=protocol.warmup,
        weight_ema=protocol.weight_ema,
        ot_batch=recipe.ot_batch and max(recipe.ot_batch, protocol.batch),
        predict_x0=with_x0_head,
        seed=seed,
        log_every=50,
        save_every=10**6,
        save_minutes=0.0,
        eval_every=0,
        eval_rows=0,
        eval_samples=0,
        keep=1,
    )


def _variants(*names: str, seeds: tuple[int, ...] = SEEDS) -> tuple[StudyVariant, ...]:
    return tuple(StudyVariant(name, name, seeds=seeds) for name in names)


MAIN = ("dfm_o", "dfm_b", "dfm_b_exact_ema", "dfm_mmf", "dfm_mmf_exact_ema")
PLAIN = (("prediction", "plain"),)
VARIANTS: tuple[StudyVariant, ...] = (
    *_variants(*MAIN),
    StudyVariant("dfm_o_plain", "dfm_o", PLAIN),
    *_variants(
        "dfm_n", "dfm_s", "dfm_u", "dfm_b_exact", "dfm_b_sinkhorn", "dfm_mmf_exact", "dfm_mmf_sinkhorn", seeds=(0,)
    ),
    *_variants("dfm_mmf_exact_ot4096", "dfm_mmf_256", "dfm_mmf_256_exact_ema", "dfm_mmf_learned_cost", seeds=(0,)),
    *_variants("ar", seeds=(0,)),
    StudyVariant("dfm_b_plain", "dfm_b", PLAIN, (0,)),
    StudyVariant("dfm_b_small", "dfm_b", seeds=(0,), protocol=PAPER_SIZE),
    StudyVariant("dfm_b_exact_ema_small", "dfm_b_exact_ema", seeds=(0,), protocol=PAPER_SIZE),
)
"""In the order in which cells are run: seed 0 of the first six, then seeds 1 and 2, then the others.

With Evidence, tokens that are no masks are certain, so dfm_n and dfm_o have the same loss: one seed of dfm_n checks it.
What the paper compares is dfm_o with Plain, dfm_o_plain here.
"""

LAPTOP_VARIANTS: tuple[StudyVariant, ...] = tuple(
    StudyVariant(name, name, seeds=(0,), protocol=LAPTOP) for name in ("dfm_b", "dfm_b_exact_ema")
)


CHARACTER_VARIANTS: tuple[StudyVariant, ...] = (
    *(StudyVariant(name, name, protocol=CHARACTERS) for name in MAIN),
    StudyVariant("dfm_o_plain", "dfm_o", PLAIN, protocol=CHARACTERS),
    *(StudyVariant(name, name, seeds=(0,), protocol=CHARACTERS) for name in ("dfm_n", "ar")),
)


@dataclass(frozen=True)
class Budget:
    """Which variants are run, under which protocol, and the file in docs/results that shows them."""

    name: str
    variants: tuple[StudyVariant, ...]
    page: str | None = None
    """A name such as text.md; without it the page is printed."""
    title: str = "the paper's claims about text"
    introduction: str = ""

    def cells(self) -> list[tuple[StudyVariant, int]]:
        """All cells in the order of the queue: the first variants with all their seeds come before the others."""
        first = [v for v in self.variants if len(v.seeds) > 1]
        rest = [v for v in self.variants if len(v.seeds) == 1]
        return [(v, seed) for seed in SEEDS for v in first if seed in v.seeds] + [(v, v.seeds[0]) for v in rest]
