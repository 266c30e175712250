"""The server: binds an address, runs the application, and ends on Ctrl-C."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from .app import Application
from .guard import is_loopback
from .limits import Limits
from .served_flow import ServedFlow

DEFAULT = Limits()
BACKLOG = 256
GRACE = 1
"""Seconds for open answers at the end."""


def serve(
    flows: Sequence[ServedFlow],
    *,
    host: str = "127.0.0.1",
    port: int = 8231,
    token: str | None = None,
    limits: Limits = DEFAULT,
    ready: Callable[[str], None] = lambda address: None,
    failed: Callable[[Exception], None] = lambda error: None,
) -> None:
    """Serve flows until Ctrl-C or SIGTERM. Port 0 is any free port.

    `ready` is called with the address, and `failed` with every error that is a bug; the server goes on.
    """
    _check_token(host, token)
    application = Application(flows, limits, host, token, failed)
    with _bound(host, port) as listener:
        listener.listen(BACKLOG)  # whoever reads the address may connect at once
        ready(_address(host, listener.getsockname()[1]))
        try:
            server = uvicorn.Server(_config(application))
            application.should_stop = lambda: bool(server.should_exit)
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again after its own shutdown
            pass
        finally:
            application.worker.close()


@contextmanager
def running(flows: Sequence[ServedFlow], limits: Limits = DEFAULT) -> Iterator[int]:
    """A server in another thread, on any free port of this machine, which the block is given."""
    application = Application(flows, limits, "127.0.0.1")
    with _bound("127.0.0.1", 0) as listener:
        listener.listen(BACKLOG)
        server = uvicorn.Server(_config(application))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def _config(application: Application) -> uvicorn.Config:
    return uvicorn.Config(
        application.web,
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        http="h11",  # it limits the size of headers
        ws="none",
    )


def check_address(host: str, port: int, token: str | None) -> None:
    """Raise a ValueError if `serve` could not listen there."""
    _check_token(host, token)
    _bound(host, port).close()


def _check_token(host: str, token: str | None) -> None:
    if not is_loopback(host) and not token:
        raise ValueError(f"host={host} can be reached from other machines: set a token as well, e.g. token=SECRET")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("token must consist of ASCII characters without blanks")


def _bound(host: str, port: int) -> socket.socket:
    """A socket at this address; a ValueError says why there is none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise ValueError(f"host={host} is not an address of this machine") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use: choose another one, e.g. port={port + 1}") from None
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return listener


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
