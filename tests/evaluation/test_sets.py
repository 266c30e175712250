"""Test sets: found by name or file, in the run's own tokens, and every way in which they cannot be had."""

import json

import pytest
import torch

import hopflow as hf
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.evaluation import sets
from hopflow.evaluation.evaluated_model import EvaluatedModel

WIKI = " = A <unk> = \n \n The guest @-@ starring role , in 2 @,@ 000 , was ( never ) hers . \n" * 6


def evaluated(tokenizer=None, **facts) -> EvaluatedModel:
    torch.manual_seed(0)
    tokenizer = tokenizer or Bytes(True)
    model = hf.Causal(tokenizer.size, hf.Size(layers=1, width=8, heads=1))
    return EvaluatedModel(model, None, "runs/a", tokenizer, {"length": 16, **facts})


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A HOPFLOW_DATA with a few sets."""
    files = {
        "wikitext-2/wiki.test.tokens": WIKI,
        "wikitext-2/wiki.train.tokens": "nothing to see",
        "wikitext-103/wiki.valid.tokens": WIKI,
        "lambada/lambada_test.jsonl": "".join(
            json.dumps({"text": f"He 's said , number {i} !"}) + "\n" for i in range(9)
        ),
        "mine/notes.txt": "as I have written it , so it stays .\n" * 4,
    }
    for name, text in files.items():
        file = tmp_path / "shelf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("HOPFLOW_DATA", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


def text_of(found: sets.TextSet) -> str:
    return Bytes(True).decode(found.x1.flatten().tolist())


def test_a_named_set_is_its_test_files_as_running_text(shelf):
    found = sets.named("wikitext-2", evaluated())
    assert text_of(found).startswith("= A <unk> =\n\nThe guest-starring role, in 2,000, was (never) hers.")
    assert (found.facts["detokenised"], found.facts["split"]) == ("wikitext", "test")
    assert found.x1.shape[1] == 16
    assert found.facts["data_sha256"] != found.facts["source_sha256"]
    again = sets.named("wikitext-2", evaluated())
    assert again.facts == found.facts


def test_as_is_a_set_is_another_one_with_another_hash(shelf):
    found, plain = (sets.named("wikitext-2", evaluated(), detokenise=how) for how in ("auto", "as is"))
    assert text_of(plain).startswith(" = A <unk> = \n \n The guest @-@ starring role ,")
    assert plain.facts["detokenised"] == "as is"
    assert plain.facts["data_sha256"] != found.facts["data_sha256"]


def test_where_there_are_no_test_files_the_row_says_which_were_taken(shelf):
    assert sets.named("wikitext-103", evaluated()).facts["split"] == "valid"
    assert sets.named("mine", evaluated()).facts["split"] == "all"
    assert sets.named("wikitext-2:train", evaluated(), length=8).facts["split"] == "train"


def test_documents_are_parted_by_the_end_of_text_where_the_run_knows_one(shelf):
    found = sets.named("lambada", evaluated())
    assert "number 0 !<|endoftext|>He 's said" in text_of(found)
    assert found.facts["documents"] == "as they are"
    joined = sets.named("lambada", evaluated(Bytes(False)))
    assert "number 0 !\nHe 's said" in text_of(joined)
    assert joined.facts["documents"] == "joined by line breaks"
    assert int(joined.x1.max()) < 256


def test_characters_are_those_of_the_text_without_marks_of_its_end(tmp_path, shelf):
    found = sets.named("lambada", evaluated())
    ends = (found.x1 == 256).sum(1)
    assert found.characters is not None
    assert torch.equal(found.characters.long(), 16 - ends)


def test_a_file_is_taken_as_it_is_and_known_again_if_the_run_was_trained_on_it(tmp_path, shelf):
    file = shelf / "mine" / "notes.txt"
    found = sets.named(str(file), evaluated())
    assert text_of(found).startswith("as I have written it , so it stays .\n")
    assert found.facts["trained_on"] is False
    same = evaluated()
    same.identity["data.source_sha256"] = found.facts["source_sha256"]
    assert sets.named(str(file), same).facts["trained_on"] is True


def test_rows_are_shuffled_with_their_lengths(shelf):
    found = sets.named("lambada", evaluated())
    mixed = found.shuffled(3)
    assert not torch.equal(mixed.x1, found.x1)
    assert torch.equal(mixed.x1.sort(0).values, found.x1.sort(0).values)
    ends = (mixed.x1 == 256).sum(1)
    assert torch.equal(mixed.characters.long(), 16 - ends)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "text8",
            r"text8 was not found, and hopflow does not download it: put its files into .*shelf/text8",
        ),
        ("ptb", "ptb was not found"),
        ("lamdba", "neither a file nor a corpus\ndid you mean 'lambada'"),
        ("wikitext-2:valid", "wikitext-2 has no split 'valid'; it has: train, test"),
    ],
)
def test_a_set_that_is_not_there_is_named(shelf, word, message):
    with pytest.raises(ValueError, match=message):
        sets.named(word, evaluated())


def test_without_a_shelf_it_is_said_how_to_have_one(monkeypatch):
    monkeypatch.delenv("HOPFLOW_DATA", raising=False)
    with pytest.raises(
        ValueError, match="put its files into a folder named lambada, and set HOPFLOW_DATA to the folder"
    ):
        sets.named("lambada", evaluated())


def test_a_text_that_is_empty_or_too_short_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        sets.named(str(tmp_path / "empty.txt"), evaluated())
    with pytest.raises(
        ValueError, match=r"short\.txt is too short: it has 10 tokens, but sequences of this run have 16"
    ):
        sets.named(str(tmp_path / "short.txt"), evaluated())


def test_a_letter_that_the_run_does_not_know_is_named(tmp_path):
    (tmp_path / "other.txt").write_text("abba cabba")
    with pytest.raises(ValueError, match=r"the character ' ' .* is not among the 3"):
        sets.named(str(tmp_path / "other.txt"), evaluated(Characters("abc"), length=4))


def test_a_run_without_tokenizer_or_length_cannot_read_texts(tmp_path):
    known = evaluated()
    nameless = EvaluatedModel(known.model, None, "runs/a", None, {"length": 16})
    with pytest.raises(ValueError, match="was saved without its tokenizer"):
        sets.named("x.txt", nameless)
    with pytest.raises(ValueError, match="pass length=TOKENS"):
        sets.named("x.txt", EvaluatedModel(known.model, None, "runs/a", Bytes()))
    with pytest.raises(ValueError, match="detokenise must be one of auto, none, words, wikitext, got moses"):
        sets.named("x.txt", known, detokenise="moses")


TEXT = "who would not sleep on the sofa? the dog would, and the cat. " * 30


@pytest.fixture
def own(tmp_path):
    """What a run says of its text."""
    file = tmp_path / "own.txt"
    file.write_text(TEXT)
    corpus = hf.data.load(file, "char", 16, holdout=0.2)
    found = evaluated(corpus.tokenizer, data=str(file), tokens="char", holdout=0.2, pack=True)
    found.identity["data.test_sha256"] = corpus.identity["test_sha256"]
    return file, corpus, found


def test_the_runs_own_split_is_held_out_again(own):
    _, corpus, run = own
    found = sets.held_out(run)
    assert torch.equal(found.x1, corpus.test)
    assert (found.name, found.facts["detokenised"]) == ("held-out", "as is")
    assert found.facts["data_sha256"] == corpus.identity["test_sha256"]


def test_a_text_that_has_changed_since_is_refused(own):
    file, _, run = own
    file.write_text(TEXT.replace("sofa", "roof"))
    with pytest.raises(ValueError, match=r"own\.txt has changed since runs/a was trained on it(.|\n)*pass data=FILE"):
        sets.held_out(run)


def test_a_training_text_that_is_missing_is_named_with_what_to_do(own):
    file, _, run = own
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"the text of runs/a was not found: .*pass data=FILE"):
        sets.held_out(run)


def test_documents_that_were_padded_in_training_are_packed(own):
    _, _, run = own
    run.recipe["pack"] = False
    padded = evaluated(Characters("".join(sorted(set(TEXT))), True), **run.recipe)
    found = sets.held_out(padded)
    assert found.x1.shape[1] == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"holdout": 0.0}, r"runs/a has no test split: it was trained with holdout=0; pass data=FILE"),
        ({"data": "-"}, "was trained on text from a pipe, which is not stored: pass data=FILE"),
        ({"data": None}, "has no record of its training text: pass data=FILE"),
    ],
)
def test_a_run_without_a_test_split_is_one_message(own, changes, message):
    _, _, run = own
    run.recipe.update(changes)
    with pytest.raises(ValueError, match=message):
        sets.held_out(run)
