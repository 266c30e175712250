"""A name on the hub stands for the commit of its first use, and its files for what they were then."""

import json
import sys
from types import SimpleNamespace

import pytest

import hopflow as hf
from hopflow.data.revisions import PinnedRevision, split
from hopflow.system.progress import Progress

OLD, NEW = "a" * 40, "b" * 40


def pin(name, cache):
    return PinnedRevision("model", name, cache)


def test_a_revision_is_written_behind_an_at_sign():
    assert split("org/name") == ("org/name", None)
    assert split("org/name@v1.2") == ("org/name", "v1.2")


def test_the_revision_of_the_first_use_is_kept_until_another_one_is_named(cache):
    assert pin("org/name", cache).wanted is None
    pin("org/name", cache).record(OLD, (), Progress(None))
    assert pin("org/name", cache).wanted == OLD
    assert pin("org/other", cache).wanted is None
    assert PinnedRevision("dataset", "org/name", cache).wanted is None
    assert pin("org/name@main", cache).wanted == "main"
    pin("org/name@main", cache).record(NEW, (), Progress(None))
    assert pin("org/name", cache).wanted == NEW


def test_files_that_changed_under_the_same_commit_are_refused(cache, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    pin("org/name", cache).record(OLD, [file], Progress(None))
    pin("org/name", cache).record(OLD, [file], Progress(None))
    file.write_bytes(b"WEIGHTS")
    with pytest.raises(OSError, match=r"model\.safetensors of org/name is not the file that was first used"):
        pin("org/name", cache).record(OLD, [file], Progress(None))
    pin("org/name", cache).record(NEW, [file], Progress(None))  # another commit may have other files


@pytest.mark.parametrize("content", ["", "[]", '{"revision": 3}', '{"revision": "../../etc"}'])
def test_a_damaged_record_of_a_revision_is_ignored(cache, content):
    pin("org/name", cache).record(OLD, (), Progress(None))
    (file,) = (cache / "revisions").iterdir()
    file.write_text(content)
    assert pin("org/name", cache).wanted is None


class Rows(list):
    column_names = ("text",)
    _fingerprint = "f"


@pytest.fixture
def hub(monkeypatch):
    """Stands in for datasets and the hub, whose newest commit is `newest`; what was asked of them."""
    hub = SimpleNamespace(newest=OLD, resolved=[], loaded=[], rows=Rows({"text": f"a tale {i}"} for i in range(50)))

    class Api:
        def dataset_info(self, name, revision=None):
            hub.resolved.append((name, revision))
            return SimpleNamespace(sha=hub.newest)

    def load_dataset(path, config, download_config, revision):
        hub.loaded.append((path, config, revision))
        return {"train": hub.rows}

    module = SimpleNamespace(load_dataset=load_dataset, DownloadConfig=SimpleNamespace, __version__="0")
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    return hub


def test_a_dataset_stays_at_the_commit_of_its_first_use(hub):
    hf.data.load("hf:org/tales", length=8)
    hub.newest = NEW
    hf.data.load("hf:org/tales", length=8)
    hf.data.load("hf:org/tales:config", length=8, offline=True)
    assert hub.loaded == [("org/tales", None, OLD), ("org/tales", None, OLD), ("org/tales", "config", OLD)]
    assert hub.resolved == [("org/tales", None)]
    hf.data.load("hf:org/tales@main", length=8)
    hf.data.load("hf:org/tales", length=8)
    assert [revision for _, _, revision in hub.loaded[3:]] == [NEW, NEW]


def test_a_hub_that_cannot_be_reached_is_one_message(hub, monkeypatch):
    def unreachable(*_, **__):
        raise RuntimeError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    with pytest.raises(OSError, match="hf:org/tales cannot be loaded: no route"):
        hf.data.load("hf:org/tales", length=8)


def test_a_dataset_that_was_cut_in_the_cache_is_written_out_again(hub, cache):
    before = hf.data.load("hf:org/tales", length=8).identity
    (file,) = (cache / "hugging-face").glob("*.jsonl")
    content = file.read_bytes()
    assert [json.loads(line)["text"] for line in content.splitlines()] == [row["text"] for row in hub.rows]
    file.write_bytes(content[: len(content) // 2])
    assert hf.data.load("hf:org/tales", length=8).identity == before
    assert file.read_bytes() == content
