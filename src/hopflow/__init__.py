"""hopflow: discrete flow matching for text with as few token hops as possible.

Public names are imported when they are first used, so that `import hopflow` and `hopflow --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors read; a test holds it equal to the table below
    from . import data as data
    from . import exact as exact
    from . import recipes as recipes
    from . import report as report
    from .bounds import coupled_bound as coupled_bound
    from .bounds import coupled_number as coupled_number
    from .bounds import kappa_bound as kappa_bound
    from .bounds import literal_second_bound as literal_second_bound
    from .bounds import nll_bound as nll_bound
    from .bounds import precise_perplexity as precise_perplexity
    from .categorical import gumbel32 as gumbel32
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
    from .couplings import SinkhornOT as SinkhornOT
    from .draws import Count as Count
    from .draws import Draws as Draws
    from .draws import Forced as Forced
    from .estimate import Estimate as Estimate
    from .evaluation.generative import generative_perplexity as generative_perplexity
    from .evaluation.judge import judge as judge
    from .evaluation.rows import Row as Row
    from .evaluation.suite import evaluate as evaluate
    from .evaluation.transport import jumps as jumps
    from .evaluation.transport import transport_costs as transport_costs
    from .filters import Filter as Filter
    from .flow import Flow as Flow
    from .generation import HOLE as HOLE
    from .generation import Generation as Generation
    from .generation import Hops as Hops
    from .grids import CosineGrid as CosineGrid
    from .grids import EvenGrid as EvenGrid
    from .grids import GivenGrid as GivenGrid
    from .grids import Grid as Grid
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
    from .picks import Permutation as Permutation
    from .picks import Pick as Pick
    from .picks import Rows as Rows
    from .predictions import Carry as Carry
    from .predictions import Evidence as Evidence
    from .predictions import Plain as Plain
    from .predictions import Prediction as Prediction
    from .pretrained import from_pretrained as from_pretrained
    from .pretrained import save_pretrained as save_pretrained
    from .prompts import prompt as prompt
    from .recipes import Recipe as Recipe
    from .reversal import ReversalEstimate as ReversalEstimate
    from .reversal import reversal_bound as reversal_bound
    from .reversal import reversal_certificate as reversal_certificate
    from .samplers import Euler as Euler
    from .samplers import RandomOrder as RandomOrder
    from .samplers import Sampler as Sampler
    from .sampling import generate as generate
    from .sampling import infill as infill
    from .schedules import Cosine as Cosine
    from .schedules import Linear as Linear
    from .schedules import Polynomial as Polynomial
    from .schedules import Positional as Positional
    from .schedules import Schedule as Schedule
    from .scores import Scores as Scores
    from .sources import BagOfWords as BagOfWords
    from .sources import Mask as Mask
    from .sources import MultiMask as MultiMask
    from .sources import Source as Source
    from .sources import Uniform as Uniform
    from .training.loop import Run as Run
    from .training.loop import train as train
    from .training.settings import Settings as Settings
    from .vocab import Vocab as Vocab

_HOME = {
    "Vocab": "vocab",
    "Schedule": "schedules",
    "Linear": "schedules",
    "Polynomial": "schedules",
    "Cosine": "schedules",
    "Positional": "schedules",
    "Source": "sources",
    "Mask": "sources",
    "MultiMask": "sources",
    "Uniform": "sources",
    "BagOfWords": "sources",
    "ConvexPath": "paths",
    "PathSample": "paths",
    "Prediction": "predictions",
    "Plain": "predictions",
    "Carry": "predictions",
    "Evidence": "predictions",
    "Scores": "scores",
    "SequenceCost": "costs",
    "Cost": "costs",
    "Hamming": "costs",
    "SquaredEmbedding": "costs",
    "Embedding": "costs",
    "TokenMatrix": "costs",
    "OneStepLikelihood": "costs",
    "Pick": "picks",
    "Rows": "picks",
    "Permutation": "picks",
    "Coupling": "couplings",
    "OptimalTransport": "couplings",
    "Pairs": "couplings",
    "Independent": "couplings",
    "ExactOT": "couplings",
    "SinkhornOT": "couplings",
    "Objective": "objectives",
    "CrossEntropy": "objectives",
    "NoisyCrossEntropy": "objectives",
    "Bound": "objectives",
    "Flow": "flow",
    "Sampler": "samplers",
    "Euler": "samplers",
    "RandomOrder": "samplers",
    "Grid": "grids",
    "EvenGrid": "grids",
    "CosineGrid": "grids",
    "GivenGrid": "grids",
    "Filter": "filters",
    "gumbel32": "categorical",
    "HOLE": "generation",
    "Generation": "generation",
    "Hops": "generation",
    "generate": "sampling",
    "infill": "sampling",
    "prompt": "prompts",
    "Estimate": "estimate",
    "Draws": "draws",
    "Count": "draws",
    "Forced": "draws",
    "nll_bound": "bounds",
    "kappa_bound": "bounds",
    "coupled_bound": "bounds",
    "coupled_number": "bounds",
    "literal_second_bound": "bounds",
    "precise_perplexity": "bounds",
    "ReversalEstimate": "reversal",
    "reversal_bound": "reversal",
    "reversal_certificate": "reversal",
    "judge": "evaluation.judge",
    "generative_perplexity": "evaluation.generative",
    "Row": "evaluation.rows",
    "evaluate": "evaluation.suite",
    "jumps": "evaluation.transport",
    "transport_costs": "evaluation.transport",
    "train": "training.loop",
    "Run": "training.loop",
    "Settings": "training.settings",
    "Recipe": "recipes",
    "Size": "models",
    "Transformer": "models",
    "Causal": "models",
    "Convolutional": "models",
    "save_pretrained": "pretrained",
    "from_pretrained": "pretrained",
}
_SUBMODULES = ("data", "exact", "recipes", "report")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'hopflow' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value  # the next use skips this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBMODULES})
