"""Bounds on the negative log-likelihood of sequences under the samplers of a flow, estimated by Monte Carlo."""

from ..system.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "nll_bound": "hopflow.bounds.nll:nll_bound",
        "kappa_bound": "hopflow.bounds.nll:kappa_bound",
        "coupled_bound": "hopflow.bounds.coupled:coupled_bound",
        "coupled_number": "hopflow.bounds.coupled:coupled_number",
        "literal_second_bound": "hopflow.bounds.literal:literal_second_bound",
        "precise_perplexity": "hopflow.bounds.precise:precise_perplexity",
    },
)
