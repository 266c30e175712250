"""The oracle: flows on spaces small enough to enumerate, the ground truth of every theorem, bound and sampler."""

from .bounds import bound, coupled, implied_nll, kappa_bound, precise_nll
from .oracle import Moment, Oracle
from .path_kl import PathKL, Velocity, kl_bound
from .perfect import Perfect
from .planners import planned_law
from .rectification import rectify
from .reversal import Reversal, predictive_x0
from .space import Joint, Space, Table
from .transport import chosen_rows, dynamic_cost, kantorovich_cost, mutual_information

__all__ = [
    "Joint",
    "Moment",
    "Oracle",
    "PathKL",
    "Perfect",
    "Reversal",
    "Space",
    "Table",
    "Velocity",
    "bound",
    "chosen_rows",
    "coupled",
    "dynamic_cost",
    "implied_nll",
    "kantorovich_cost",
    "kappa_bound",
    "kl_bound",
    "mutual_information",
    "planned_law",
    "precise_nll",
    "predictive_x0",
    "rectify",
]
