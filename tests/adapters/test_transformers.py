"""hopflow's networks in transformers: AutoModel, logits, generate and streamers."""

import json

import pytest
import torch
import toys
from hub_server import HubServer, Repository, use
from transformers import AutoConfig, AutoModel, TextDiffusionStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import hopflow as hf
from hopflow.adapters.transformers import HopflowConfig, HopflowModel
from hopflow.data.tokenizers import Characters

VOCAB = hf.Vocab(5, masks=1)
FLOWS = {"mask": hf.Flow(hf.Mask(VOCAB)), "uniform": hf.Flow(hf.Uniform(hf.Vocab(5)))}


def save(folder, flow: hf.Flow, **more):
    torch.manual_seed(0)
    network = toys.awake(hf.Transformer(flow.vocab, hf.Size(layers=1, width=8, heads=2)))
    hf.save_pretrained(folder, network, flow, tokenizer=Characters("abcde"), recipe={"length": 8}, **more)
    return network.eval()


@pytest.fixture(params=FLOWS)
def saved(request, tmp_path):
    """A folder, its flow and its network."""
    flow = FLOWS[request.param]
    return tmp_path / "saved", flow, save(tmp_path / "saved", flow)


class Recorder(BaseStreamer):
    """What a streamer gets."""

    def __init__(self) -> None:
        self.parts, self.drafts, self.ended = [], [], 0

    def put(self, value) -> None:
        assert not self.ended
        self.parts.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


class DraftRecorder(Recorder):
    def put_draft(self, value, **options) -> None:
        self.drafts.append((sum(map(len, self.parts)), value.tolist()))


def test_auto_classes_load_a_saved_folder_without_remote_code(saved):
    folder, flow, network = saved
    assert isinstance(AutoConfig.from_pretrained(folder), HopflowConfig)
    model = AutoModel.from_pretrained(folder)
    assert isinstance(model, HopflowModel)
    assert model.flow == flow
    tokens, t = torch.tensor([[0, 1, 2], [4, 3, 2]]), torch.tensor([0.2, 0.7])
    assert torch.equal(model(tokens, t).logits, network(tokens, t))
    assert torch.equal(model(input_ids=tokens).logits, network(tokens, torch.zeros(2)))
    assert torch.equal(model(tokens, 0.5, torch.ones_like(tokens)).logits, network(tokens, torch.full((2,), 0.5)))


def test_a_folder_that_the_model_saves_is_read_by_hopflow_and_by_auto_model(saved, tmp_path):
    folder, flow, network = saved
    AutoModel.from_pretrained(folder).save_pretrained(tmp_path / "again")
    found = hf.from_pretrained(tmp_path / "again")
    assert (found.flow, found.recipe, found.tokenizer.symbols) == (flow, {"length": 8}, "abcde")
    for model in (found.model, AutoModel.from_pretrained(tmp_path / "again").network):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network.parameters(), strict=True))


def test_the_names_of_labels_are_saved_again(tmp_path):
    flow = FLOWS["mask"]
    network = hf.Transformer(flow.vocab, hf.Size(layers=1, width=8, heads=2), labels=2)
    hf.save_pretrained(tmp_path / "saved", network, flow, label_names=("short", "long"))
    AutoModel.from_pretrained(tmp_path / "saved").save_pretrained(tmp_path / "again")
    assert hf.from_pretrained(tmp_path / "again").label_names == ("short", "long")


@pytest.mark.parametrize("options", [{}, {"eta": 1.0, "temperature": 0.5}, {"sampler": hf.Euler(3, hf.CosineGrid())}])
def test_samples_equal_those_of_hopflow_with_the_same_seed(saved, options):
    folder, flow, network = saved
    model = AutoModel.from_pretrained(folder)
    options = {"seed": 3, **({} if "sampler" in options else {"steps": 5}), **options}
    assert torch.equal(model.generate(n=3, **options), hf.generate(network, flow, n=3, length=8, **options).tokens)
    prompt = torch.tensor([[1, 2], [3, 0]])
    holes = torch.full((2, 4), hf.HOLE)
    expected = hf.infill(network, flow, torch.cat([prompt, holes], 1), **options).tokens
    assert torch.equal(model.generate(prompt, max_new_tokens=4, **options), expected)
    assert torch.equal(expected[:, :2], prompt)


def test_masks_and_holes_in_a_prompt_are_filled(tmp_path):
    network = save(tmp_path / "saved", FLOWS["mask"])
    model = AutoModel.from_pretrained(tmp_path / "saved")
    drawn = model.generate(torch.tensor([[1, 5, -1, 2]]), steps=4)
    expected = hf.infill(network, FLOWS["mask"], torch.tensor([[1, -1, -1, 2]]), steps=4).tokens
    assert torch.equal(drawn, expected)


def test_a_prompt_without_tokens_is_a_prompt(tmp_path):
    save(tmp_path / "saved", FLOWS["mask"])
    model = AutoModel.from_pretrained(tmp_path / "saved")
    drawn = model.generate(torch.zeros(2, 0, dtype=torch.int64), max_new_tokens=8, steps=4)
    assert torch.equal(drawn, model.generate(n=2, length=8, steps=4))


@pytest.mark.parametrize("recorder", [Recorder, DraftRecorder])
def test_a_streamer_gets_the_prompt_and_then_every_token_once_and_in_order(saved, recorder):
    folder, _, _ = saved
    model, streamer = AutoModel.from_pretrained(folder), recorder()
    prompt = torch.tensor([[1, 2, hf.HOLE, 3]])
    drawn = model.generate(prompt, max_new_tokens=4, steps=6, seed=2, streamer=streamer)
    assert torch.equal(drawn, model.generate(prompt, max_new_tokens=4, steps=6, seed=2))
    assert streamer.parts[0] == [1, 2]
    assert [token for part in streamer.parts for token in part] == drawn[0].tolist()
    assert streamer.ended == 1


def test_drafts_are_the_rest_of_the_sequence_after_the_tokens_that_stay(saved):
    folder, flow, network = saved
    streamer = DraftRecorder()
    AutoModel.from_pretrained(folder).generate(steps=6, seed=2, streamer=streamer)
    states = [frame.tokens.tolist() for frame in hf.stream(network, flow, length=8, steps=6, seed=2)]
    assert len(streamer.drafts) >= 2
    for shown, draft in streamer.drafts:
        assert shown + len(draft) == 8
        assert draft in [state[shown:] for state in states]
    assert streamer.drafts[0] == (0, states[0])


def test_the_streamers_of_transformers_print_the_text(tmp_path, capsys):
    save(tmp_path / "saved", FLOWS["mask"])
    model = AutoModel.from_pretrained(tmp_path / "saved")
    drawn = model.generate(steps=4, streamer=TextStreamer(model.tokenizer))
    text = model.tokenizer.decode(drawn[0])
    assert capsys.readouterr().out == f"{text}\n"
    model.generate(steps=4, streamer=TextDiffusionStreamer(model.tokenizer))
    shown = capsys.readouterr().out
    assert "\033[33m░░░░░░░░\033[0m" in shown  # the first draft, in yellow
    assert shown.rpartition("\033[J")[2] == f"{text}\n"
    model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, streamer=TextStreamer(model.tokenizer, skip_prompt=True))
    assert len(capsys.readouterr().out) == 4


def test_dtype_and_device_are_those_asked_for(tmp_path):
    save(tmp_path / "saved", FLOWS["mask"])
    for dtype in (torch.bfloat16, "bfloat16"):
        model = AutoModel.from_pretrained(tmp_path / "saved", dtype=dtype, device_map="cpu")
        assert model.dtype == torch.bfloat16
        assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.dtype == torch.bfloat16
        assert model.generate(n=2, steps=2).shape == (2, 8)
    meta = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path / "saved"))
    assert sum(p.numel() for p in meta.parameters()) == sum(p.numel() for p in model.parameters())


def test_a_folder_has_no_revisions(tmp_path):
    save(tmp_path / "saved", FLOWS["mask"])
    assert AutoModel.from_pretrained(str(tmp_path / "saved"), revision="main").origin is None


def test_a_run_of_an_earlier_format_is_loaded_by_the_class_itself(tmp_path):
    folder = tmp_path / "saved"
    save(folder, FLOWS["mask"])
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "hopflow"
    del config["model_type"]
    from hopflow.runs import config_file

    config["sha256"]["config.json"] = config_file.digest(config)
    (folder / "config.json").write_text(json.dumps(config))
    assert HopflowModel.from_pretrained(folder).generate(steps=2).shape == (1, 8)


def test_auto_model_loads_a_network_of_the_hub_at_a_revision(tmp_path, monkeypatch):
    network = save(tmp_path / "saved", FLOWS["mask"])
    with HubServer() as server:
        use(server, monkeypatch, tmp_path)
        monkeypatch.chdir(tmp_path)
        server.repositories["ada/toy"] = Repository()
        commit = server.repositories["ada/toy"].commit(
            {file.name: file.read_bytes() for file in (tmp_path / "saved").iterdir()}, "v1"
        )
        model = AutoModel.from_pretrained("ada/toy", revision="v1")
    assert model.origin == f"hub:ada/toy@{commit}"
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network.parameters(), strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(n=2, streamer=Recorder()), "a streamer takes one sequence, got 2"),
        (lambda m: m.generate(n=0), "n must be an integer ≥ 1, got 0"),
        (lambda m: m.generate(length=-1), "length must be an integer ≥ 1, got -1"),
        (lambda m: m.generate(torch.tensor([[0]]), n=2), "either input_ids or n and length"),
        (lambda m: m.generate(torch.tensor([[0]]), max_new_tokens=-1), "max_new_tokens must be an integer ≥ 0"),
        (lambda m: m.generate(torch.tensor([[6]]), max_new_tokens=1), "token id 6 is out of range"),
        (lambda m: m.generate(do_sample=True), "'do_sample' is not a sampling option"),
        (lambda m: m(torch.zeros(1, 2, dtype=torch.int64), 0.0, torch.tensor([[1, 0]])), "have no padding"),
    ],
)
def test_a_mistake_in_a_call_is_named(tmp_path, call, message):
    save(tmp_path / "saved", FLOWS["mask"])
    model = AutoModel.from_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match=message):
        call(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"load_in_8bit": True}, "load_in_8bit cannot be passed"),
        ({"device_map": {"a": 0, "b": 1}}, "device_map must be one device"),
        ({"dtype": "float99"}, "dtype must be a float type"),
    ],
)
def test_an_option_that_cannot_be_met_is_named(tmp_path, options, message):
    save(tmp_path / "saved", FLOWS["mask"])
    with pytest.raises(ValueError, match=message):
        HopflowModel.from_pretrained(tmp_path / "saved", **options)
