"""A stream draws what `generate` and `infill` draw, step by step."""

import gc
import weakref

import pytest
import torch

import hopflow as hf
from hopflow.sampling.sampling_run import SamplingRun

SIZE = hf.Size(layers=1, width=16, heads=2)
VOCAB = hf.Vocab(5, masks=2)
SOURCES = (hf.Mask(VOCAB), hf.MultiMask(VOCAB), hf.Uniform(hf.Vocab(5)), hf.BagOfWords(hf.Vocab(3), (0.6, 0.3, 0.1)))
OPTIONS = (
    {"steps": 8},
    {"steps": 1},
    {"steps": 6, "eta": 1.5},
    {"steps": 6, "batch": 2, "eta": 0.5},
    {"sampler": hf.Euler(5, hf.CosineGrid()), "temperature": 0.7, "top_k": 3},
    {"steps": 5, "temperature": 0.0},
    {"steps": 5, "top_p": 0.8, "min_p": 0.05, "draw": hf.gumbel32},
)


def network(flow: hf.Flow) -> torch.nn.Module:
    torch.manual_seed(0)
    model = hf.Transformer(flow.vocab, SIZE)
    torch.nn.init.normal_(model.head.weight)
    return model


def replayed(frames: list[hf.Frame], out: hf.Generation) -> None:
    """Assert that frames show exactly how these sequences came about."""
    for row, length in enumerate(out.lengths.tolist()):
        mine = [frame for frame in frames if frame.row == row]
        assert torch.equal(mine[0].tokens, out.x0[row, :length])
        assert (mine[0].t, mine[0].jumps, mine[0].calls, len(mine[0].position)) == (0.0, 0, 0, 0)
        tokens = mine[0].tokens.clone()
        for frame in mine:
            assert torch.equal(tokens[frame.position], frame.before)
            tokens[frame.position] = frame.after
            assert torch.equal(tokens, frame.tokens)
            assert torch.equal(frame.fixed, out.fixed[row, :length])
            assert torch.equal(tokens[frame.final], out.tokens[row, :length][frame.final])
        assert torch.equal(tokens, out.tokens[row, :length])
        assert torch.equal(mine[0].final, mine[0].fixed)
        assert mine[-1].final.all()
        assert [frame.t for frame in mine] == sorted(frame.t for frame in mine)
        assert [frame.done for frame in mine[1:]] == [False] * (len(mine) - 2) + [True]
        counts = mine[-1].jumps, mine[-1].calls, mine[-1].redraws
        assert counts == (int(out.jumps[row]), int(out.calls[row]), int(out.redraws[row].sum()))


def same(a: hf.Generation, b: hf.Generation) -> None:
    for name in ("tokens", "x0", "fixed", "lengths", "calls", "redraws", "changes"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    for name in ("row", "t", "position", "before", "after"):
        assert torch.equal(getattr(a.hops, name), getattr(b.hops, name)), name
    assert (a.sampler, a.eta, a.filter, a.draw, a.precision) == (b.sampler, b.eta, b.filter, b.draw, b.precision)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_a_stream_equals_generate_in_tokens_hops_and_counts(source, options):
    flow = hf.Flow(source)
    model = network(flow)
    out = hf.generate(model, flow, n=5, length=7, seed=3, trajectory=True, **options)
    stream = hf.stream(model, flow, n=5, length=7, seed=3, **options)
    frames = list(stream)
    same(stream.result, out)
    replayed(frames, out)


@pytest.mark.parametrize("per_call", [1, 3])
def test_a_stream_in_random_order_equals_generate(per_call):
    flow = hf.Flow(SOURCES[1])
    model, options = network(flow), {"sampler": hf.RandomOrder(per_call), "seed": 1}
    stream = hf.stream(model, flow, n=3, length=6, **options)
    replayed(list(stream), hf.generate(model, flow, n=3, length=6, **options))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
def test_a_stream_of_prompts_of_different_lengths_equals_infill(source):
    flow = hf.Flow(source)
    model = network(flow)
    prompts = [torch.tensor(row) for row in ([-1, 1, -1], [0, -1, -1, -1, 2], [2, -1, -1], [1, 1])]
    options = {"steps": 4, "eta": 0.5, "guidance": 2.0, "seed": 9}
    out = hf.infill(model, flow, prompts, trajectory=True, **options)
    stream = hf.stream(model, flow, prompts, **options)
    frames = [frame for frame in stream if frame.row != 3]  # nothing to draw in the last one
    same(stream.result, out)
    for row in range(3):
        mine = [frame for frame in frames if frame.row == row]
        assert torch.equal(mine[-1].tokens, out.tokens[row, : len(prompts[row])])
        assert mine[-1].calls == out.calls[row]


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_data_token_from_a_disjoint_source_is_final_as_soon_as_it_is_drawn(eta):
    flow = hf.Flow(hf.MultiMask(VOCAB))
    for frame in hf.stream(network(flow), flow, n=3, length=9, steps=6, seed=4, eta=eta):
        assert torch.equal(frame.final, flow.vocab.is_data(frame.tokens))


def test_a_stream_passes_labels_to_the_network():
    flow = hf.Flow(SOURCES[2])

    def model(xt: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return 9 * torch.nn.functional.one_hot(label, 5)[:, None].expand(*xt.shape, 5).float()

    options = {"labels": torch.tensor([3, 1]), "steps": 4}
    stream = hf.stream(model, flow, n=2, length=4, **options)
    replayed(list(stream), hf.generate(model, flow, n=2, length=4, **options))


def test_between_two_frames_gradients_and_the_mode_of_the_network_are_the_callers():
    flow = hf.Flow(SOURCES[0])
    model = network(flow).train()
    for _ in hf.stream(model, flow, length=4, steps=4):
        assert torch.is_grad_enabled()
        assert model.training


class Failure(Exception):
    pass


def leave_by_exception(stream: hf.Stream) -> None:
    with pytest.raises(Failure), stream:
        raise Failure


LEAVE = {
    "close": lambda stream: stream.close(),
    "with": lambda stream: stream.__exit__(None, None, None),
    "exception": leave_by_exception,
    "end": lambda stream: list(stream),
}


@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
@pytest.mark.parametrize("frames", [0, 1, 4])
def test_leaving_a_stream_frees_its_run_without_the_garbage_collector(leave, frames, monkeypatch):
    made = watch_runs(monkeypatch)
    flow = hf.Flow(SOURCES[0])
    model = network(flow).train()
    stream = hf.stream(model, flow, n=2, length=6, steps=6)
    for _ in range(frames):
        next(stream)
    gc.disable()
    try:
        leave(stream)
        assert [run() for run in made] == [None]
    finally:
        gc.enable()
    assert list(stream) == []
    assert model.training


def test_dropping_a_stream_in_the_middle_frees_its_run(monkeypatch):
    made = watch_runs(monkeypatch)
    flow = hf.Flow(SOURCES[0])
    for _ in hf.stream(network(flow), flow, n=2, length=6, steps=6):
        break
    gc.collect()
    assert [run() for run in made] == [None]


def test_a_network_that_fails_in_a_stream_frees_its_run(monkeypatch):
    made = watch_runs(monkeypatch)

    def model(xt: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        raise Failure

    with pytest.raises(Failure):
        list(hf.stream(model, hf.Flow(SOURCES[0]), length=4))
    gc.collect()
    assert [run() for run in made] == [None]


def watch_runs(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref]:
    """References to the runs that are made from now on."""
    made: list[weakref.ref] = []
    start = SamplingRun.__init__

    def record(self, *arguments, **options):
        made.append(weakref.ref(self))
        start(self, *arguments, **options)

    monkeypatch.setattr(SamplingRun, "__init__", record)
    return made


def test_the_result_of_a_stream_needs_its_end():
    flow = hf.Flow(SOURCES[0])
    stream = hf.stream(network(flow), flow, length=4)
    next(stream)
    with pytest.raises(ValueError, match="has not ended"):
        stream.result  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "length must be an integer ≥ 1, got None"),
        ({"length": 0}, "length must be an integer ≥ 1, got 0"),
        ({"length": 4, "n": 0}, "n must be an integer ≥ 1, got 0"),
        ({"prompts": torch.full((1, 3), -1), "length": 3}, "either prompts or n and length"),
        ({"length": 3, "stepz": 3}, "'stepz' is not a sampling option"),
    ],
)
def test_wrong_arguments_of_a_stream_are_named(arguments, message):
    flow = hf.Flow(SOURCES[0])
    with pytest.raises(ValueError, match=message):
        hf.stream(network(flow), flow, **arguments)
