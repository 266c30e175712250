"""Variants of the study of rectified pairs, and its protocols. Fixed before it ran.

Every student starts from the weights of its teacher. The variant `continued` does so with independent pairs, so that
what more training does is not mistaken for what rectified pairs do.
"""

from dataclasses import dataclass, replace

from ..text.protocol import CHARACTERS, FULL, SEEDS, Budget, Protocol, StudyVariant, Teacher

STEPS = (4, 8, 16, 32, 128)
"""Sampler steps at which hops, br and judges are measured."""


@dataclass(frozen=True)
class RectifiedProtocol(Protocol):
    """The numbers of the text study, with br at every number of sampler steps."""

    @property
    def all_reversal_steps(self) -> tuple[int, ...]:
        return self.sampler_steps


def _protocol(base: Protocol, **numbers: object) -> RectifiedProtocol:
    return RectifiedProtocol(**{**vars(base), "etas": (0.0,), "zero_shot": (), **numbers})


NOVELS = _protocol(FULL, rows=256, bound_steps=STEPS, sampler_steps=STEPS)
MORSE = _protocol(
    NOVELS,
    data="shakespeare",
    tokens="morse",
    steps=20_000,
    batch=64,
    lr=3e-4,
    warmup=500,
    dropout=0.1,
    test_set="held-out",
    judge_steps=5000,
    judges=("ar",),
)
LAPTOP = _protocol(
    MORSE,
    size="micro",
    length=64,
    steps=1500,
    batch=32,
    lr=1e-3,
    warmup=100,
    rows=64,
    bound_steps=(4, 8, 32),
    sampler_steps=(4, 8, 32),
    samples=512,
    ot_batches=10,
    judge_steps=800,
)
"""A small network on Morse code, for two CPU cores."""
CHARACTERS_LAPTOP = _protocol(
    CHARACTERS, rows=64, bound_steps=(4, 8, 32), sampler_steps=(4, 8, 32), samples=512, ot_batches=10
)
"""The network of the text study with characters, for two CPU cores."""
RECTIFIED = (("coupling", "rectified"), ("predict_x0", True))
"""Settings of a student; the queue adds the folder of the pairs and the weights of the teacher."""
BASE, OT, CONTINUED, ONCE, TWICE, AFTER_OT = (
    "independent",
    "exact_ot",
    "continued",
    "rectified",
    "rectified_twice",
    "rectified_after_ot",
)
FRESH = (0.3, 0.6)


def fresh_name(share: float) -> str:
    """The name of the variant with this share of text with independent noise, such as rectified_fresh_0p3."""
    return f"rectified_fresh_{share:g}".replace(".", "p")


def variants(
    protocol: Protocol, recipe: str, recipe_with_ot: str, seeds: tuple[int, ...], *, steps: int, pairs: int
) -> tuple[StudyVariant, ...]:
    """The rows of the study: `steps` optimizer steps of a student, on `pairs` pairs of its teacher."""
    student = replace(protocol, steps=steps)

    def taught(name: str, teacher: StudyVariant, **more: object) -> StudyVariant:
        keys = (*RECTIFIED, *more.items())
        return StudyVariant(name, recipe, keys, seeds, student, Teacher(teacher, pairs, max(protocol.sampler_steps)))

    base = StudyVariant(BASE, recipe, seeds=seeds, protocol=protocol)
    ot = StudyVariant(OT, recipe_with_ot, seeds=seeds, protocol=protocol)
    once = taught(ONCE, base)
    return (
        base,
        ot,
        taught(CONTINUED, base, fresh=1.0),
        once,
        taught(TWICE, once),
        taught(AFTER_OT, ot),
        *(taught(fresh_name(share), base, fresh=share) for share in FRESH),
    )


RECTIFIED_BUDGETS = (
    Budget("morse", variants(MORSE, "morse", "morse_exact", SEEDS, steps=10_000, pairs=100_000)),
    Budget("novels", variants(NOVELS, "dfm_b", "dfm_b_exact_ema", SEEDS, steps=2500, pairs=100_000)),
    Budget("morse_laptop", variants(LAPTOP, "morse", "morse_exact", SEEDS, steps=800, pairs=8192)),
    Budget("characters_laptop", variants(CHARACTERS_LAPTOP, "dfm_b", "dfm_b_exact_ema", SEEDS, steps=800, pairs=8192)),
)
