"""A flow: the parts that say what is learned. Frozen, plain data, storable."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .couplings import Coupling, Independent
from .network import Network
from .objectives import CrossEntropy, Objective
from .paths import ConvexPath, PathSample
from .predictions import Evidence, Prediction
from .schedules import Linear, Schedule
from .scores import Scores
from .sources import Source
from .vocab import Vocab

_PARTS: dict[str, tuple[type, str]] = {
    "source": (Source, "MultiMask(vocab)"),
    "schedule": (Schedule, "Linear()"),
    "prediction": (Prediction, "Evidence()"),
    "coupling": (Coupling, "ExactOT(Hamming())"),
    "objective": (Objective, "CrossEntropy()"),
}


@dataclass(frozen=True)
class Flow:
    """Where x0 comes from, how far along, what logits mean, which x0 meets which x1, and what is minimised."""

    source: Source
    schedule: Schedule = Linear()
    prediction: Prediction = Evidence()
    coupling: Coupling = Independent()
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        for name, (family, example) in _PARTS.items():
            if not isinstance(getattr(self, name), family):
                raise ValueError(f"{name} must be a {family.__name__}, e.g. {example}; got {getattr(self, name)!r}")
        self.objective.check(self.source)

    @property
    def vocab(self) -> Vocab:
        return self.source.vocab

    @property
    def path(self) -> ConvexPath:
        return ConvexPath(self.schedule)

    @property
    def solved_coupling(self) -> Coupling:
        """The coupling as training solves it: with a constant source it pairs rows as they come."""
        return self.coupling.for_equal_rows() if self.source.constant else self.coupling

    @property
    def couples(self) -> bool:
        """Whether the coupling has anything to choose; if not, pairs are independent and nothing is solved."""
        return not self.solved_coupling.is_identity

    def scores(self, logits: Float[Tensor, "B L Vd"], sample: PathSample) -> Scores:
        """What the logits say under this flow's prediction."""
        return Scores.from_logits(logits, sample, self.prediction, self.source)

    def ask(
        self,
        model: Network,
        sample: PathSample,
        *,
        body: Network | None = None,
        count: int | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
    ) -> Scores:
        """What a network says of this sample (`Scores.from_network`)."""
        return Scores.from_network(model, sample, self.prediction, self.source, body=body, count=count, head=head)

    def loss(self, logits: Float[Tensor, "B L Vd"], sample: PathSample) -> Float[Tensor, " B"]:
        """Nats of each sequence under this flow's objective."""
        return self.objective(self.scores(logits, sample), sample)
