"""`hopflow serve`: what it serves, what it refuses, how it ends, and that copied commands draw the same tokens."""

import json
import re
import shlex
import shutil
import signal
import socket
from importlib import import_module
from pathlib import Path

import pytest
import torch
from commands import Command, children, snapshot, until
from saved_networks import LETTERS, SMALL, refused, rows, save_networks, shaken

import hopflow as hf

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from live_server import ask, events, running

from hopflow.cli import trained_network
from hopflow.data.tokenizers import Characters

serve_command = import_module("hopflow.cli.serve")  # `hopflow.cli.serve` is the command itself


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    save_networks(folder / "runs")
    return folder


@pytest.fixture(autouse=True)
def in_the_folder_of_networks(home, monkeypatch):
    monkeypatch.chdir(home)


@pytest.fixture
def clone(monkeypatch):
    """A folder in place of the clone that the package is in."""
    from hopflow.runs import named_networks

    monkeypatch.setattr(named_networks, "_CLONE", Path("nowhere"))


def test_without_a_run_serve_takes_novels_or_else_the_demos_run(tmp_path, monkeypatch, clone):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"there is nothing to serve: .*\n.*hopflow demo"):
        serve_command._default_run()
    (tmp_path / "demo/ot").mkdir(parents=True)
    assert serve_command._default_run() == "demo/ot"
    (tmp_path / "pretrained/novels").mkdir(parents=True)
    (tmp_path / "pretrained/novels/config.json").touch()
    assert serve_command._default_run() == "novels"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/masks", "host=0.0.0.0"], "host=0.0.0.0 can be reached from other machines: set a token as well"),
        (["runs/masks", "host=::"], "host=:: can be reached from other machines: set a token as well"),
        (["runs/masks", "token=a b"], "token must consist of ASCII characters without blanks"),
        (["runs/masks", "host=no.such.host.invalid", "token=a"], "is not an address of this machine"),
        (["runs/masks", "runs/letters", "runs/masks"], "one or two runs, got 3"),
        (["runs/mask"], "did you mean 'runs/masks'?"),
        (["runs/causal", "port=0"], "is an autoregressive network, which has no flow"),
        (["runs/masks", "prot=1"], "did you mean 'port'?"),
        (["runs/masks", "port=70000"], "port"),
        (["runs/masks", "queue=0"], "queue"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_served(hopflow, words, message):
    refused(hopflow("serve", *words), message)


def test_a_used_port_is_named(hopflow):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused(hopflow("serve", "runs/masks", f"port={port}"), f"port {port} is in use: choose another one")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_server_during_a_draw_and_leaves_nothing_behind(home, tmp_path, number):
    before = snapshot(home)
    server = Command("serve", "runs/masks", "port=0", "device=cpu", "threads=1", log=tmp_path / "log")
    until(lambda: "Ctrl-C" in server.said, "the address")
    port = int(re.findall(r"http://127.0.0.1:(\d+)/", server.said)[0])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        body = json.dumps({"flow": "masks", "length": 1000, "steps": 1024}).encode()
        head = "POST /api/draw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert children(server.pid) == set()
        server.hit(number)
        # uvicorn ends the server, and then the process by the same signal
        assert server.wait() == (0 if number == signal.SIGINT else -number)
    assert ("the server has ended" in server.said) == (number == signal.SIGINT)
    assert "Traceback" not in server.said
    socket.create_server(("127.0.0.1", port)).close()  # the port is free
    assert snapshot(home) == before


DRAWS = {
    "a text": {"length": 9, "steps": 5},
    "options": {"length": 7, "steps": 4, "eta": 0.5, "temperature": 0.25, "top_p": 0.9},
    "random order": {"length": 7, "sampler": "random_order"},
    "holes": {"prompt": [{"text": "a"}, None, None, {"text": "b c"}, None]},
    "a line break": {"prompt": [{"text": "a\nb"}, None, {"text": " \n"}, None], "eta": 1.0},
    "the end of a text": {"prompt": [{"text": "ab"}, None, {"id": LETTERS.end}, None]},
    "longer than in training": {"prompt": [{"text": "abcd" * 4}, None, None], "steps": 4},
}


@pytest.mark.parametrize("name", DRAWS)
def test_copied_commands_and_programs_draw_the_same_tokens(home, tmp_path, hopflow, name):
    network = trained_network.load("runs/masks", "cpu")
    flows = serve_command.served_flows(["runs/masks"], [network], {"device": "cpu", "threads": 1})
    with running(flows) as site:
        answer = ask(site.port, "/api/draw", {"flow": "masks", "seed": 11, **DRAWS[name]})
    (_, start), *_, (_, end) = events(answer.text)
    expected = [token for token, _ in end["tokens"]]
    program: dict[str, hf.Generation] = {}
    exec(start["python"], program)
    assert program["out"].tokens[0].tolist() == expected
    if start["command"].startswith("#"):
        assert name == "the end of a text"
        return
    command, *words = shlex.split(start["command"])
    assert (command, hopflow(*words, "--out", tmp_path / "a.jsonl").code) == ("hopflow", 0)
    assert [row["tokens"] for row in rows(tmp_path / "a.jsonl")] == [expected]


@pytest.mark.parametrize(("text", "has_command"), [("-a", True), ("--n 1", True), ("n=1 ", False), ("a=1", False)])
def test_a_copied_prompt_is_not_read_as_an_option_or_a_setting(tmp_path, monkeypatch, hopflow, text, has_command):
    monkeypatch.chdir(tmp_path)
    letters = Characters(" -1=an", ends=True)
    flow = hf.Flow(hf.Uniform(hf.Vocab(letters.size)))
    hf.save_pretrained("net", shaken(hf.Transformer(flow.vocab, SMALL)), flow, tokenizer=letters, recipe={"length": 12})
    flows = serve_command.served_flows(["net"], [trained_network.load("net", "cpu")])
    with running(flows) as site:
        answer = ask(site.port, "/api/draw", {"flow": "net", "steps": 3, "prompt": [{"text": text}, None, None]})
    (_, start), *_, (_, end) = events(answer.text)
    assert start["command"].startswith("#") != has_command
    if has_command:
        _, name, *words = shlex.split(start["command"])
        assert hopflow(name, "--out", tmp_path / "a.jsonl", *words).code == 0
        assert [row["tokens"] for row in rows(tmp_path / "a.jsonl")] == [[token for token, _ in end["tokens"]]]


def test_a_program_finds_the_network_of_the_repository(home, tmp_path, monkeypatch, clone):
    shutil.copytree(home / "runs/masks", tmp_path / "pretrained/novels")
    monkeypatch.chdir(tmp_path)
    flows = serve_command.served_flows(["novels"], [trained_network.load("novels", "cpu")])
    with running(flows) as site:
        answer = ask(site.port, "/api/draw", {"flow": "novels", "length": 3, "steps": 2})
    (_, start), *_, (_, end) = events(answer.text)
    assert start["command"] == "hopflow sample novels n=1 length=3 steps=2 seed=0"
    program: dict[str, hf.Generation] = {}
    exec(start["python"], program)
    assert program["out"].tokens[0].tolist() == [token for token, _ in end["tokens"]]


def test_a_program_names_the_device_and_the_class_of_the_network():
    network = trained_network.load("runs/masks", "cpu")
    flows = serve_command.served_flows(["runs/masks"], [network], {"model": "nets.small:Net"})
    with running(flows) as site:
        answer = ask(site.port, "/api/draw", {"flow": "masks", "length": 3})
    _, start = events(answer.text)[0]
    assert "from nets.small import Net\n" in start["python"]
    assert "hf.from_pretrained('runs/masks', model_class=Net)" in start["python"]
    assert start["command"].endswith(" model=nets.small:Net")


@pytest.mark.parametrize("label", ["b", "-1"])
def test_a_network_with_labels_draws_those_of_one_label(tmp_path, monkeypatch, hopflow, label):
    monkeypatch.chdir(tmp_path)
    flow = hf.Flow(hf.Uniform(hf.Vocab(LETTERS.size)))
    torch.manual_seed(0)
    network = hf.Transformer(flow.vocab, SMALL, labels=2)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    torch.nn.init.normal_(network.label_embedding.embedding.weight)
    recipe = {"length": 12}
    hf.save_pretrained("labelled", network, flow, tokenizer=LETTERS, recipe=recipe, label_names=("a", "b"))
    loaded = trained_network.load("labelled", "cpu")
    with pytest.raises(ValueError, match=r"labelled has labels \(a, b\): set label=LABEL"):
        serve_command.served_flows(["labelled"], [loaded])
    drawn = []
    for own in (label, "a"):
        with running(serve_command.served_flows(["labelled"], [loaded], {"label": own})) as site:
            answer = ask(site.port, "/api/draw", {"flow": "labelled", "seed": 3})
        (_, start), *_, (_, end) = events(answer.text)
        drawn.append([token for token, _ in end["tokens"]])
        program: dict[str, hf.Generation] = {}
        exec(start["python"], program)
        assert program["out"].tokens[0].tolist() == drawn[-1]
        _, *words = shlex.split(start["command"])
        assert hopflow(*words, "--out", f"{own}.jsonl").code == 0
        assert [row["tokens"] for row in rows(Path(f"{own}.jsonl"))] == drawn[-1:]
    assert drawn[0] != drawn[1]
