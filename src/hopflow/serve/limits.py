"""Limits: what one request may ask for, and how many may wait."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Upper limits of the server; a request beyond them gets an error."""

    steps: int = 1024
    length: int = 1024
    """Tokens per sequence."""
    n: int = 16
    """Sequences per request."""
    queue: int = 64
    """Requests that are worked on at the same time; one more gets status 429."""
    body: int = 1 << 16
    """Bytes of a request's body."""
