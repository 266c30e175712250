import pytest

from commands import FOX


@pytest.fixture
def fox(tmp_path, monkeypatch):
    """A small text; what is made of it is cached beside it."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fox.txt"
    file.write_text(FOX)
    return str(file)
