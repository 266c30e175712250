"""Build: from a recipe to the objects that are trained."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .. import data
from ..couplings import Independent
from ..data import Corpus
from ..flow import Flow
from ..models import Causal, Convolutional, Model, Transformer
from ..pretrained import from_pretrained
from ..training.checkpoint import restore
from ..training.loop import Logger, Run, train
from ..training.streams import Seeded, stream_seed
from .choices import choose, kind_of
from .recipe import Recipe


@dataclass(frozen=True)
class Built:
    """A recipe with its text read and its network made."""

    recipe: Recipe
    corpus: Corpus
    flow: Flow | None
    model: nn.Module

    @property
    def folder(self) -> Path:
        """The default folder of the run."""
        return Path(self.recipe.out) if self.recipe.out else Path("runs") / self.recipe.name

    def train(
        self,
        *,
        out: Path | str | None = None,
        fresh: bool = False,
        logger: Logger | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Run:
        return train(
            self.model,
            self.flow,
            self.corpus,
            out=out or self.folder,
            settings=self.recipe,
            fresh=fresh,
            logger=logger,
            progress=progress,
        )


def build(recipe: Recipe, *, offline: bool = False, progress: Callable[[str], None] | None = None) -> Built:
    """Read the text, fit the source to it, and make the network with the seed's weights, or with those of `init`."""
    corpus = data.load(
        recipe.data,
        recipe.tokens,
        recipe.length,
        holdout=recipe.holdout,
        pack=recipe.pack,
        offline=offline,
        progress=progress,
    )
    flow = None if recipe.model == "causal" else flow_of(recipe, corpus.counts)
    with Seeded(stream_seed(recipe.seed, "weights")):
        model = _network(recipe, flow, corpus.vocab_size)
    if recipe.init:
        restore(model.state_dict(), from_pretrained(recipe.init).model.state_dict(), f"init={recipe.init}")
    return Built(recipe, corpus, flow, model)


def _network(recipe: Recipe, flow: Flow | None, vocab_size: int) -> Model:
    """The network that a recipe names, with weights from torch's default generator, or from that of `Seeded`."""
    size, dropout = recipe.size, recipe.dropout
    if recipe.predict_x0 and recipe.model != "transformer":
        raise ValueError(f"predict_x0=true needs model=transformer, got model={recipe.model}")
    if flow is None:
        return Causal(vocab_size, size, dropout=dropout, recompute=recipe.recompute)
    if recipe.model == "convolutional":
        return Convolutional(flow.vocab, size, dropout=dropout, time=recipe.time)
    return Transformer(
        flow.vocab,
        size,
        dropout=dropout,
        time=recipe.time,
        recompute=recipe.recompute,
        predict_x0=recipe.predict_x0,
    )


def flow_of(recipe: Recipe, counts: torch.Tensor) -> Flow:
    """The flow that a recipe names, for a text with these token counts."""
    offered = {"cost": choose("cost", recipe.cost), "eps": recipe.eps, "draw": choose("draw", recipe.draw)}
    if kind_of("coupling", recipe.coupling) is Independent:
        offered = {}  # it would only report this cost, and read the embedding table at every step for it
    return Flow(
        kind_of("source", recipe.source).fit(counts, recipe.masks),
        choose("schedule", recipe.schedule),
        choose("prediction", recipe.prediction),
        choose("coupling", recipe.coupling, **offered),
        choose("objective", recipe.objective),
    )
