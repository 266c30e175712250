"""hopflow: discrete flow matching for text with as few token hops as possible.

Public names are imported when they are first used, so that `import hopflow` and `hopflow --help` are fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors; a test keeps it equal to the table below
    from . import data as data
    from . import exact as exact
    from . import recipes as recipes
    from . import report as report
    from .bounds.coupled import coupled_bound as coupled_bound
    from .bounds.coupled import coupled_number as coupled_number
    from .bounds.estimate import Estimate as Estimate
    from .bounds.literal import literal_second_bound as literal_second_bound
    from .bounds.monte_carlo import Count as Count
    from .bounds.monte_carlo import Draws as Draws
    from .bounds.monte_carlo import Forced as Forced
    from .bounds.nll import kappa_bound as kappa_bound
    from .bounds.nll import nll_bound as nll_bound
    from .bounds.precise import precise_perplexity as precise_perplexity
    from .bounds.reversal import ReversalOptions as ReversalOptions
    from .bounds.reversal import reversal_bound as reversal_bound
    from .bounds.reversal import reversal_certificate as reversal_certificate
    from .bounds.reversal_estimate import ReversalEstimate as ReversalEstimate
    from .costs import Cost as Cost
    from .costs import Embedding as Embedding
    from .costs import Hamming as Hamming
    from .costs import OneStepLikelihood as OneStepLikelihood
    from .costs import SequenceCost as SequenceCost
    from .costs import SquaredEmbedding as SquaredEmbedding
    from .costs import TokenMatrix as TokenMatrix
    from .couplings import Coupling as Coupling
    from .couplings import ExactOT as ExactOT
    from .couplings import Independent as Independent
    from .couplings import OptimalTransport as OptimalTransport
    from .couplings import Pairs as Pairs
    from .couplings import Rectified as Rectified
    from .couplings import SinkhornOT as SinkhornOT
    from .evaluation.generative import generative_perplexity as generative_perplexity
    from .evaluation.load_judge import judge as judge
    from .evaluation.rows import Row as Row
    from .evaluation.suite import evaluate as evaluate
    from .evaluation.transport import jumps as jumps
    from .evaluation.transport import transport_costs as transport_costs
    from .flow import Flow as Flow
    from .models import Causal as Causal
    from .models import Convolutional as Convolutional
    from .models import Size as Size
    from .models import Transformer as Transformer
    from .objectives import Bound as Bound
    from .objectives import CrossEntropy as CrossEntropy
    from .objectives import NoisyCrossEntropy as NoisyCrossEntropy
    from .objectives import Objective as Objective
    from .paths import ConvexPath as ConvexPath
    from .paths import PathSample as PathSample
    from .predictions import Carry as Carry
    from .predictions import Evidence as Evidence
    from .predictions import Plain as Plain
    from .predictions import Prediction as Prediction
    from .recipes import Recipe as Recipe
    from .runs.pair_store import PairStore as PairStore
    from .runs.pretrained import from_pretrained as from_pretrained
    from .runs.pretrained import save_pretrained as save_pretrained
    from .runs.rectify import rectify as rectify
    from .sampling.event_queue import Events as Events
    from .sampling.filters import Filter as Filter
    from .sampling.generate import Unfinished as Unfinished
    from .sampling.generate import generate as generate
    from .sampling.generate import infill as infill
    from .sampling.generation import HOLE as HOLE
    from .sampling.generation import Generation as Generation
    from .sampling.generation import Hops as Hops
    from .sampling.options import SamplingOptions as SamplingOptions
    from .sampling.planned_nll import planned_nll as planned_nll
    from .sampling.planners import Confidence as Confidence
    from .sampling.planners import EntropyBound as EntropyBound
    from .sampling.planners import LeftToRight as LeftToRight
    from .sampling.planners import Margin as Margin
    from .sampling.planners import Planner as Planner
    from .sampling.prompts import prompt as prompt
    from .sampling.random_draws import RandomStreams as RandomStreams
    from .sampling.random_draws import gumbel32 as gumbel32
    from .sampling.samplers import CosineGrid as CosineGrid
    from .sampling.samplers import Euler as Euler
    from .sampling.samplers import EvenGrid as EvenGrid
    from .sampling.samplers import GivenGrid as GivenGrid
    from .sampling.samplers import Grid as Grid
    from .sampling.samplers import RandomOrder as RandomOrder
    from .sampling.samplers import Sampler as Sampler
    from .sampling.stream import Frame as Frame
    from .sampling.stream import Stream as Stream
    from .sampling.stream import stream as stream
    from .schedules import Cosine as Cosine
    from .schedules import Linear as Linear
    from .schedules import Polynomial as Polynomial
    from .schedules import Positional as Positional
    from .schedules import Schedule as Schedule
    from .scores import Scores as Scores
    from .sources import BagOfWords as BagOfWords
    from .sources import Mask as Mask
    from .sources import Mixed as Mixed
    from .sources import MultiMask as MultiMask
    from .sources import PositionFrequencies as PositionFrequencies
    from .sources import Source as Source
    from .sources import Uniform as Uniform
    from .training.settings import Settings as Settings
    from .training.tasks import FlowLoss as FlowLoss
    from .training.train import Run as Run
    from .training.train import train as train
    from .transport.cost_matrix import CostMatrix as CostMatrix
    from .transport.plan_sampling import Permutation as Permutation
    from .transport.plan_sampling import Pick as Pick
    from .transport.plan_sampling import Rows as Rows
    from .vocab import Vocab as Vocab

_HOME = {
    # Tokens: ids of data tokens and masks.
    "Vocab": "vocab",
    # Schedules: how fast positions change from source to data.
    "Schedule": "schedules",
    "Linear": "schedules",
    "Polynomial": "schedules",
    "Cosine": "schedules",
    "Positional": "schedules",
    # Sources: the distribution of the starting sequences x0.
    "Source": "sources",
    "Mask": "sources",
    "MultiMask": "sources",
    "Uniform": "sources",
    "Mixed": "sources",
    "BagOfWords": "sources",
    "PositionFrequencies": "sources",
    # Paths: random states between x0 and x1.
    "ConvexPath": "paths",
    "PathSample": "paths",
    # Predictions: how logits become probabilities of data tokens.
    "Prediction": "predictions",
    "Plain": "predictions",
    "Carry": "predictions",
    "Evidence": "predictions",
    "Scores": "scores",
    # Costs: the transport cost between source and data sequences.
    "SequenceCost": "costs",
    "Cost": "costs",
    "Hamming": "costs",
    "SquaredEmbedding": "costs",
    "Embedding": "costs",
    "TokenMatrix": "costs",
    "OneStepLikelihood": "costs",
    "CostMatrix": "transport.cost_matrix",
    # Couplings: which x0 is paired with which x1.
    "Coupling": "couplings",
    "OptimalTransport": "couplings",
    "Pairs": "couplings",
    "Independent": "couplings",
    "ExactOT": "couplings",
    "SinkhornOT": "couplings",
    "Rectified": "couplings",
    "Pick": "transport.plan_sampling",
    "Rows": "transport.plan_sampling",
    "Permutation": "transport.plan_sampling",
    # Objectives: the training loss.
    "Objective": "objectives",
    "CrossEntropy": "objectives",
    "NoisyCrossEntropy": "objectives",
    "Bound": "objectives",
    # Flow: all of the above in one object.
    "Flow": "flow",
    # Rectification: pairs drawn by a trained flow.
    "rectify": "runs.rectify",
    "PairStore": "runs.pair_store",
    # Networks, and saving and loading them.
    "Size": "models",
    "Transformer": "models",
    "Causal": "models",
    "Convolutional": "models",
    "save_pretrained": "runs.pretrained",
    "from_pretrained": "runs.pretrained",
    # Training.
    "train": "training.train",
    "Run": "training.train",
    "Settings": "training.settings",
    "FlowLoss": "training.tasks",
    "Recipe": "recipes",
    # Sampling: generate and infill sequences, at once or step by step.
    "generate": "sampling.generate",
    "infill": "sampling.generate",
    "stream": "sampling.stream",
    "Stream": "sampling.stream",
    "Frame": "sampling.stream",
    "SamplingOptions": "sampling.options",
    "Generation": "sampling.generation",
    "Hops": "sampling.generation",
    "Unfinished": "sampling.generate",
    "prompt": "sampling.prompts",
    "HOLE": "sampling.generation",
    # Samplers, time grids and filters.
    "Sampler": "sampling.samplers",
    "Euler": "sampling.samplers",
    "RandomOrder": "sampling.samplers",
    "Planner": "sampling.planners",
    "Confidence": "sampling.planners",
    "Margin": "sampling.planners",
    "EntropyBound": "sampling.planners",
    "LeftToRight": "sampling.planners",
    "Events": "sampling.event_queue",
    "RandomStreams": "sampling.random_draws",
    "Grid": "sampling.samplers",
    "EvenGrid": "sampling.samplers",
    "CosineGrid": "sampling.samplers",
    "GivenGrid": "sampling.samplers",
    "Filter": "sampling.filters",
    "gumbel32": "sampling.random_draws",
    # The negative log-likelihood: exact for planners, and bounds.
    "planned_nll": "sampling.planned_nll",
    "nll_bound": "bounds.nll",
    "kappa_bound": "bounds.nll",
    "coupled_bound": "bounds.coupled",
    "coupled_number": "bounds.coupled",
    "literal_second_bound": "bounds.literal",
    "precise_perplexity": "bounds.precise",
    "reversal_bound": "bounds.reversal",
    "reversal_certificate": "bounds.reversal",
    "Estimate": "bounds.estimate",
    "ReversalEstimate": "bounds.reversal_estimate",
    "ReversalOptions": "bounds.reversal",
    "Draws": "bounds.monte_carlo",
    "Count": "bounds.monte_carlo",
    "Forced": "bounds.monte_carlo",
    # Evaluation.
    "evaluate": "evaluation.suite",
    "Row": "evaluation.rows",
    "judge": "evaluation.load_judge",
    "generative_perplexity": "evaluation.generative",
    "jumps": "evaluation.transport",
    "transport_costs": "evaluation.transport",
}
_SUBMODULES = ("data", "exact", "recipes", "report")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'hopflow' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # the next access does not call this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
