"""Judges of transformers: its own loss, its own habits, and folders that are not to be trusted."""

import hashlib
import importlib.util
import json
import os
import pickle
import random
import shutil
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import hopflow as hf
from hopflow.data.build_tokenizer import from_text
from hopflow.data.documents import DocumentChunk
from hopflow.data.tokenizers import END, Bytes
from hopflow.evaluation.transformers_judge import SMOLLM2
from hopflow.system.progress import Progress

HERE = importlib.util.find_spec("transformers") is not None
pytestmark = pytest.mark.skipif(not HERE, reason="the extra `eval` (transformers) is not installed")

TALE = "It was the best of times, it was the worst of times; it was the age of wisdom, naïve as it was. " * 3
TEXTS = [TALE, TALE[:40], "the age of wisdom", "it", TALE[50:170]]


@pytest.fixture(scope="module")
def bpe():
    """Byte-level BPE with an end-of-text token."""
    return from_text("bpe:300", "", iter([DocumentChunk(TALE, True)]), Progress(None)).with_end()


def save(folder: Path, bpe, kind: str = "gpt2", bos: str | None = None, seed: int = 0) -> Path:
    """A small random model as transformers saves it; with `bos` its tokenizer opens every text with that token."""
    import tokenizers
    import transformers

    engine = tokenizers.Tokenizer.from_str(bpe.definition)
    engine.add_special_tokens([END, "<s>"])
    if bos:
        engine.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A {END}", special_tokens=[(t, engine.token_to_id(t)) for t in (bos, END)]
        )
    sizes = {
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
        "llama": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "max_position_embeddings": 64,
        },
        "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    }
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(kind, vocab_size=engine.get_vocab_size(), **sizes[kind])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # far from all tokens alike
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=engine, eos_token=END).save_pretrained(folder)
    return folder


def loss_of_transformers(folder: Path, text: str, opening: list[int]) -> tuple[float, int]:
    """Its own mean loss over all tokens but the first, and how many these are."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    words = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = torch.tensor([opening + words(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        return float(model(input_ids=ids, labels=ids).loss), ids.shape[1] - 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_perplexity_of_a_text_is_transformers_own_loss(tmp_path, bpe, kind):
    judge = hf.judge(save(tmp_path, bpe, kind))
    assert (judge.opening, judge.opened) == ((), False)
    for text in (TEXTS[1], TEXTS[2]):
        loss, tokens = loss_of_transformers(tmp_path, text, [])
        score = judge.score([text])
        assert int(score.tokens) == tokens
        assert float(score.nats) / tokens == pytest.approx(loss, abs=1e-5)
        assert loss > 1


def test_a_context_opens_as_the_models_own_tokenizer_opens_a_text(tmp_path, bpe):
    judge = hf.judge(save(tmp_path, bpe, "llama", bos="<s>"))
    bos = judge.opening[0]
    assert (judge.opening, judge.opened, judge.context) == ((bos,), True, 63)
    loss, tokens = loss_of_transformers(tmp_path, TEXTS[1], [bos])
    score = judge.score([TEXTS[1]])
    assert int(score.tokens) == tokens == len(judge.ids([TEXTS[1]])[0])
    assert float(score.nats) / tokens == pytest.approx(loss, abs=1e-5)
    assert int(score.bytes) == len(TEXTS[1].encode())


def test_another_opening_may_be_asked_for(tmp_path, bpe):
    judge = hf.judge(save(tmp_path, bpe), opening=(3, 5))
    loss, tokens = loss_of_transformers(tmp_path, TEXTS[2], [3, 5])
    first, _ = loss_of_transformers(tmp_path, "", [3, 5])
    assert float(judge.score([TEXTS[2]]).nats) == pytest.approx(loss * tokens - first, abs=1e-3)
    assert judge.identity["opening"] == [3, 5]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("opening", [(), (1,)])
def test_the_same_text_gets_the_same_number_in_any_company(tmp_path, bpe, kind, opening):
    judge = hf.judge(save(tmp_path, bpe, kind), opening=opening)
    together = judge.score(TEXTS).nats
    alone = torch.cat([judge.score([text]).nats for text in TEXTS])
    assert torch.allclose(together, alone, rtol=0, atol=1e-4)
    assert float(together[0]) > 64  # more than one window


def test_the_identity_names_the_files_by_their_hashes(tmp_path, bpe):
    judge = hf.judge(save(tmp_path, bpe), context=40)
    identity = judge.identity
    assert json.loads(json.dumps(identity)) == identity
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert identity["sha256"] == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert (identity["name"], identity["context"], identity["opening"]) == (str(tmp_path), 40, [])
    assert (identity["kind"], identity["precision"]) == ("transformers", "float32")
    assert len(identity["tokenizer_sha256"]) == 64
    with pytest.raises(ValueError, match=r"at most 64 tokens.*got context=65"):
        hf.judge(tmp_path, context=65)


def test_ids_are_taken_from_a_tokenizer_with_the_same_vocabulary_only(tmp_path, bpe):
    import tokenizers

    judge = hf.judge(save(tmp_path, bpe))
    # the same ids, written down by another program
    engine = tokenizers.Tokenizer.from_str(bpe.definition)
    engine.add_special_tokens([END, "<s>"])
    engine.post_processor = tokenizers.processors.ByteLevel()
    same = type(bpe)(engine.to_str(), "same")
    assert same.sha256 != judge.tokenizer.sha256
    ids = torch.stack([row[:12] for row in judge.ids([TALE, TALE[27:]])])
    found = hf.generative_perplexity(ids, judge, tokenizer=same)
    texts = [same.decode(row) for row in ids.tolist()]
    assert found.corpus.value == pytest.approx(hf.generative_perplexity(texts, judge).corpus.value, rel=1e-5)
    with pytest.raises(ValueError, match="another vocabulary"):
        hf.generative_perplexity(ids, judge, tokenizer=Bytes())


def test_a_text_that_spells_a_control_token_stays_text_and_the_end_mark_is_one_token(tmp_path, bpe):
    judge = hf.judge(save(tmp_path, bpe))
    assert len(judge.ids(["<s>"])[0]) > 1
    (row,) = judge.ids([f"it{END}was"])
    assert row.tolist().count(judge.tokenizer.end) == 1


def test_a_judge_computes_in_the_dtype_that_was_passed(tmp_path, bpe):
    exact, rough = hf.judge(save(tmp_path, bpe)), hf.judge(tmp_path, dtype=torch.bfloat16)
    assert rough.identity["precision"] == "bfloat16"
    a, b = (float(judge.score(TEXTS[:1]).nats) for judge in (exact, rough))
    assert a != b
    assert a == pytest.approx(b, rel=0.05)


def test_a_model_in_several_files_is_the_same_judge(tmp_path, bpe):
    import transformers

    whole = hf.judge(save(tmp_path / "whole", bpe))
    parts = tmp_path / "parts"
    shutil.copytree(tmp_path / "whole", parts)
    (parts / "model.safetensors").unlink()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", local_files_only=True)
    model.save_pretrained(parts, max_shard_size="60KB")
    judge = hf.judge(parts)
    assert len(judge.identity["sha256"]) > 1
    assert torch.equal(judge.score(TEXTS).nats, whole.score(TEXTS).nats)
    index = parts / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    for elsewhere in ("../whole/model.safetensors", "pytorch_model.bin"):
        content["weight_map"] = dict.fromkeys(content["weight_map"], elsewhere)
        index.write_text(json.dumps(content))
        with pytest.raises(FileNotFoundError, match="the weights are missing"):
            hf.judge(parts)


# -- what is refused -------------------------------------------------------------------------------------------------


class Canary:
    """Unpickled, it leaves a folder behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_a_pickle_beside_the_safetensors_is_not_read(tmp_path, bpe):
    folder = save(tmp_path / "model", bpe)
    before = hf.judge(folder).score(TEXTS[:1]).nats
    for name in ("pytorch_model.bin", "training_args.bin", "tokenizer.pkl"):
        (folder / name).write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    assert torch.equal(hf.judge(folder).score(TEXTS[:1]).nats, before)
    assert not (tmp_path / "canary").exists()


def test_code_beside_the_weights_is_not_run(tmp_path, bpe):
    folder = save(tmp_path / "model", bpe)
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'canary')!r})")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    settings["tokenizer_class"] = "Evil"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with suppress(ValueError):  # refused, or read by the tokenizer.json beside it
        hf.judge(folder)
    assert not (tmp_path / "canary").exists()


def edit(folder: Path, **changes: object) -> None:
    """Change some keys of its config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def no_sockets(monkeypatch):
    """Refuse every connection and every look-up of a name, and keep the addresses that were tried."""
    tried: list[object] = []

    def refuse(*address: object, **_: object) -> None:
        tried.append(address[-1])
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@pytest.fixture
def kernels(monkeypatch):
    """Stands in for the package `kernels` where it is installed: which kernels of the hub were asked for."""
    from transformers.integrations import hub_kernels

    asked: list[str] = []
    monkeypatch.setattr(hub_kernels, "get_kernel", lambda name, *_, **__: asked.append(name))
    return asked


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        {"attn_implementation": "org/repo"},
        {"attn_implementation": "kernels-community/flash-attn2"},
        {"attn_implementation": {"": "org/repo"}},
        {"_attn_implementation": "org/repo"},
        {"_attn_implementation_internal": "org/repo"},
        {"text_config": {"attn_implementation": "org/repo"}},
        {"layers": [{"attn_implementation": "org/repo"}]},
        {"experts_implementation": "org/repo"},
        {"quantization_config": {"quant_method": "mxfp4"}},
        {"compression_config": {"quant_method": "sparseml"}},
        {"auto_map": {"AutoModelForCausalLM": "org/repo--evil.Evil"}},
        {"use_kernels": True},
        {"kernel_config": {"RMSNorm": "org/repo:RMSNorm"}},
        {"configuration_files": ["config.4.0.0.json"]},
        {"transformers_weights": "elsewhere.safetensors"},
        {"attribute_map": {"hidden_act": "_attn_implementation_internal"}, "hidden_act": "org/repo"},
    ],
    ids=str,
)
def test_a_config_that_asks_for_other_code_or_files_is_refused_without_a_socket(
    tmp_path, bpe, no_sockets, kernels, changes, offline
):
    edit(save(tmp_path, bpe, "llama"), **changes)
    with pytest.raises(ValueError, match="loads other files or code"):
        hf.judge(tmp_path, offline=offline)
    assert (no_sockets, kernels) == ([], [])


def test_a_local_judge_opens_no_socket_while_it_is_loaded_and_used(tmp_path, bpe, no_sockets, kernels, monkeypatch):
    from huggingface_hub import HfApi, constants

    judge = hf.judge(save(tmp_path, bpe, "llama"))
    assert judge.model.config._attn_implementation == "sdpa"
    forward = judge.model.forward

    def curious(*inputs, **options):
        with suppress(Exception):  # what a network of transformers may do while it computes
            HfApi().model_info("org/repo")
        return forward(*inputs, **options)

    monkeypatch.setattr(judge.model, "forward", curious)
    assert float(judge.score(TEXTS[:1]).nats) > 0
    assert (no_sockets, kernels) == ([], [])
    assert not constants.HF_HUB_OFFLINE  # the rest of the process may still ask the hub
    with pytest.raises(Exception, match="no network in this test"):
        HfApi().model_info("org/repo")
    assert no_sockets  # so that the test can see an attempt


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 1001}, "num_hidden_layers must be at most 1000, got 1001"),
        ({"num_hidden_layers": 10**12}, "at most 1000"),
        ({"num_hidden_layers": 1000}, r"its config describes 10,\d+,\d+ weights, but its files have"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be an integer from 1 to 1000, got 0"),
        ({"hidden_size": 1 << 17}, "hidden_size must be an integer from 1 to 65536"),
        ({"hidden_size": 1 << 16}, "its config describes"),
        ({"vocab_size": 10**10}, "vocab_size must be an integer from 1 to 4194304"),
        ({"vocab_size": 1 << 22}, "its config describes"),
        ({"intermediate_size": 10**9}, "intermediate_size must be an integer from 1 to 262144"),
        ({"max_position_embeddings": 10**15}, "max_position_embeddings must be an integer from 1 to 16777216"),
    ],
    ids=str,
)
def test_a_config_of_impossible_size_is_refused_before_anything_is_allocated(tmp_path, bpe, changes, words):
    edit(save(tmp_path, bpe, "llama"), **changes)
    with pytest.raises(ValueError, match=words):
        hf.judge(tmp_path)


def test_a_config_too_large_to_read_is_refused(tmp_path, bpe, monkeypatch):
    monkeypatch.setattr("hopflow.evaluation.transformers_judge.LARGEST_CONFIG", 100)
    with pytest.raises(ValueError, match=r"config\.json is larger than"):
        hf.judge(save(tmp_path, bpe))


def test_weights_that_are_missing_or_damaged_are_no_judge(tmp_path, bpe):
    from safetensors.torch import load_file, save_file

    folder = save(tmp_path, bpe)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    lost = next(name for name in tensors if "attn" in name)
    save_file({name: value for name, value in tensors.items() if name != lost}, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"has no weights for .*noise"):
        hf.judge(folder)
    for size, words in ((100, "is damaged"), (10**5, "cannot load")):
        file.write_bytes(b"\x80\x04" + bytes(size))
        with pytest.raises(ValueError, match=words):
            hf.judge(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="the weights are missing"):
        hf.judge(folder)


def test_a_model_that_sees_what_comes_after_is_no_judge(tmp_path, bpe):
    with pytest.raises(ValueError, match="attends to later tokens"):
        hf.judge(save(tmp_path, bpe, "bert"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path, bpe):
    folder = save(tmp_path, bpe)
    larger = from_text(
        "bpe:340",
        "",
        iter([DocumentChunk(TALE + "And then there was more to tell of it, too. " * 5, True)]),
        Progress(None),
    )
    (folder / "tokenizer.json").write_text(larger.definition)
    with pytest.raises(ValueError, match=r"the tokenizer has 3\d\d tokens, but the model only 29\d"):
        hf.judge(folder)


def test_the_hub_is_asked_only_by_its_prefix_and_never_offline(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match="hf:some/model could not be downloaded: it is not in the hub's cache"):
        hf.judge("hf:some/model", offline=True)


@pytest.mark.slow
def test_the_named_judge_reads_as_it_should(monkeypatch):
    """SmolLM2 prefers a text to its words in another order, and knows a sentence that it has just read."""
    monkeypatch.undo()  # this one may use the network
    try:
        judge = hf.judge("smollm2")
    except (OSError, ImportError) as error:
        pytest.skip(f"the judge cannot be had: {error}")
    assert judge.opening == (0,)
    assert judge.identity["sha256"] == dict(SMOLLM2.members)
    text = (
        "The committee met on Tuesday to discuss the budget for the coming year. Several members said that the cost of "
        "heating the old library had risen so much that it might be cheaper to build a new one."
    )
    shuffled = text.split()
    random.Random(0).shuffle(shuffled)
    plain, mixed, again = (
        hf.generative_perplexity([words], judge).bits_per_byte.value
        for words in (text, " ".join(shuffled), "The dog sleeps on the old sofa. " * 30)
    )
    assert plain < 1.2
    assert mixed > 1.7 * plain
    assert again < 0.2


def test_a_judge_of_the_hub_stays_at_the_commit_of_its_first_use(tmp_path, bpe, monkeypatch):
    newest, asked = "a" * 40, []

    def download(name, revision, **how):
        asked.append((name, revision))
        folder = tmp_path / (revision if revision not in (None, "main") else newest)
        return str(folder if folder.is_dir() else save(folder, bpe, seed=len(asked)))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    first = hf.judge("hf:org/judge").identity
    newest = "b" * 40
    again = hf.judge("hf:org/judge", offline=True).identity
    assert first == again
    assert first["revision"] == "a" * 40
    other = hf.judge("hf:org/judge@main").identity
    assert (other["revision"], other["name"]) == ("b" * 40, "hf:org/judge")
    assert other["sha256"] != first["sha256"]
    assert hf.judge("hf:org/judge").identity == other
    assert asked == [("org/judge", wanted) for wanted in (None, "a" * 40, "main", "b" * 40)]
    (tmp_path / newest / "tokenizer.json").write_text("{}")
    with pytest.raises(OSError, match=r"tokenizer\.json of org/judge is not the file that was first used"):
        hf.judge("hf:org/judge")
