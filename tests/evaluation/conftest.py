"""Every test has a cache of its own and no network."""

import socket
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HOPFLOW_CACHE", str(folder))
    return folder


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
