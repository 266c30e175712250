"""hopflow infill: what it fills, continues and refuses."""

import pytest
from saved_networks import LENGTH, LETTERS, SMALL, refused, rows

import hopflow as hf
from hopflow.data.build_tokenizer import from_text
from hopflow.data.documents import DocumentChunk
from hopflow.data.tokenizers import END, Characters
from hopflow.system.progress import Progress


@pytest.fixture(autouse=True)
def in_the_folder_of_networks(saved_networks, monkeypatch):
    monkeypatch.chdir(saved_networks)


@pytest.mark.parametrize("name", ["masks", "letters"])
def test_infill_keeps_the_prompt_and_fills_its_holes(hopflow, tmp_path, name):
    file = tmp_path / "a.jsonl"
    prompts = ("ab[MASK:3]cd", "[MASK]a[MASK]")
    assert hopflow("infill", name, *prompts, "n=20", "eta=1", "--out", str(file)).code == 0
    found = rows(file)
    assert [row["prompt"] for row in found] == [prompts[0]] * 20 + [prompts[1]] * 20
    assert [row["prompt_index"] for row in found] == [0] * 20 + [1] * 20
    a, b, c, d = LETTERS.encode("abcd")
    for row in found[:20]:
        assert (row["tokens"][:2], row["tokens"][5:]) == ([a, b], [c, d])
    assert {row["tokens"][1] for row in found[20:]} == {a}
    assert {len(row["tokens"]) for row in found[20:]} == {3}
    assert len({row["text"] for row in found[:20]}) > 10


def test_a_prompt_without_holes_is_continued(hopflow, tmp_path):
    file = tmp_path / "a.jsonl"
    assert hopflow("infill", "masks", "abc", "[MASK]b", "--out", str(file)).code == 0
    prefix, hole = rows(file)
    assert (len(prefix["tokens"]), len(hole["tokens"])) == (LENGTH, 2)
    assert prefix["text"].startswith("abc")
    assert hopflow("infill", "masks", "abc", "[MASK]b", "length=8", "--out", str(file)).code == 0
    assert [len(row["tokens"]) for row in rows(file)] == [8, 8]
    assert rows(file)[1]["tokens"][1] == LETTERS.encode("b")[0]


def test_a_prompt_far_shorter_than_the_training_length_is_noted(hopflow):
    shown = hopflow("infill", "masks", "[MASK]b").err
    assert f"note: a prompt of 2 tokens is short for this network, which was trained on {LENGTH}" in shown
    assert f"length={LENGTH} continues the text" in shown
    assert "note:" not in hopflow("infill", "masks", "[MASK]b", f"length={LENGTH}").err
    assert "note:" not in hopflow("infill", "masks", f"[MASK:{LENGTH - 1}]b").err


def test_prompts_come_from_a_file_after_those_that_were_written(hopflow, tmp_path):
    (tmp_path / "a.txt").write_text("b[MASK]\nc[MASK]\n")
    result = hopflow("infill", "masks", "a[MASK]", f"prompts={tmp_path / 'a.txt'}")
    assert [text[0] for text in result.out.split(f"\n{END}\n")] == ["a", "b", "c"]


def test_a_prompt_may_look_like_a_setting_if_it_has_a_blank_or_a_hole(hopflow, saved_networks, tmp_path, monkeypatch):
    tokenizer = Characters("".join(sorted(set("abn= 1"))))
    flow = hf.Flow(hf.Uniform(hf.Vocab(tokenizer.size)))
    hf.save_pretrained(tmp_path / "net", hf.Transformer(flow.vocab, SMALL), flow, tokenizer=tokenizer)
    result = hopflow("infill", str(tmp_path / "net"), "a=[MASK]", "a=b [MASK]", "n=2")
    assert result.code == 0
    assert [text[:2] for text in result.out.split(f"\n{END}\n")] == ["a=", "a=", "a=", "a="]
    refused(hopflow("infill", str(tmp_path / "net"), "a=b"), "unknown setting 'a'")


def test_with_subwords_the_blank_before_a_hole_is_part_of_the_hole(hopflow, tmp_path):
    tokenizer = from_text("bpe:300", "", iter([DocumentChunk("Once upon a time, " * 40, True)]), Progress(None))
    flow = hf.Flow(hf.MultiMask(hf.Vocab(tokenizer.size, 1)))
    model, out = hf.Transformer(flow.vocab, SMALL), tmp_path / "a.jsonl"
    hf.save_pretrained(tmp_path / "net", model, flow, tokenizer=tokenizer, recipe={"length": 16})
    prompts = ("Once upon a [MASK:1],", "Once upon a [MASK:9 chars],", "Once upon a ")
    assert hopflow("infill", str(tmp_path / "net"), *prompts, "--out", str(out)).code == 0
    hole, chars, continued = (row["tokens"] for row in rows(out))
    start, (comma,) = tokenizer.encode("Once upon a"), tokenizer.encode(",")
    assert hole[:-2] == start
    assert hole[-1] == comma
    assert len(chars) > len(hole)
    assert len(continued) == 16
    assert all(row["text"].startswith("Once upon a") for row in rows(out))


def test_guidance_doubles_the_network_calls_and_is_recorded(hopflow, tmp_path):
    for guidance, calls in (("1", 1), ("2.5", 2)):
        file = tmp_path / "a.jsonl"
        result = hopflow("infill", "masks", "ab[MASK:4]", "steps=1", f"guidance={guidance}", "--out", str(file))
        assert result.code == 0
        (row,) = rows(file)
        assert (row["guidance"], row["calls"]) == (float(guidance), calls)
    assert result.facts["settings"] == "seed 0, guidance 2.5"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["masks"], "no prompt: type one"),
        (["masks", ""], "prompt 1 is empty"),
        (["masks", "a[MASK]", "abcabcabcabca"], "prompt 2 has 13 tokens, and the network was trained with 12"),
        (["masks", "[MASK:13]"], "or set length=13"),
        (["masks", "abcd", "length=3"], "more than length=3"),
        (["masks", "abc", "length=3"], "there is nothing to draw"),
        (["masks-without-length", "abc"], "length=128"),
        (["masks", "[MASK]é"], "prompt 1: the character 'é'"),
        (["masks", "[MASK:0]"], "is not a valid hole"),
        (["masks", "prompts=nowhere.txt"], "nowhere.txt: No such file"),
        (["masks", "prompts=masks"], ".jsonl"),
        (["masks", "a[MASK]", "steps=0"], "steps must be an integer from 1"),
        (["masks", "a[MASK]", "n=0"], "n must be an integer ≥ 1, got 0."),
        (["masks", "a[MASK]", "top_p=2"], "top_p must be a number > 0 and ≤ 1, got 2."),
        (["masks", "a[MASK]", "stpes=3"], "did you mean 'steps'?"),
        (["masks", "a[MASK]", "guidance=strong"], "guidance must be a number, got strong."),
        (["masks", "[MASK:3]", "guidance=2"], "guidance needs labels or prompts"),
        (["nowhere", "a[MASK]"], "there is no folder"),
        (["damaged-weights", "a[MASK]"], "is damaged"),
        (["causal", "a[MASK]"], "which cannot infill"),
        (["masks", "a[MASK]", "--out", "a.md"], ".txt (text) or .jsonl"),
    ],
)
def test_an_invalid_infill_command_is_one_message_and_exit_2(hopflow, words, message):
    refused(hopflow("infill", *words), message)


def test_an_empty_file_of_prompts_is_refused(hopflow, tmp_path):
    (tmp_path / "a.txt").write_text("")
    refused(hopflow("infill", "masks", f"prompts={tmp_path / 'a.txt'}"), "contains no prompt")


def test_quotes_that_were_probably_forgotten_are_noted(hopflow):
    shown = hopflow("infill", "masks", "a", "[MASK:1]", "b").err
    assert "note: these are 3 prompts; one prompt is typed in quotes: 'a [MASK:1] b'" in shown
    assert "note: these are" not in hopflow("infill", "masks", "a[MASK]").err


def test_a_hole_in_another_spelling_is_noted(hopflow):
    shown = hopflow("infill", "masks", "a[mask:2]").err
    assert "note: [mask:2] is taken as text; a hole is typed [MASK] or [MASK:5]" in shown
    assert "is taken as text" not in hopflow("infill", "masks", r"\[MASK]a[MASK]").err
