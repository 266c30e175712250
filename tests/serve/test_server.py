"""The server's answers: tokens equal to `hf.infill` with that seed, errors in one line, and nothing left behind."""

import http.client
import json
import socket
import threading
import time
from dataclasses import replace

import pytest
import torch
from saved_networks import LENGTH, LETTERS

import hopflow as hf

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from live_server import LIMITS, ask, chunks, events, message, running, served, two_flows  # noqa: E402

from hopflow.serve.app import Application  # noqa: E402
from hopflow.serve.limits import Limits  # noqa: E402
from hopflow.serve.served_flow import ServedFlow  # noqa: E402
from hopflow.serve.server import check_address  # noqa: E402

TOKEN = "secret"


@pytest.fixture(scope="module")
def flows():
    return two_flows()


@pytest.fixture(scope="module")
def site(flows):
    with running(list(flows.values())) as found:
        yield found
    assert found.failures == []


@pytest.mark.parametrize("name", ["masks", "letters"])
@pytest.mark.parametrize("options", [{"steps": 8}, {"steps": 4, "eta": 1.0, "temperature": 0.5, "top_p": 0.9}])
def test_a_draw_of_the_page_equals_generate_with_its_seed(site, flows, name, options):
    flow = flows[name]
    shown = events(ask(site.port, "/api/draw", {"flow": name, "length": 9, "seed": 3, **options}).text)
    out = hf.generate(flow.model, flow.flow, n=1, length=9, seed=3, **options)
    assert [event for event, _ in shown] == ["start", *["frame"] * (len(shown) - 2), "end"]
    tokens = [token for token, _ in shown[0][1]["x0"]]
    assert tokens == out.x0[0].tolist()
    for _, frame in shown[1:-1]:
        for position, (before, _), (after, _) in frame["hops"]:
            assert tokens[position] == before
            tokens[position] = after
    end = shown[-1][1]
    assert tokens == [token for token, _ in end["tokens"]] == out.tokens[0].tolist()
    assert (end["jumps"], end["calls"]) == (int(out.jumps[0]), int(out.calls[0]))
    assert end["text"] == out.text(LETTERS)[0]


def test_a_prompt_of_the_page_equals_infill_and_its_program_draws_the_same(site, flows, tmp_path, monkeypatch):
    prompt = [{"text": "a"}, None, None, {"id": 3}, None]
    shown = events(ask(site.port, "/api/draw", {"flow": "masks", "prompt": prompt, "seed": 5, "steps": 4}).text)
    flow, (a,) = flows["masks"], LETTERS.encode("a")
    out = hf.infill(flow.model, flow.flow, torch.tensor([[a, -1, -1, 3, -1]]), seed=5, steps=4)
    assert [token for token, _ in shown[-1][1]["tokens"]] == out.tokens[0].tolist()
    assert shown[0][1]["fixed"] == [True, False, False, True, False]
    assert shown[0][1]["command"] == "hopflow infill runs/masks 'a[MASK:2]b[MASK:1]' steps=4 seed=5"
    hf.save_pretrained(tmp_path / "runs/masks", flow.model, flow.flow, tokenizer=LETTERS)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(shown[0][1]["python"], names)
    assert torch.equal(names["out"].tokens, out.tokens)


def test_two_flows_have_the_same_noise_only_if_their_sources_are_equal(flows):
    pair = {"one": served("one", flows["letters"].flow.source), "other": served("other", flows["letters"].flow.source)}
    assert Application(list(pair.values()), LIMITS, "127.0.0.1")._offer["same_noise"]
    assert not Application(list(flows.values()), LIMITS, "127.0.0.1")._offer["same_noise"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/fim/completions"])
def test_a_completion_with_a_suffix_equals_infill_of_the_tokens_between(site, flows, path):
    asked = {"model": "masks", "prompt": "ab", "suffix": "ba", "max_tokens": 5, "n": 2, "seed": 7, "steps": 6}
    answer = json.loads(ask(site.port, path, asked).text)
    flow, ids = flows["masks"], [*LETTERS.encode("ab"), *[-1] * 5, *LETTERS.encode("ba")]
    out = hf.infill(flow.model, flow.flow, torch.tensor([ids, ids]), seed=7, steps=6)
    end = LETTERS.end
    for choice, row in zip(answer["choices"], out.tokens.tolist(), strict=True):
        drawn = row[2:7]
        assert choice["finish_reason"] == ("stop" if end in drawn else "length")
        assert choice["text"] == LETTERS.decode(drawn[: drawn.index(end)] if end in drawn else drawn)
    assert answer["usage"]["jumps"] == int(out.jumps.sum())
    assert answer["usage"]["calls"] == int(out.calls.sum())
    assert answer["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("name", ["masks", "letters"])
@pytest.mark.parametrize("stop", [[], ["a"], ["bb", "cd"]])
def test_the_deltas_of_a_stream_add_up_to_the_complete_answer(site, name, stop):
    asked = {"model": name, "prompt": "ab", "max_tokens": 30, "n": 3, "seed": 2, "steps": 8, "stop": stop}
    options = {"include_usage": True, "hops": True}
    streamed = chunks(ask(site.port, "/v1/completions", {**asked, "stream": True, "stream_options": options}).text)
    complete = json.loads(ask(site.port, "/v1/completions", asked).text)
    texts, reasons = [""] * 3, [None] * 3
    for chunk in streamed:
        for choice in chunk["choices"]:
            assert reasons[choice["index"]] is None
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [choice["text"] for choice in complete["choices"]]
    assert reasons == [choice["finish_reason"] for choice in complete["choices"]]
    assert not any(word in text for text in texts for word in stop)
    assert streamed[-1]["usage"] == complete["usage"]
    hops = [chunk["hops"] for chunk in streamed if "hops" in chunk]
    assert sum(len(hop["hops"]) for hop in hops) == complete["usage"]["jumps"]


@pytest.mark.parametrize("name", ["masks", "letters"])
def test_a_text_that_a_stop_text_ends_counts_the_tokens_before_it(site, name):
    asked = {"model": name, "prompt": "ab", "max_tokens": 30, "seed": 2, "steps": 8}
    text = json.loads(ask(site.port, "/v1/completions", asked).text)["choices"][0]["text"]
    stop = text[len(text) // 2]
    answer = json.loads(ask(site.port, "/v1/completions", {**asked, "stop": stop}).text)
    assert answer["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "text": text[: text.index(stop)],
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer["usage"]["completion_tokens"] == len(LETTERS.encode(text[: text.index(stop)]))


@pytest.mark.parametrize("options", [{"temperature": 1e-300}, {"top_p": 1e-300}], ids=str)
def test_the_smallest_temperature_and_top_p_take_the_most_probable_token(site, options):
    asked = {"model": "masks", "max_tokens": 9, "seed": 2, "steps": 3}
    greedy = json.loads(ask(site.port, "/v1/completions", {**asked, "temperature": 0}).text)["choices"]
    assert json.loads(ask(site.port, "/v1/completions", {**asked, **options}).text)["choices"] == greedy


def test_models_and_health_are_listed(site):
    assert [model["id"] for model in json.loads(ask(site.port, "/v1/models").text)["data"]] == ["masks", "letters"]
    assert json.loads(ask(site.port, "/v1/models/masks").text)["id"] == "masks"
    assert json.loads(ask(site.port, "/health").text)["status"] == "ok"


def test_the_chat_endpoint_says_that_these_are_base_models(site):
    assert "base models" in message(ask(site.port, "/v1/chat/completions", {"model": "masks", "messages": []}), 404)


@pytest.mark.parametrize("field", ["best_of", "logprobs", "echo", "user", "<script>alert(1)</script>"])
def test_an_unsupported_field_is_refused_by_its_name(site, field):
    assert field in message(ask(site.port, "/v1/completions", {"model": "masks", field: 1}), 400, field)


WRONG = [
    ("/api/draw", {"flow": "masks", "steps": 65}, 400, "steps"),
    ("/api/draw", {"flow": "masks", "steps": 0}, 400, "steps"),
    ("/api/draw", {"flow": "masks", "steps": True}, 400, "steps"),
    ("/api/draw", {"flow": "masks", "steps": "8"}, 400, "steps"),
    ("/api/draw", {"flow": "masks", "length": 65}, 400, "length"),
    ("/api/draw", {"flow": "masks", "eta": -1}, 400, "eta"),
    ("/api/draw", {"flow": "masks", "top_p": 0}, 400, "top_p"),
    ("/api/draw", {"flow": "masks", "seed": 1 << 63}, 400, "seed"),
    ("/api/draw", {"flow": "masks", "sampler": "\x1b[31m"}, 400, "sampler"),
    ("/api/draw", {"flow": "letters", "sampler": "random_order"}, 400, None),
    ("/api/draw", {"flow": "masks", "prompt": []}, 400, "prompt"),
    ("/api/draw", {"flow": "masks", "prompt": [{"id": 1}]}, 400, "prompt"),
    ("/api/draw", {"flow": "masks", "prompt": [{"id": 16}, None]}, 400, "prompt"),
    ("/api/draw", {"flow": "masks", "prompt": [{"text": "Ж"}, None]}, 400, "prompt"),
    ("/api/draw", {"flow": "../../etc/passwd"}, 404, "flow"),
    ("/api/draw", {}, 400, "flow"),
    ("/api/tokens", {"flow": "masks", "text": "\ud800"}, 400, "text"),
    ("/v1/completions", {"model": "other"}, 404, "model"),
    ("/v1/completions", {"model": "masks", "n": 5}, 400, "n"),
    ("/v1/completions", {"model": "masks", "prompt": [[1], [2], [3]], "n": 2}, 400, "n"),
    ("/v1/completions", {"model": "masks", "prompt": [99]}, 400, "prompt"),
    ("/v1/completions", {"model": "masks", "max_tokens": 65}, 400, "max_tokens"),
    ("/v1/completions", {"model": "masks", "stop": ["a"] * 5}, 400, "stop"),
    ("/v1/completions", {"model": "masks", "stop": ""}, 400, "stop"),
    ("/v1/completions", {"model": "masks", "stream_options": {"hops": True}}, 400, "stream_options"),
]


@pytest.mark.parametrize(("path", "content", "status", "param"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_value_is_refused_with_its_name(site, path, content, status, param):
    message(ask(site.port, path, content), status, param)


WRONG_LISTS = [
    ({"stop": ["a"] * 5}, "at most 4 items"),
    ({"prompt": ["a", 1]}, "string, got 1."),
    ({"prompt": [True]}, "string, got true."),
]


@pytest.mark.parametrize(("content", "told"), WRONG_LISTS, ids=str)
def test_an_error_within_a_list_is_named(site, content, told):
    assert told in message(ask(site.port, "/v1/completions", {"model": "masks", **content}), 400, next(iter(content)))


RAW = [
    (b"", 400),
    (b"[]", 400),
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b'{"flow": NaN}', 400),
    (b"[" * 2000, 400),
    (b'{"a":' * 600 + b"1" + b"}" * 600, 400),
    (b'{"seed": ' + b"9" * 4000 + b"}", 400),
    (b"x" * 5000, 413),
]


@pytest.mark.parametrize(("raw", "status"), RAW, ids=lambda value: str(value)[:20])
def test_a_body_that_is_not_a_small_json_object_is_refused(site, raw, status):
    message(ask(site.port, "/api/draw", raw=raw), status)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "user@127.0.0.1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "192.168.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_request_of_another_site_is_refused(site, headers, status):
    message(ask(site.port, "/api/draw", {"flow": "masks"}, headers), status)


def test_a_page_of_this_server_and_forwarded_ports_may_ask(site):
    for host in (f"127.0.0.1:{site.port}", "localhost:9000"):
        answer = ask(site.port, "/api/flows", headers={"Host": host, "Origin": f"http://{host}"})
        assert answer.status == 200
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/static/..%2fapp.py", "/static/../app.py", "/static//etc/passwd", "/static/%00", "/x"]
)
def test_no_path_of_a_request_is_opened(site, path):
    message(ask(site.port, path), 404)


def test_a_server_with_a_token_wants_it_everywhere_but_on_the_page(flows):
    with running(list(flows.values()), TOKEN) as site:
        for path in ("/api/flows", "/v1/models"):
            message(ask(site.port, path), 401)
            message(ask(site.port, path, headers={"Authorization": "Bearer secre"}), 401)
            assert ask(site.port, path, headers={"Authorization": f"Bearer {TOKEN}"}).status == 200
        assert ask(site.port, "/health").status == 200


def test_many_clients_at_once_get_what_generate_draws_also_while_others_leave(site, flows):
    asked = [{"flow": name, "length": 12, "steps": 16, "seed": seed} for seed in range(20) for name in flows]
    found = {}

    def client(number, content):
        if number % 4 == 0:  # leaves after the first bytes
            connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
            connection.request("POST", "/api/draw", json.dumps(content), {"Content-Type": "application/json"})
            connection.getresponse().read(10)
            connection.close()
            return
        found[number] = events(ask(site.port, "/api/draw", content).text)[-1]

    threads = [threading.Thread(target=client, args=each) for each in enumerate(asked)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 30
    for number, (name, end) in found.items():
        content = asked[number]
        flow = flows[content["flow"]]
        out = hf.generate(flow.model, flow.flow, n=1, length=12, steps=16, seed=content["seed"])
        assert name == "end"
        assert [token for token, _ in end["tokens"]] == out.tokens[0].tolist()
    site.wait_until_idle()


def test_a_client_that_leaves_stops_its_work_and_a_full_queue_says_when_to_come_back(flows):
    calls, go = [], threading.Semaphore(0)
    flow = flows["letters"]

    class Slow(torch.nn.Module):
        def forward(self, xt, t):
            calls.append(len(xt))
            assert go.acquire(timeout=60)
            return flow.model(xt, t)

    slow = ServedFlow("slow", "runs/slow", Slow(), flow.flow, LETTERS, LENGTH, torch.device("cpu"))
    with running([slow], limits=Limits(queue=1)) as site:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        body = json.dumps({"flow": "slow", "length": 12, "steps": 30})
        connection.request("POST", "/api/draw", body, {"Content-Type": "application/json"})
        stream = connection.getresponse()
        busy = ask(site.port, "/api/draw", {"flow": "slow"})
        assert "busy" in message(busy, 429)
        assert int(busy.headers["Retry-After"]) >= 1
        go.release()
        stream.readline()
        while len(calls) < 2:
            time.sleep(0.01)
        stream.close()
        connection.close()
        time.sleep(0.3)  # the server notices the closed connection during the second call
        go.release(100)
        site.wait_until_idle()
        assert len(calls) == 2


@pytest.mark.parametrize("path", ["/v1/completions", "/api/draw"])
def test_a_stream_that_the_server_ends_says_so(flows, path):
    flow, go = flows["letters"], threading.Semaphore(1)

    class Slow(torch.nn.Module):
        def forward(self, xt, t):
            assert go.acquire(timeout=60)
            return flow.model(xt, t)

    slow = ServedFlow("slow", "runs/slow", Slow(), flow.flow, LETTERS, LENGTH, torch.device("cpu"))
    with running([slow]) as site:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        of_path = {"flow": "slow"} if path == "/api/draw" else {"model": "slow", "stream": True}
        body = json.dumps({**of_path, "steps": 30})
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        stream = connection.getresponse()
        site.application.worker.stop()
        go.release(100)
        last = stream.read().decode().split("\n\n")[-2]
        connection.close()
    assert "the server stopped this request" in last
    assert "[DONE]" not in last


def test_openais_client_completes_streams_and_fills_in_the_middle(site):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{site.port}/v1", api_key="none", max_retries=0) as client:
        asked = {"model": "masks", "prompt": "ab", "suffix": "ba", "max_tokens": 8, "seed": 3}
        complete = client.completions.create(**asked, extra_body={"steps": 8})
        streamed = client.completions.create(**asked, extra_body={"steps": 8}, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == complete.choices[0].text
        assert complete.usage.calls <= 8
        assert [model.id for model in client.models.list()] == ["masks", "letters"]
        with pytest.raises(openai.BadRequestError, match="'best_of' is not supported"):
            client.completions.create(**asked, best_of=2)
        with pytest.raises(openai.NotFoundError, match="base models"):
            client.chat.completions.create(model="masks", messages=[])


class Broken(torch.nn.Module):
    """A network with a bug."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, xt, t):
        raise ZeroDivisionError("a bug")


def test_a_bug_in_a_network_is_reported_and_the_server_goes_on(flows):
    with running([replace(flows["letters"], model=Broken())]) as site:
        assert "ZeroDivisionError" in ask(site.port, "/api/draw", {"flow": "letters", "length": 4, "steps": 2}).text
        assert [type(error) for error in site.failures] == [ZeroDivisionError]
        assert ask(site.port, "/health").status == 200


def test_a_port_in_use_is_refused_before_anything_is_loaded():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match="is in use"):
            check_address("127.0.0.1", taken.getsockname()[1], None)
