"""Callbacks whose terminal, pipe or server may disappear without ending the run."""

import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("hopflow")

P = ParamSpec("P")


def ignoring_lost_streams(callback: Callable[P, None]) -> Callable[P, None]:
    """The callback, but errors of a closed or broken stream are not raised; the first one is logged.

    The callback is still called each time, since a server may come back. Every other error is raised.
    """
    warned = False

    def call(*arguments: P.args, **keys: P.kwargs) -> None:
        nonlocal warned
        try:
            callback(*arguments, **keys)
        except (OSError, ValueError) as error:
            if not _is_stream_error(error):
                raise
            if not warned:
                log.warning("reporting failed (%s: %s); training continues", type(error).__name__, error)
            warned = True

    return call


def _is_stream_error(error: OSError | ValueError) -> bool:
    """Whether a stream is closed or broken. Python has no exception class for a write to a closed file."""
    return isinstance(error, OSError) or "closed file" in str(error)
