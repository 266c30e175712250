"""ServedFlow: a trained network with what its requests and the page need."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..flow import Flow
from ..recipes.components import FAMILIES, choose, members, names_of, word
from ..sampling.random_draws import RandomStreams
from ..sampling.samplers import Sampler
from ..sources import Uniform
from ..system.safe_text import token_text
from ..vocab import Vocab
from .errors import RequestError
from .limits import Limits

Token = tuple[int, str]
"""An id and its text, which is empty for a mask."""


@dataclass(frozen=True, eq=False)
class ServedFlow:
    """One of the networks that a server offers."""

    id: str
    """Its name in requests."""
    run: str
    """What a user types after `hopflow sample`."""
    model: Any
    flow: Flow
    tokenizer: Any
    length: int
    """Tokens per sequence in training."""
    device: torch.device
    ot_batch: int | None = None
    predicted_hops: tuple[float, int] | None = None
    """Hops per sequence as predicted from pairs, and the length of these sequences."""
    typed: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the server that `hopflow sample` needs as well: device, threads, model and label."""
    label: int | None = None
    """The label of all sequences, for a network with labels."""
    _texts: dict[int, str] = field(default_factory=dict, repr=False)

    def token(self, token: int) -> Token:
        """A token with its text."""
        if token >= self.flow.vocab.data:
            return token, ""
        if token not in self._texts:
            self._texts[token] = token_text(self.tokenizer, token)
        return token, self._texts[token]

    def tokens(self, ids: Iterable[int] | Tensor) -> list[Token]:
        return [self.token(token) for token in (ids.tolist() if isinstance(ids, Tensor) else ids)]

    def encode(self, text: str, param: str) -> list[int]:
        """The ids of a text; RequestError for a text that the tokenizer cannot encode."""
        try:
            text.encode()
            ids: list[int] = self.tokenizer.encode(text)
        except UnicodeEncodeError:
            raise RequestError(f"{param} must be valid Unicode, got a lone surrogate.", param=param) from None
        except ValueError as error:
            raise RequestError(f"{param}: {error}", param=param) from None
        if any(token >= self.flow.vocab.data for token in ids):  # a tokenizer that has grown since the training
            raise RequestError(f"{param} contains a token that the network does not know.", param=param)
        return ids

    @property
    def description(self) -> str:
        """Source and coupling in a few words."""
        coupling = word(type(self.flow.solved_coupling)).replace("_", " ")
        pairs = f"{coupling} OT" if self.flow.couples else "independent pairs"
        of = f" of {self.ot_batch}" if self.flow.couples and self.ot_batch else ""
        return f"{type(self.flow.source).__name__}, {pairs}{of}"

    def as_json(self, limits: Limits) -> dict[str, Any]:
        """The flow as the page needs it."""
        vocab, (hops, length) = self.flow.vocab, self.predicted_hops or (None, None)
        return {
            "id": self.id,
            "label": self.run,
            "description": self.description,
            "vocab": {"data": vocab.data, "masks": vocab.masks},
            "disjoint": self.flow.prediction.keeps_data_tokens(self.flow.source),
            "has_end": self.tokenizer.end is not None,
            "length": {"default": min(self.length, limits.length), "max": limits.length},
            "predicted_hops": hops,
            "predicted_hops_length": length,
            "run": self.run,
            "device": str(self.device),
        }


def same_noise(flows: Sequence[ServedFlow]) -> bool:
    """Whether a seed gives all flows the same noise, with the same meaning: equal p0 and equal tokenizers."""
    first, *others = flows
    return bool(others) and all(
        other.flow.vocab == first.flow.vocab
        and other.tokenizer.sha256 == first.tokenizer.sha256
        and torch.equal(_p0(other), _p0(first))
        for other in others
    )


def samplers() -> list[dict[str, Any]]:
    """The samplers that a name can make, with what their controls depend on."""
    found = []
    for name in names_of("sampler"):
        kind: type[Any] = members(FAMILIES["sampler"])[name]
        sampler: Sampler = choose("sampler", name)
        found.append(
            {
                "name": name,
                "label": name.replace("_", " ").capitalize(),
                "has_steps": "steps" in kind.__dataclass_fields__,
                "needs_disjoint": _needs_disjoint(sampler),
                "has_corrector": sampler.has_corrector,
            }
        )
    return found


def _needs_disjoint(sampler: Sampler) -> bool:
    """Whether it refuses a source of data tokens."""
    flow = Flow(Uniform(Vocab(2)))
    try:
        sampler.events(flow, 0.0, torch.ones(1, 2, dtype=torch.bool), RandomStreams(0, [0]))
    except ValueError:
        return True
    return False


def _p0(served: ServedFlow) -> Tensor:
    return served.flow.source.probs_on(torch.device("cpu"), torch.float64)
