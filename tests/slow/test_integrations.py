"""The programs of docs/integrations.md, run as they stand: trackers get every row, trainers learn. No socket is opened.

The packages are installed into an environment that also sees those of this one, so that torch is not installed again.
"""

import json
import os
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
from extra_environment import extra_environment
from pages import ROOT, blocks, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("integrations")]

PAGE = "docs/integrations.md"
PROGRAMS = {
    block.code.partition("\n")[0].removeprefix("# "): block.code
    for block in blocks(read(PAGE))
    if block.language == "python"
}
UNPINNED = ("pillow",)
"""Packages whose pinned version trackio does not accept."""
NO_SOCKETS = """
import pathlib, socket

def refused(self, address):
    if self.family == socket.AF_UNIX:
        return plain(self, address)
    with pathlib.Path({log!r}).open("a") as log:
        log.write(f"{{address}}\\n")
    raise ConnectionRefusedError(f"no network in this test: {{address}}")

plain, socket.socket.connect, socket.socket.connect_ex = socket.socket.connect, refused, refused
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An environment with the extra `integrations`."""
    return extra_environment(tmp_path_factory.mktemp("integrations"), "integrations", UNPINNED)


@pytest.fixture
def run(python, tmp_path):
    """Run a program of the page in an empty folder; the output. Connections are refused, and none may be tried."""
    tried = tmp_path / "tried.txt"
    (tmp_path / "no_sockets").mkdir()
    (tmp_path / "no_sockets" / "sitecustomize.py").write_text(NO_SOCKETS.format(log=str(tried)))
    work = tmp_path / "work"
    work.mkdir()
    (work / "my_book.txt").write_text("".join(f"{n} green bottles hanging on the wall. " for n in range(400)))
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "hub"),
        "HOPFLOW_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tmp_path / "no_sockets"),
    }

    def command(*words: str) -> str:
        done = subprocess.run([python, *words], cwd=work, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not tried.exists(), f"a connection was tried: {tried.read_text()}"
        return done.stdout

    def run(name: str) -> str:
        (work / name).write_text(PROGRAMS[name])
        return command(name)

    run.work, run.command, run.hub = work, command, tmp_path / "hub"
    return run


def canonical(name: str) -> str:
    """The name of a package as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def rows(folder: Path) -> list[dict]:
    """The rows of metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def numbers(folder: Path) -> dict[tuple[int, str], float]:
    """The numbers of a run by step and name."""
    return {
        (row["step"], name): float(value)
        for row in rows(folder)
        for name, value in row.items()
        if isinstance(value, int | float)
    }


def test_torch_and_the_pinned_packages_stay_as_they_are(python):
    folders = (python.parents[1] / "lib").glob("python*/site-packages/*.dist-info")
    installed = {canonical(folder.stem.rpartition("-")[0]) for folder in folders}
    assert installed >= {"wandb", "mlflow-skinny", "trackio", "lightning"}
    assert [name for name in installed if re.match(r"torch(vision|audio)?$|nvidia|cuda|triton|numpy|scipy", name)] == []
    pinned = {canonical(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert installed - {"pip", "setuptools", *UNPINNED} - pinned == set(), "not in constraints.txt"


def test_wandb_gets_every_row(run):
    run("with_wandb.py")
    (file,) = run.work.glob("wandb/offline-run-*/run-*.wandb")
    stored = file.read_bytes()
    names = {name for row in rows(run.work / "runs/wandb") for name in row}
    assert [name for name in names - {"step"} if name.encode() not in stored] == []


def test_mlflow_gets_every_number_with_its_step(run):
    run("with_mlflow.py")
    with sqlite3.connect(run.work / "mlflow.db") as store:
        found = {(step, name): value for step, name, value in store.execute("select step, key, value from metrics")}
        tags = dict(store.execute("select key, value from tags"))
    assert found == numbers(run.work / "runs/mlflow")
    assert tags["precision"] == "float32"


def test_trackio_gets_every_row(run):
    run("with_trackio.py")
    (file,) = run.hub.glob("trackio/hopflow.db")
    with sqlite3.connect(file) as store:
        found = store.execute("select step, metrics from metrics order by step").fetchall()
    assert [{"step": step, **json.loads(values)} for step, values in found] == rows(run.work / "runs/trackio")


@pytest.mark.parametrize(
    ("name", "folder"), [("with_accelerate.py", "accelerated"), ("with_lightning.py", "lightened")]
)
def test_a_trainer_learns_and_its_flow_is_sampled(run, name, folder):
    first, last = re.search(r"nats per token: ([\d.]+), then ([\d.]+)", run(name)).groups()
    assert float(last) < float(first) - 0.3
    assert run.command("-m", "hopflow", "sample", folder, "n=1", "length=32").strip()


def test_every_program_of_the_page_is_tested():
    tested = set(re.findall(r'"(with_\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert tested == set(PROGRAMS)
