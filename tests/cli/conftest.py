"""No test of the command line uses the network or a folder of further corpora."""

import socket
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def saved_networks(tmp_path_factory) -> Path:
    """A folder of saved networks that were never trained."""
    from saved_networks import save_networks

    home = tmp_path_factory.mktemp("networks")
    save_networks(home)
    return home


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv("HOPFLOW_DATA", raising=False)


@pytest.fixture(autouse=True)
def connections(monkeypatch):
    """Refuses and records connections to other machines; there must be none."""
    made = []

    def refuse_host(*address, **_):
        made.append(address)
        raise OSError("no network in tests")

    def refuse(self, address, *_):
        if self.family != getattr(socket, "AF_UNIX", None):
            made.append(address)
            raise OSError("no network in tests")
        return connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse_host)
    yield made
    assert made == []
