"""Callbacks of a run that may lose their terminal, pipe or server without ending it."""

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("hopflow")

P = ParamSpec("P")


def outliving(callback: Callable[P, None]) -> Callable[P, None]:
    """The callback without the errors of a closed or broken stream: the first one is logged, the run goes on.

    It is called again each time: a server may come back. Every other error is the caller's and is raised.
    """
    warned = False

    def call(*arguments: P.args, **keys: P.kwargs) -> None:
        nonlocal warned
        try:
            callback(*arguments, **keys)
        except (OSError, ValueError) as error:
            if not _of_a_stream(error):
                raise
            if not warned:
                log.warning("reporting failed (%s: %s); training goes on", type(error).__name__, error)
            warned = True

    return call


def _of_a_stream(error: OSError | ValueError) -> bool:
    """Python has no class of its own for a write to a closed file."""
    return isinstance(error, OSError) or "closed file" in str(error)
