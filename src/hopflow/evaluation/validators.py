"""Validators: a user's own metrics, functions from samples to one number per sequence.

    def even(samples: Samples) -> list[bool]:
        return [len(text) % 2 == 0 for text in samples.texts]

    hf.evaluate(model, flow, x1, tokenizer=tokenizer, validators=[even, uniqueness, novelty])

On the command line: `hopflow eval RUN metric=my_file:even,uniqueness,novelty`. The rows have the name of the function.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..system.hints import did_you_mean
from ..system.typed_import import import_typed, split_typed
from .metrics import METRICS, SampleMetric, Samples

Validator = Callable[[Samples], Any]
"""A function from samples to one number, or True and False, per sequence."""


def uniqueness(samples: Samples) -> Float[Tensor, " n"]:
    """1 / (how often the sequence occurs in the sample): the mean is the number of different sequences over n.

    Sequences are compared up to their end-of-text token. The mean decreases with n, so compare it at the same n. Its
    standard error takes sequences as independent.
    """
    counts = Counter(samples.sequences)
    return torch.tensor([1 / counts[row] for row in samples.sequences], dtype=torch.float64)


def novelty(samples: Samples) -> list[bool]:
    """Whether the sequence is not one of the training rows, both up to their end-of-text token."""
    if samples.training is None:
        raise ValueError("novelty needs the training rows, which are known for the held-out rows of a run only")
    left = set(samples.sequences)
    for part in samples.training():
        left.difference_update(samples.up_to_end(part))
    return [row in left for row in samples.sequences]


def smiles_validity(samples: Samples) -> list[bool]:
    """Whether the text is a SMILES string by its brackets, ring bonds, bonds and atoms; valences are not checked."""
    from .smiles import is_smiles

    return [is_smiles(text) for text in samples.texts]


EXAMPLES: dict[str, Validator] = {one.__name__: one for one in (uniqueness, novelty, smiles_validity)}
"""The validators that have a name on the command line."""


def as_metric(validator: Any) -> SampleMetric:
    """The metric of a function; of a name in EXAMPLES, or of `package.module:function`, which is imported."""
    function = load(validator) if isinstance(validator, str) else validator
    if not callable(function):
        raise ValueError(f"validators must be functions from Samples to one number per sequence, got {function!r}")
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise ValueError(
            f"a validator needs a name, which becomes the name of its metric: define it with def, got {name}"
        )
    origin = f"{getattr(function, '__module__', None) or '?'}:{name}"

    def per_sequence(samples: Samples) -> Tensor:
        try:
            values = torch.as_tensor(function(samples)).detach().cpu()
        except ValueError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise ValueError(f"the metric {name} failed: {type(error).__name__}: {error}") from error
        n = len(samples.tokens)
        if tuple(values.shape) != (n,) or values.is_complex():
            raise ValueError(
                f"the metric {name} must return one number per sequence, shape ({n},), got {values.dtype} of shape "
                f"{tuple(values.shape)}"
            )
        values = values.double()
        if not bool(values.isfinite().all()):
            place = int((~values.isfinite()).nonzero()[0])
            raise ValueError(f"the metric {name} must return finite numbers, got {values[place]} for sequence {place}")
        return values

    return SampleMetric(name, getattr(function, "unit", "mean of sequences"), per_sequence, function=origin)


def as_metrics(validators: Sequence[Any], others: Sequence[SampleMetric] = METRICS) -> list[SampleMetric]:
    """The metrics of these functions; a name may occur once."""
    found = [as_metric(one) for one in validators]
    taken = {metric.quantity for metric in (*METRICS, *others)}
    for one in found:
        if one.quantity in taken:
            raise ValueError(f"there are two metrics with the name {one.quantity}: rename the function")
        taken.add(one.quantity)
    return found


def load(text: str) -> Validator:
    """The validator that the user has typed: a name in EXAMPLES, or `package.module:function`.

    Call this only with text that the user has typed, never with text from a file: importing a module runs its code.
    """
    if text in EXAMPLES:
        return EXAMPLES[text]
    if ":" not in text:
        advice = did_you_mean(text, list(EXAMPLES)) or f"the ready ones are {', '.join(EXAMPLES)}"
        raise ValueError(f"there is no metric {text!r}: {advice}; for your own, write metric=package.module:function")
    module, name = split_typed(text, "metric", "package.module:function")
    found = import_typed(module, text, "metric")
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"metric={text}: {module} has no {part}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"metric={text} is not a function")
    function: Validator = found
    return function
