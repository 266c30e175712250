"""From a recipe to the objects that are trained: corpus, flow and network."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from .. import data
from ..costs import SequenceCost, TokenMatrix
from ..data import Corpus
from ..flow import Flow
from ..models import Causal, Convolutional, Size, Transformer
from ..network.network import device_of, evaluation_mode
from ..runs.checkpoint import restore
from ..runs.custom_network import MISTAKES, check_call, is_class, is_out_of_memory, named_class
from ..runs.named_networks import network_place
from ..runs.pretrained import from_pretrained
from ..runs.rng import Seeded, stream_seed
from ..training.loop import Logger
from ..training.train import Run, train
from ..vocab import Vocab
from .components import choose, fit_source, kind_of, word
from .recipe import Recipe


@dataclass(frozen=True)
class Built:
    """A recipe with its corpus, flow and network."""

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
        """Train the network, or resume the run in its folder; see `hf.train`."""
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
    """Read the text, fit the source to it, and make the network; its weights follow from `seed`, or from `init`."""
    corpus = data.load(
        recipe.data,
        recipe.tokens,
        recipe.length,
        holdout=recipe.holdout,
        pack=recipe.pack,
        offline=offline,
        progress=progress,
    )
    flow = None if recipe.model == "causal" else flow_of(recipe, _counts(recipe, corpus), corpus.tokenizer)
    with Seeded(stream_seed(recipe.seed, "weights")):
        model = _network(recipe, flow, corpus.vocab_size, _labels(recipe, corpus))
    if recipe.init:
        _initialize(model, recipe.init)
    return Built(recipe, corpus, flow, model)


def _counts(recipe: Recipe, corpus: Corpus) -> torch.Tensor:
    """The token counts that the source is fitted to: those of each position if it needs them."""
    return corpus.position_counts if kind_of("source", recipe.source).counts_positions else corpus.counts


def _initialize(model: nn.Module, init: str) -> None:
    """Copy the weights of a run; an x0 head is copied only if both networks have the same one."""
    own, saved = model.state_dict(), from_pretrained(network_place(init)).model.state_dict()
    if any(name.startswith("x0_head.") for name in own.keys() ^ saved.keys()):
        own, saved = ({n: w for n, w in state.items() if not n.startswith("x0_head.")} for state in (own, saved))
    restore(own, saved, f"init={init}")


def _labels(recipe: Recipe, corpus: Corpus) -> int:
    """The number of labels of the network: those of the data, unless the network of the recipe takes no labels."""
    takes = recipe.model == "transformer" or is_class(recipe.model)
    count = len(corpus.label_names) if takes else 0
    if corpus.label_names and not takes and recipe.labels is None:
        warnings.warn(
            f"model={recipe.model} ignores the labels of the rows; model=transformer learns a distribution for each "
            f"label, labels=false leaves this warning out",
            stacklevel=2,
        )
    if recipe.labels and not count:
        need = "model=transformer" if corpus.label_names else "data with a label for each row"
        raise ValueError(f"labels=true needs {need}: leave labels out")
    return 0 if recipe.labels is False else count


def _network(recipe: Recipe, flow: Flow | None, vocab_size: int, labels: int) -> nn.Module:
    """The network that a recipe names; its weights are drawn from torch's default generator."""
    if is_class(recipe.model):
        return _custom_network(recipe, flow, labels)
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
        predict_x0=_predicts_x0(recipe, flow),
        labels=labels,
    )


def _predicts_x0(recipe: Recipe, flow: Flow) -> bool:
    """Whether the network gets an x0 head: by default if pairs are coupled and `hopflow eval` measures br."""
    if recipe.predict_x0 is not None:
        return recipe.predict_x0
    return flow.couples and not flow.prediction.keeps_data_tokens(flow.source)


def _custom_network(recipe: Recipe, flow: Flow | None, labels: int) -> nn.Module:
    """A network of the user's class, called with those settings that its constructor takes."""
    assert flow is not None  # only model=causal has none
    cls = named_class(recipe.model)
    offered = {
        "vocab": flow.vocab,
        "length": recipe.length,
        "size": Size.of(recipe.size),
        "dropout": recipe.dropout,
        "time": recipe.time,
        "recompute": recipe.recompute,
        "predict_x0": _predicts_x0(recipe, flow),
        "labels": labels,
    }
    taken = [p for p in inspect.signature(cls).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    unknown = [p.name for p in taken if p.name not in offered and p.default is p.empty]
    if unknown:
        raise ValueError(
            f"model={recipe.model} needs {', '.join(unknown)}, which no setting provides: give it a default, or train "
            f"from Python with hf.train. A constructor may take {', '.join(offered)}"
        )
    try:
        model = cls(**{p.name: offered[p.name] for p in taken if p.name in offered})
    except MISTAKES as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"model={recipe.model} cannot be built: {type(error).__name__}: {error}") from error
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluation_mode(model):
        check_call(model, flow, recipe.length, device_of(model))
    return model


def flow_of(recipe: Recipe, counts: torch.Tensor, tokenizer: data.Tokenizer | None = None) -> Flow:
    """The flow of a recipe, for a text with these token counts; a cost from a file needs the tokenizer."""
    source = fit_source(recipe.source, counts, recipe.masks)
    offered = {
        "cost": _cost(recipe, source.vocab, tokenizer),
        "eps": recipe.eps,
        "draw": choose("draw", recipe.draw),
        "fresh": recipe.fresh,
    }
    coupling = choose("coupling", recipe.coupling, **offered)
    if coupling.is_identity:  # it would compute the cost at every step, only to report it
        coupling = choose("coupling", recipe.coupling)
    return Flow(
        source,
        choose("schedule", recipe.schedule),
        choose("prediction", recipe.prediction),
        coupling,
        choose("objective", recipe.objective),
    )


def _cost(recipe: Recipe, vocab: Vocab, tokenizer: data.Tokenizer | None) -> SequenceCost:
    """The cost that a recipe names; token_matrix:FILE reads its numbers from a file."""
    name, _, file = recipe.cost.partition(":")
    if name == word(TokenMatrix) and not file:
        raise ValueError(f"cost={recipe.cost} needs a file with a table: cost={name}:FILE")
    if name != word(TokenMatrix) or tokenizer is None:
        found: SequenceCost = choose("cost", recipe.cost)
        return found
    return data.token_cost(file, tokenizer, vocab.masks)
