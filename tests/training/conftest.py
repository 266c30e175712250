import pytest

import commands


@pytest.fixture
def fox(tmp_path, monkeypatch):
    """A small text; what is made of it is cached beside it."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fox.txt"
    file.write_text(commands.FOX)
    return str(file)


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    commands.end_all()
