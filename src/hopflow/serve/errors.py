"""RequestError: what is wrong with a request, as a status and one line."""

from typing import Any

from ..system.safe_text import harmless

LONGEST = 300
"""Characters of a message: it may quote the request."""
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class RequestError(Exception):
    """An answer with an error status; `param` names the field of the request that is wrong."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
        self.param = None if param is None else one_line(param)  # it may be a name from the request

    @property
    def message(self) -> str:
        """The message as one line without control characters."""
        return one_line(str(self))

    def as_json(self) -> dict[str, Any]:
        """The body of the answer, in the shape of OpenAI's API."""
        kind = KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": None}}


def problem(item: Exception | None) -> RequestError:
    """Why a job has ended without sequences; None after a cancellation."""
    if isinstance(item, RequestError):
        return item
    if isinstance(item, ValueError):
        return RequestError(str(item))
    if item is None:
        return RequestError(
            "the server stopped this request: it is shutting down, or the answer was not read.", status=503
        )
    return RequestError(f"the network failed: {type(item).__name__}: {item}", status=500)


def one_line(text: str) -> str:
    """Some text as one line of limited length, with symbols for control characters."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
