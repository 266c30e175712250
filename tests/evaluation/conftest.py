"""No test of an evaluation uses the network."""

import socket

import pytest


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    """What has asked for the network; nothing may."""
    made = []

    def note(*what, **_):
        made.append(what)
        raise OSError("no network here")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, note)
    monkeypatch.setattr(socket, "getaddrinfo", note)
    yield made
    assert made == []
