"""Flow: the components that define what is learned, as one frozen and storable object."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from .couplings import Coupling, Independent
from .network.network import Network, NetworkCaller
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

WIDTH = 120
"""Characters of a line of `print(flow)` above which a component's summary gets a separate line."""


@dataclass(frozen=True)
class Flow:
    """A discrete flow: source of x0, schedule, prediction, coupling of x0 and x1, and training objective.

    >>> import hopflow as hf
    >>> print(hf.Flow(hf.Mask(hf.Vocab(27, masks=1))))
    Flow over 27 data tokens and 1 mask
      source      Mask(vocab=Vocab(data=27, masks=1)): Every position starts as the first mask
      schedule    Linear(): k = t
      prediction  Evidence(): Softmax with logit(xt) += log(1 + k/((1-k)·p0(xt))), the evidence of xt itself
      coupling    Independent(cost=Hamming()): Row i of x0 is paired with row i of x1, π = p0 × q
      objective   CrossEntropy(): -Σ_i log P(x1^i) over all positions, the paper's DFM-O
      predicts    P(x) = p(x1 = x | xt, t) of every position, over 27 data tokens
    """

    source: Source
    schedule: Schedule = Linear()
    prediction: Prediction = Evidence()
    coupling: Coupling = Independent()
    objective: Objective = CrossEntropy()

    def __post_init__(self) -> None:
        for name, (family, example) in _PARTS.items():
            if not isinstance(getattr(self, name), family):
                kind = f"a{'n' * family.__name__.startswith('O')} {family.__name__}"
                raise ValueError(f"{name} must be {kind}, e.g. {example}, got {getattr(self, name)!r}.")
        self.objective.check(self.source)

    def __str__(self) -> str:
        data, masks = self.vocab.data, self.vocab.masks
        mask_tokens = f" and {masks} mask{'s' if masks > 1 else ''}" if masks else ""
        lines = [f"Flow over {data} data token{'s' if data > 1 else ''}{mask_tokens}"]
        for name in _PARTS:
            component = getattr(self, name)
            text, summary = f"  {name:<10}  {component}", _summary(component)
            lines += [text + summary] if len(text + summary) <= WIDTH else [text, " " * 14 + summary.removeprefix(": ")]
        lines.append(f"  predicts    P(x) = p(x1 = x | xt, t) of every position, over {data} data tokens")
        return "\n".join(lines)

    @property
    def vocab(self) -> Vocab:
        """The token ids, those of the source."""
        return self.source.vocab

    @property
    def path(self) -> ConvexPath:
        """The path from x0 to x1 with this flow's schedule."""
        return ConvexPath(self.schedule)

    @property
    def solved_coupling(self) -> Coupling:
        """The coupling that training solves; with a constant source there is nothing to choose."""
        return self.coupling.for_equal_rows() if self.source.constant else self.coupling

    @property
    def couples(self) -> bool:
        """Whether pairs are chosen by a coupling; False if they are independent."""
        return not self.solved_coupling.is_identity

    def check_length(self, length: int) -> None:
        """Raise ValueError if the schedule or the source is that of sequences of another length."""
        self.schedule.check_length(length)
        self.source.check_length(length)

    def scores(self, logits: Float[Tensor, "B L Vd"], sample: PathSample) -> Scores:
        """The scores of this sample with these logits."""
        return Scores.from_logits(logits, sample, self.prediction, self.source)

    def ask(
        self,
        network: Network | NetworkCaller,
        sample: PathSample,
        *,
        count: int | None = None,
        features: Float[Tensor, "B L D"] | None = None,
    ) -> Scores:
        """The scores of this sample by a network (`Scores.from_network`)."""
        return Scores.from_network(network, sample, self.prediction, self.source, count=count, features=features)

    def loss(self, logits: Float[Tensor, "B L Vd"], sample: PathSample) -> Float[Tensor, " B"]:
        """The training loss of each sequence, in nats."""
        return self.objective(self.scores(logits, sample), sample)


def _summary(component: object) -> str:
    """The first sentence of the docstring of a component's class, after a colon."""
    text = (type(component).__doc__ or "").strip().partition("\n")[0]
    if not text or text.startswith(f"{type(component).__name__}("):  # what dataclass writes itself
        return ""
    return f": {text.partition('. ')[0].rstrip('.')}"


def check_network(model: object, flow: object) -> None:
    """Raise ValueError unless `flow` is a Flow and `model` a network that can embed its tokens."""
    if not isinstance(flow, Flow):
        raise ValueError(f"flow must be a Flow, got {type(flow).__name__}. Pass the network first, then the flow.")
    if not callable(model):
        raise ValueError(f"model must be a network, got {type(model).__name__}. Pass the network first, then the flow.")
    vocab = getattr(model, "vocab", None)
    if isinstance(vocab, Vocab) and (vocab.data != flow.vocab.data or vocab.size < flow.vocab.size):
        raise ValueError(f"the network has {vocab}, the flow has {flow.vocab}: use one Vocab for both.")
