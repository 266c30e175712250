"""Sampling: generate and infill sequences; samplers, time grids, filters and the queue of events."""

from ..system.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "How": "hopflow.sampling.options:SamplingOptions",
        "Unfinished": "hopflow.sampling.generate:Unfinished",
        "infill": "hopflow.sampling.generate:infill",
    },
)
