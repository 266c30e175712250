"""A budget of the text study that takes seconds on a CPU."""

from dataclasses import replace

from hopflow.reproduce.text import cell as cells
from hopflow.reproduce.text.protocol import LAPTOP, Budget, StudyVariant

TINY = replace(
    LAPTOP,
    data="docs",
    tokens="bpe:300",
    size="micro",
    length=16,
    steps=2,
    judge_steps=2,
    batch=4,
    rows=4,
    draws=2,
    bound_steps=(4,),
    reversal_steps=4,
    paths=2,
    sampler_steps=(4,),
    samples=4,
    ot_batches=2,
)


def tiny_budget(*names: str) -> Budget:
    return Budget("tiny", tuple(StudyVariant(name, name, seeds=(0,), protocol=TINY) for name in names))


def bound(nats, *, seed_shift=0.0, quantity="b0", **keys):
    given = {"set": "test", "eta": 0.0, "steps": None, "paths": None, "proposal": None, **keys}
    values = [value + seed_shift for value in nats]
    return cells.BoundValues(
        quantity=quantity,
        is_bound=True,
        length=4,
        nats=values,
        draw_stderr=0.1,
        calls=1,
        dtype="x",
        seconds=1.0,
        **given,
    )
