import sys
from types import SimpleNamespace

import pytest

import commands
from hopflow import cli


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """One step in this process: what is imported on the way, forked processes need not import again."""
    home = tmp_path_factory.mktemp("warm")
    (home / "fox.txt").write_text(commands.FOX)
    words = ["train", str(home / "fox.txt"), *commands.SMALL, "steps=1", "workers=0", f"out={home / 'run'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPFLOW_CACHE", str(home / "cache"))
        patch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == 0


@pytest.fixture
def fox(warm, tmp_path, monkeypatch):
    """A small text; what is made of it is cached beside it."""
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fox.txt"
    file.write_text(commands.FOX)
    return str(file)


@pytest.fixture
def hopflow(monkeypatch, capsys):
    """Run a command in this process: its exit code and what it said."""

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["hopflow", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        message = err[err.index("hopflow: ") :] if "hopflow: " in err else ""
        return SimpleNamespace(code=end.value.code, out=out, err=err, message=message)

    return command


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    commands.end_all()
