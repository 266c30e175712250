"""Hostile tokenizer files: each gives a tokenizer that works, or one message; none ends the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile_tokenizers
import pytest
from hostile_tokenizers import KINDS, bpe, split, word_level

from hopflow.data import Tokenizer, tokenizer_check
from hopflow.data.build_tokenizer import from_files


@pytest.fixture(autouse=True)
def nothing_was_tried_before(monkeypatch):
    monkeypatch.setattr(tokenizer_check, "_survived", set())


def campaign(folder: Path, every: str) -> list[dict[str, object]]:
    """Name, outcome and seconds of every file."""
    ended = subprocess.run(
        [sys.executable, hostile_tokenizers.__file__, str(folder), every],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, f"{lines[-1]} ended the process: {ended.stderr[-500:]}"
    assert ended.stderr == "", "a panic of the library was printed"
    return [tried | found for tried, found in zip(lines[::2], lines[1::2], strict=True)]


def check(found: list[dict[str, object]]) -> None:
    for row in found:
        lines = str(row["outcome"]).splitlines()
        assert 1 <= len(lines) <= 4, row
        assert all(len(line) < 400 for line in lines), row
    works = [row["tried"] for row in found if row["outcome"] == "works"]
    assert len(works) > len(found) // 4  # it does not refuse everything
    for name in ("a pattern with a huge count", "byte level without bytes", "BPE: dropout"):
        assert any(name in work for work in works), name
    for name in ("sixty times", "nested quantifiers", "strips 1,000", "FixedLength of 0", "nested 100 deep"):
        assert not any(name in work for work in works), name


def test_a_hostile_file_gives_a_tokenizer_or_one_message(tmp_path):
    found = campaign(tmp_path, "some")
    assert len(found) >= 95
    check(found)


@pytest.mark.torture
def test_every_change_of_every_kind_gives_a_tokenizer_or_one_message(tmp_path, tries):
    found = campaign(tmp_path, "every")
    assert len(found) >= 160
    check(found)
    tries["files"] += len(found)


def written(folder: Path, parts: dict) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("kind", KINDS)
def test_a_valid_file_of_each_kind_works(tmp_path, kind):
    tokenizer = from_files(written(tmp_path, KINDS[kind]()), kind)
    assert tokenizer.encode("to be")
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer


def test_words_without_an_unknown_token_are_refused_only_where_they_occur(tmp_path):
    parts = word_level()
    del parts["model"]["vocab"]["[UNK]"]
    tokenizer = from_files(written(tmp_path, parts), "words.json")
    assert tokenizer.decode(tokenizer.encode("to be or not")) == "to be or not"
    with pytest.raises(ValueError, match=r"words\.json cannot encode this text: .*UNK.*\n.*unk_token"):
        tokenizer.encode("to be or noet")


def test_a_tokenizer_that_hangs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_check, "PATIENCE", 0.001)
    with pytest.raises(ValueError, match="took more than"):
        from_files(written(tmp_path, word_level()), "slow.json")


def test_a_tokenizer_that_ends_its_process_is_refused(tmp_path, monkeypatch):
    trial = tmp_path / "trial.py"
    trial.write_text("import os; os.abort()")
    monkeypatch.setattr(tokenizer_check, "TRIAL", trial)
    with pytest.raises(ValueError, match=r"bad\.json cannot be used: .*SIGABRT"):
        from_files(written(tmp_path, word_level()), "bad.json")


def test_trying_out_a_tokenizer_runs_no_file_of_the_working_directory(tmp_path, monkeypatch):
    for name in ("tokenizers", "resource", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    tokenizer_check.try_out(json.dumps(word_level()), "words")
    assert not (tmp_path / "canary").exists()


def test_a_tokenizer_is_tried_out_once_and_byte_level_bpe_never(tmp_path, monkeypatch):
    trials = []
    real = tokenizer_check.PythonProcess
    monkeypatch.setattr(
        tokenizer_check, "PythonProcess", lambda *args, **more: trials.append(args) or real(*args, **more)
    )
    for _ in range(2):
        tokenizer = from_files(written(tmp_path, word_level()), "words.json")
        tokenizer.with_end().encode("to be")
    assert len(trials) == 1
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    from_files(written(tmp_path, bpe() | {"pre_tokenizer": level, "decoder": level}), "bpe.json").encode("to be")
    assert len(trials) == 1


def test_a_stored_tokenizer_is_checked_too():
    parts = bpe()
    split(r"(a|a)*b")(parts)
    stored = {"format": 1, "kind": "subwords", "name": "stored", "end": None, "tokenizer": parts}
    with pytest.raises(ValueError, match=r"stored cannot be used: .*retry-limit"):
        Tokenizer.from_json(stored)


def test_bpe_dropout_in_a_tokenizer_file_is_ignored(tmp_path):
    parts = bpe()
    parts["model"]["dropout"] = 0.9
    tokenizer = from_files(written(tmp_path, parts), "dropout.json")
    assert {tuple(tokenizer.encode("the")) for _ in range(20)} == {(parts["model"]["vocab"]["the"],)}
