"""Networks on the hub, against a server on loopback that speaks its endpoints."""

import errno
import json
import pickle
import socket
import sys
from dataclasses import replace

import huggingface_hub.constants
import pytest
import torch
import yaml
from hub_server import TOKEN, HubServer, Repository, use

import hopflow as hf
from hopflow import cli
from hopflow.data.tokenizers import Characters
from hopflow.evaluation import record
from hopflow.evaluation.rows import Row
from hopflow.runs.hub import hub_errors
from hopflow.runs.weights import DamagedFile

VOCAB = hf.Vocab(5, masks=1)
NAME = "ada/toy"


def network(seed: int = 0) -> hf.Transformer:
    torch.manual_seed(seed)
    return hf.Transformer(VOCAB, hf.Size(layers=1, width=8, heads=2))


@pytest.fixture
def saved(tmp_path):
    characters = Characters("abcde")
    recipe = {"name": "toy", "length": 8, "steps": 3, "data": "/somewhere/else/toy.txt", "out": "runs/toy"}
    return hf.save_pretrained(
        tmp_path / "saved", network(), hf.Flow(hf.Mask(VOCAB)), tokenizer=characters, recipe=recipe
    )


def files_of(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The server, with a cache and a working directory of its own; huggingface_hub talks to it."""
    with HubServer() as server:
        use(server, monkeypatch, tmp_path)
        monkeypatch.chdir(tmp_path)
        yield server


@pytest.fixture
def published(hub, saved):
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit(files_of(saved))
    return hub


@pytest.fixture
def no_sockets(monkeypatch):
    """Every use of a socket fails from now on."""

    def use() -> None:
        def refuse(*arguments, **options):
            raise AssertionError("a socket was opened")

        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(socket, "create_connection", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)

    return use


def same(one, other) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def run(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["hopflow", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, *capsys.readouterr()


def test_a_pushed_network_is_loaded_again_with_its_flow_and_tokenizer(hub, saved):
    pushed = hf.from_pretrained(saved).push_to_hub(NAME)
    (commit,) = list(hub.repositories[NAME].commits)[1:]
    assert pushed == f"{NAME}@{commit}"
    found = hf.from_pretrained(NAME)
    assert same(found.model, network())
    assert found.flow == hf.Flow(hf.Mask(VOCAB))
    assert found.tokenizer.decode([0, 4]) == "ae"
    assert found.origin == f"hub:{NAME}@{commit}"
    assert commit in str(found)
    assert same(hf.from_pretrained(pushed).model, network())


def test_the_repository_has_one_commit_with_safetensors_json_and_a_card(hub, saved):
    hf.from_pretrained(saved).push_to_hub(NAME, license="mit")
    (files,) = list(hub.repositories[NAME].commits.values())[1:]
    assert set(files) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    assert files["model.safetensors"] == (saved / "model.safetensors").read_bytes()
    card = files["README.md"].decode()
    assert "license: mit" in card
    assert f'hf.from_pretrained("{NAME}")' in card
    assert "/somewhere" not in card
    assert "runs/toy" not in card
    assert "@inproceedings{" in card


def row(quantity: str, value: float, step: int, recipe_hash: str, **more) -> Row:
    facts = {"nats": 1.0, "nats_stderr": 0.1, "steps": 2, "sampler": "η = 0, 2 steps", "length": 8, **more}
    return Row(
        "runs/toy", "held-out", quantity, value, 0.25, 40, "ppl", True, 0.0, "float32", recipe_hash,
        {"checkpoint": step, **facts},
    )  # fmt: skip


@pytest.fixture
def trained(hub, tmp_path):
    """A run of three steps with rows of its checkpoint, of an earlier one and of another recipe."""
    corpus = hf.data.rows(torch.arange(40).remainder(5).view(10, 4).numpy(), vocab=5)
    done = hf.train(network(), hf.Flow(hf.Mask(VOCAB)), corpus, steps=3, batch=2, out=tmp_path / "run", eval_every=0)
    rows = [
        row("bn", 4.5, 3, done.recipe_hash),
        row("b0", 7.5, 1, done.recipe_hash),
        row("b1", 8.5, 3, "another"),
    ]
    content = {"format": record.FORMAT, "version": 1, "rows": [row.as_json() for row in rows]}
    (done.path / "eval.json").write_text(json.dumps(content))
    return done


def test_the_card_of_a_run_has_the_rows_of_its_checkpoint_with_error_n_and_sampler(trained, hub):
    pushed = trained.push_to_hub(NAME)
    files = list(hub.repositories[NAME].commits.values())[-1]
    card = files["README.md"].decode()
    assert "| held-out | bn | 4.5 ± 0.25 | 40 | a bound | η = 0, 2 steps |" in card
    assert "7.5" not in card
    assert "8.5" not in card
    assert "| steps | 3 |" in card
    metadata = yaml.safe_load(card.split("---")[1])
    ((result,),) = (entry["results"] for entry in metadata["model-index"])
    (metric,) = result["metrics"]
    assert (metric["value"], metric["args"]["stderr"], metric["args"]["n"]) == (4.5, 0.25, 40)
    assert metadata["library_name"] == "hopflow"
    (stored,) = json.loads(files["eval.json"])["rows"]
    assert (stored["quantity"], stored["run"]) == ("bn", NAME)
    assert same(hf.from_pretrained(pushed).model, hf.from_pretrained(trained.path).model)


def test_networks_of_the_hub_are_compared_by_their_eval_json(trained, hub, monkeypatch, capsys):
    trained.push_to_hub(NAME)
    trained.push_to_hub("bob/copy")
    code, out, err = run(monkeypatch, capsys, "compare", f"hub:{NAME}", "hub:bob/copy")
    assert code == 0, err
    assert "4.5" in out
    code, out, err = run(monkeypatch, capsys, "compare", f"hub:{NAME}", str(trained.path), "--offline")
    assert code == 0, err


def test_a_saved_network_in_a_folder_called_checkpoints_is_no_checkpoint(hub, saved, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    folder = saved.rename(tmp_path / "checkpoints" / "best")
    pushed = hf.from_pretrained(folder).push_to_hub(NAME)
    assert same(hf.from_pretrained(pushed).model, network())


def test_rows_of_evaluate_can_be_passed(hub, saved):
    hf.from_pretrained(saved).push_to_hub(NAME, evaluation=[row("bk", 3.5, 3, "x", exact=True)])
    card = list(hub.repositories[NAME].commits.values())[-1]["README.md"].decode()
    assert "| held-out | bk | 3.5 ± 0.25 | 40 | exact |" in card


def test_text_of_a_file_cannot_add_markup_to_the_card(hub, saved):
    rows = [replace(row("bn", 2.0, 3, "x"), set="a|b\n<script>[x](y)\n---\nlicense: none")]
    hf.from_pretrained(saved).push_to_hub(NAME, evaluation=rows)
    card = list(hub.repositories[NAME].commits.values())[-1]["README.md"].decode()
    body = card.split("\n---\n", 1)[1]
    assert "<script>" not in body
    assert "\\|b" in body
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---")).get("license") is None


def test_a_second_push_replaces_the_weights_and_deletes_the_earlier_parts(hub, tmp_path):
    folder = hf.save_pretrained(tmp_path / "parts", network(1), largest_file=140_000)
    parts = {file.name for file in folder.glob("*.safetensors")}
    assert len(parts) > 1
    hf.from_pretrained(folder).push_to_hub(NAME)
    hf.from_pretrained(hf.save_pretrained(tmp_path / "one", network(2))).push_to_hub(NAME)
    assert parts.isdisjoint(list(hub.repositories[NAME].commits.values())[-1])
    assert same(hf.from_pretrained(f"{NAME}@main").model, network(2))


def test_the_commit_of_the_first_use_stays_until_a_revision_is_named(published, tmp_path):
    first = hf.from_pretrained(NAME).origin
    other = hf.save_pretrained(tmp_path / "other", network(1), hf.Flow(hf.Mask(VOCAB)))
    published.repositories[NAME].commit(files_of(other))
    assert hf.from_pretrained(NAME).origin == first
    newest = hf.from_pretrained(f"{NAME}@main")
    assert newest.origin != first
    assert same(newest.model, network(1))
    assert hf.from_pretrained(NAME).origin == newest.origin
    assert hf.from_pretrained(first).origin == first


@pytest.mark.parametrize("name", [NAME, f"{NAME}@main"])
def test_offline_a_network_comes_from_the_cache_without_a_socket(published, no_sockets, name):
    first = hf.from_pretrained(name).origin
    no_sockets()
    assert hf.from_pretrained(name, offline=True).origin == first


def test_the_variable_of_huggingface_hub_means_offline(published, no_sockets, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    no_sockets()
    with pytest.raises(OSError, match="not in the hub's cache"):
        hf.from_pretrained(NAME)
    assert published.requests == []


def test_a_second_use_of_a_pinned_commit_needs_no_connection(published, no_sockets):
    hf.from_pretrained(NAME)
    no_sockets()
    hf.from_pretrained(NAME)


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [("optimizer.pt", pickle.dumps({}), "pickles"), ("sub/model.pkl", b"", "pickles"), ("modeling.py", b"", "code")],
)
def test_a_repository_with_a_pickle_or_code_is_refused_before_any_file_is_downloaded(
    published, tmp_path, file, content, kind
):
    (files,) = published.repositories[NAME].commits.values()
    published.repositories[NAME].commit({**files, file: content})
    with pytest.raises(ValueError, match=rf"contains {kind}: {file}.*safetensors and JSON only"):
        hf.from_pretrained(NAME)
    assert not any("resolve" in request for request in published.requests)
    assert not (tmp_path / "hub").exists()
    assert not (tmp_path / "cache" / "revisions").exists()


def test_other_files_of_a_repository_are_not_downloaded(published, tmp_path):
    (files,) = published.repositories[NAME].commits.values()
    published.repositories[NAME].commit({**files, "README.md": b"x", "other.safetensors": b"x", "notes.txt": b"x"})
    folder = hf.from_pretrained(NAME).folder
    assert {file.name for file in folder.iterdir()} == {"config.json", "model.safetensors"}


def test_a_folder_comes_first_and_a_path_is_never_a_name_of_the_hub(published, saved, tmp_path):
    saved.rename(tmp_path / "toy")
    (tmp_path / "ada").mkdir()
    (tmp_path / "toy").rename(tmp_path / "ada" / "toy")
    assert hf.from_pretrained(NAME).origin is None
    assert hf.from_pretrained(f"hub:{NAME}").origin is not None
    with pytest.raises(FileNotFoundError):
        hf.from_pretrained("ada/missing")  # there is a folder `ada`
    with pytest.raises(FileNotFoundError):
        hf.from_pretrained(tmp_path.__class__("bob/toy"))
    assert not any("bob" in request or "missing" in request for request in published.requests)


def test_a_missing_repository_a_private_one_and_a_missing_revision_are_named(published, monkeypatch):
    with pytest.raises(ValueError, match="there is no network hub:ada/none on the hub"):
        hf.from_pretrained("ada/none")
    with pytest.raises(ValueError, match="hub:ada/toy has no revision v9"):
        hf.from_pretrained(f"{NAME}@v9")
    published.repositories[NAME].private = True
    assert hf.from_pretrained(NAME).origin
    monkeypatch.setenv("HF_TOKEN", "hf_" + "b" * 34)
    with pytest.raises(ValueError, match=r"there is no network hub:ada/toy@main on the hub: .*hf auth login"):
        hf.from_pretrained(f"{NAME}@main")


def test_a_gated_repository_is_named(published):
    published.repositories[NAME].gated = True
    with pytest.raises(ValueError, match="gated: accept its conditions"):
        hf.from_pretrained(NAME)


@pytest.mark.parametrize("status", [429, 500])
def test_a_failing_hub_is_a_problem_of_the_environment(published, status):
    published.answers["/api/models"] = status
    with pytest.raises(OSError, match=f"the hub answered {status}"):
        hf.from_pretrained(NAME)


def test_a_changed_byte_is_found_and_the_file_downloaded_again(published, tmp_path):
    published.changed = "model.safetensors"
    with pytest.raises(DamagedFile, match="sha256"):
        hf.from_pretrained(NAME)
    assert not list((tmp_path / "hub").rglob("model.safetensors"))
    assert not (tmp_path / "cache" / "revisions").exists()
    published.changed = None
    assert same(hf.from_pretrained(NAME).model, network())


def test_weights_of_another_save_are_refused_before_the_download(published, tmp_path):
    (files,) = published.repositories[NAME].commits.values()
    other = hf.save_pretrained(tmp_path / "other", network(1))
    published.repositories[NAME].commit({**files, "model.safetensors": (other / "model.safetensors").read_bytes()})
    with pytest.raises(DamagedFile, match="belongs to another save"):
        hf.from_pretrained(NAME)
    assert not any(request.endswith("model.safetensors") for request in published.requests)


def test_a_config_that_was_edited_is_refused_and_not_kept(published, tmp_path):
    (files,) = published.repositories[NAME].commits.values()
    config = {**json.loads(files["config.json"]), "recipe": {"length": 4}}
    published.repositories[NAME].commit({**files, "config.json": json.dumps(config).encode()})
    with pytest.raises(DamagedFile, match="was edited"):
        hf.from_pretrained(NAME)
    assert not list((tmp_path / "hub").rglob("config.json"))


def test_a_file_in_the_cache_that_changes_after_its_first_use_is_found(published):
    folder = hf.from_pretrained(NAME).folder
    weights = (folder / "model.safetensors").resolve()
    weights.write_bytes(weights.read_bytes()[:-1] + b"\xff")
    with pytest.raises(OSError, match="is not the file that was first used"):
        hf.from_pretrained(NAME)


def test_a_repository_without_a_config_is_no_network(published):
    published.repositories[NAME].commit({"README.md": b"hello"})
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        hf.from_pretrained(NAME)


def test_nothing_is_pushed_into_a_repository_with_code(hub, saved):
    hub.repositories[NAME] = Repository()
    before = hub.repositories[NAME].commit({"train.py": b""})
    with pytest.raises(ValueError, match=r"contains code: train\.py"):
        hf.from_pretrained(saved).push_to_hub(NAME)
    assert list(hub.repositories[NAME].commits) == [before]


@pytest.mark.parametrize("name", ["toy", "ada/toy/more", "ada/toy@main", "", "../toy", "a--b/c"])
def test_a_name_that_the_hub_would_refuse_is_refused_first(hub, saved, name):
    with pytest.raises(ValueError, match="name must be user/name"):
        hf.from_pretrained(saved).push_to_hub(name)
    assert hub.requests == []


def test_a_push_without_a_valid_token_says_so_and_shows_no_token(hub, saved, monkeypatch):
    wrong = "hf_" + "b" * 34
    monkeypatch.setenv("HF_TOKEN", wrong)
    with pytest.raises(ValueError, match="hf auth login") as error:
        hf.from_pretrained(saved).push_to_hub(NAME)
    assert wrong not in str(error.value)
    assert hub.repositories == {}
    assert wrong in hub.tokens


@pytest.mark.parametrize(
    "text",
    ["Illegal header value b'Bearer hf_secret\\x01'", "Bearer secret", "url: /a/b?X-Amz-Signature=secret (timed out)"],
)
def test_a_message_of_the_transport_shows_no_token_and_no_signature(text):
    with pytest.raises(OSError, match="could not be transferred: ") as error, hub_errors(NAME):
        raise RuntimeError(text)
    assert "secret" not in str(error.value)


def test_an_error_of_the_disk_is_not_taken_for_one_of_the_transport():
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space left") as error, hub_errors(NAME):
        raise full
    assert error.value is full


def test_commands_take_a_network_of_the_hub_and_show_its_commit(published, monkeypatch, capsys):
    (commit,) = published.repositories[NAME].commits
    code, out, err = run(monkeypatch, capsys, "sample", f"hub:{NAME}", "n=2", "steps=2", "length=4", "threads=1")
    assert code == 0, err
    assert f"network: hub:{NAME}@{commit}" in err
    local = run(monkeypatch, capsys, "sample", "saved", "n=2", "steps=2", "length=4", "threads=1")
    assert local[1] == out
    code, _, err = run(monkeypatch, capsys, "infill", f"hub:{NAME}", "ab[MASK:2]", "n=1", "--offline", "threads=1")
    assert code == 0, err
    assert TOKEN not in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sample", "hub:ada/none"], 2, "there is no network hub:ada/none"),
        (["sample", "hub:ada"], 2, "type hub:user/name"),
        (["sample", "hub:ada/toy@../../x"], 2, "type hub:user/name"),
        (["sample", "hub:ada/toy@/etc/passwd"], 2, "type hub:user/name"),
        (["sample", "hub:ada/toy", "--offline"], 3, "not in the hub's cache"),
        (["eval", "hub:ada/none"], 2, "there is no network"),
        (["compare", "hub:ada/none", "hub:ada/toy"], 2, "there is no network"),
        (["sample", "ada/toy"], 2, "there is no folder ada/toy; a network of the hub is typed hub:ada/toy"),
    ],
)
def test_a_mistake_gives_one_message_and_an_exit_code(published, tmp_path, monkeypatch, capsys, words, code, said):
    found, _, err = run(monkeypatch, capsys, *words)
    assert (found, said in err) == (code, True), err
    assert "Traceback" not in err
    assert not (tmp_path / "hub").exists()


def test_pairs_of_a_network_of_the_hub_need_a_folder(published, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "rectify", f"hub:{NAME}", "n=2", "steps=2")
    assert (code, "set out=FOLDER" in err) == (2, True), err


def test_without_a_network_the_message_says_so(published, saved, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    code, _, err = run(monkeypatch, capsys, "sample", f"hub:{NAME}")
    assert code == 3
    assert "could not be transferred" in err
