"""Guard: checks every request before any endpoint sees it, and adds the security headers to every answer."""

import hmac
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect

from .errors import RequestError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
WITH_TOKEN = ("/api/", "/v1/")
"""Paths that need the token, if the server has one; the page itself and /health do not."""


class Guard:
    """Refuses requests from other sites: the names Host and Origin, and the token.

    A page of another site can make a browser send requests to this address. Its name in Host (after DNS rebinding) or
    Origin gives it away. Numeric addresses cannot be rebound, and are allowed if the server listens on a network.
    """

    def __init__(
        self,
        app: App,
        host: str,
        token: str | None = None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.app, self.host, self.token, self.failed = app, host.lower(), token, failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        try:
            self.check(scope)
        except RequestError as error:
            await _refuse(error, send)
            return
        try:
            await self.app(scope, receive, _with_headers(send))
        except Exception as error:  # Starlette raises an error again after its answer
            if not isinstance(error, ClientDisconnect):
                self.failed(error)

    def check(self, scope: Scope) -> None:
        """Raise RequestError if a request may not pass."""
        hosts, origins = _values(scope, b"host"), _values(scope, b"origin")
        if len(hosts) != 1 or not self._is_own(_name(hosts[0])):
            raise RequestError("the header Host must be the address of this server.", status=403)
        if origins and [_without_scheme(origin) for origin in origins] != [hosts[0].lower()]:
            raise RequestError("requests from pages of other sites are refused.", status=403)
        if self.token is not None and scope["path"].startswith(WITH_TOKEN):
            given = _values(scope, b"authorization")
            expected = f"Bearer {self.token}".encode()
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), expected):
                raise RequestError("this server needs its token, as Authorization: Bearer TOKEN.", status=401)

    def _is_own(self, name: str) -> bool:
        if name in LOOPBACK or name == self.host:
            return True
        return self.host not in LOOPBACK and _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host.lower() in LOOPBACK or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """The name in a Host header, without the port; empty if it is malformed."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


def _without_scheme(origin: str) -> str:
    return origin.lower().removeprefix("https://").removeprefix("http://")


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def _with_headers(send: Send) -> Send:
    fixed = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *fixed]
        await send(message)

    return with_headers


async def _refuse(error: RequestError, send: Send) -> None:
    body = json.dumps(error.as_json()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    send = _with_headers(send)
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
