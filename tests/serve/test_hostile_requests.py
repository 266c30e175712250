"""Hostile requests: each gets a 4xx of one line, or no answer if it is incomplete, and the server goes on."""

import http.client
import json
import socket
import unicodedata
from types import SimpleNamespace

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from live_server import LIMITS, ask, events, running, two_flows

SCRIPT, ANSI, RIGHT_TO_LEFT = "<script>alert(1)</script>", "\x1b[2J\x1b]0;x\x07", "\u202egnp.exe"
BODY_LIMIT = LIMITS.body
LONGEST_ANSWER = 800

PATHS = [
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/app.py",
    "/static/..%5capp.py",
    "/static/%2fetc%2fpasswd",
    "/static//etc/passwd",
    "/static/....//app.py",
    "/static/%00",
    "/static/index.html%00.js",
    "/static/%c0%ae%c0%ae/app.py",
    "/static/" + "a" * 4000,
    "/static/",
    "/../../etc/passwd",
    "//etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/etc/passwd",
    "/health/",
    "/v1/models/..%2f..%2fetc%2fpasswd",
    "/v1/models/../../etc/passwd",
    "/v1/models/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
    "/v1/models/%1b%5b2J",
    "/v1/models/%ff%fe",
    "/v1/models/%E2%80%AE",
    "/v1/models/%ED%A0%80",
    "/v1/models/" + "%20" * 900,
    "/v1/engines",
    "/docs",
    "/openapi.json",
    "/redoc",
    "/favicon.ico/..",
    "/.git/config",
    "/wp-login.php",
    "*",
    "http://evil.example/",
    "http://127.0.0.1:1/api/flows/x",
]
HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "user@127.0.0.1",
    "",
    "192.168.0.1",
    "0.0.0.0",
    "[::ffff:192.168.0.1]",
    "127.0.0.1:port",
    "127.0.0.1:99999999",
    "127.0.0.1 evil.example",
    "127.0.0.1/evil",
    "127.0.0.1#evil",
    "localhost.",
    "2130706433",
    "0x7f.1",
    SCRIPT,
    "\xff\xfe",
    "a" * 4000,
]
ORIGINS = [
    "http://evil.example",
    "https://127.0.0.1.evil.example",
    "null",
    "file://",
    "http://127.0.0.1:1",
    "http://user@127.0.0.1",
    "",
    SCRIPT,
    "\xff",
]
STRINGS = [
    SCRIPT,
    ANSI,
    RIGHT_TO_LEFT,
    "\0",
    "\ud800",
    "../../etc/passwd",
    "a\nb: c",
    "${jndi:ldap://x}",
    "'; DROP --",
    "Ж" * 900,
]
BODIES = [
    b"",
    b"[]",
    b"null",
    b"true",
    b"1",
    b'"text"',
    b"{",
    b"}",
    b"{}{}",
    b"{'flow': 'masks'}",
    b"\xff\xfe{\x00}\x00",
    b"\xef\xbb\xbf{}",
    b'{"flow": "\xff"}',
    b'{"flow": "\xed\xa0\x80"}',
    b'{"flow": NaN}',
    b'{"flow": "masks", "eta": Infinity}',
    b'{"flow": "masks", "eta": 1e999}',
    b'{"flow": "masks", "eta": -1e999}',
    b'{"flow": "masks", "temperature": 1e999}',
    b'{"flow": "masks", "seed": ' + b"9" * 3000 + b"}",
    b'{"flow": "masks", "steps": 1e3}',
    b'{"flow": "masks", "steps": 99999999999999999999}',
    b'{"flow": "masks", "length": 99999999999999999999}',
    b"[" * 2000,
    b"[" * 2000 + b"]" * 2000,
    b'{"a":' * 600 + b"1" + b"}" * 600,
    b'{"flow": "masks", "prompt": ' + b"[" * 150 + b"]" * 150 + b"}",
    b'{"flow": "masks", "flow": ["masks"]}',
    b"\0" * 100,
    b"flow=masks",
    b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]><x>&y;</x>",
    b"x" * (BODY_LIMIT + 1),
    b'{"flow": "' + b"a" * (4 * BODY_LIMIT) + b'"}',
]
FIELDS: list[tuple[str, object]] = [
    *[("steps", value) for value in (0, -1, 65, 1.5, True, "8", [], {}, 1 << 62)],
    *[("length", value) for value in (0, -1, 65, 1.5, True, "8", [])],
    *[("seed", value) for value in (-1, 1 << 63, 0.5, "0", [0])],
    *[("eta", value) for value in (-1, "1", [1.0], True)],
    *[("temperature", value) for value in (-1, "1", {})],
    *[("top_p", value) for value in (0, -1, 1.1, "1")],
    *[("sampler", value) for value in (1, "Euler", "os.system", *STRINGS[:6])],
    *[
        ("prompt", value)
        for value in ("text", [], [1], [[None]], [{}], [{"id": -1}], [{"id": 99}], [{"id": 1, "text": "a"}])
    ],
    *[("prompt", [{"text": value}, None]) for value in ("", *STRINGS)],
    *[("prompt", [None] * 65), ("prompt", [{"id": 1}]), ("prompt", [{"path": "/etc/passwd"}, None])],
    *[(name, 1) for name in ("__class__", "model_config", "guidance", "batch", *STRINGS)],
]
COMPLETION_FIELDS: list[tuple[str, object]] = [
    *[("model", value) for value in (1, None, [], {"$ne": 1}, *STRINGS)],
    *[
        ("prompt", value)
        for value in (1, {}, [], [None], [[]] * 5, [1, "a"], [-1], [99], ["a"] * 5, "Ж", "\ud800", "a" * 70)
    ],
    *[("n", value) for value in (0, -1, 5, "1", 1 << 62)],
    *[("max_tokens", value) for value in (0, -1, 65, "5", 1 << 62)],
    *[("stop", value) for value in ("", [""], ["a"] * 5, 1, ["a" * 300], {})],
    *[("stream", value) for value in ("true", 1)],
    *[("stream_options", value) for value in (True, {"hops": True}, {"other": True}, {"hops": 1})],
    *[(name, 1) for name in ("best_of", "echo", "logprobs", "user", "messages", "tools", "logit_bias", SCRIPT)],
]


@pytest.fixture(scope="module")
def site():
    with running(list(two_flows().values())) as found:
        yield found
    assert found.failures == []


def exchange(port: int, raw: bytes) -> SimpleNamespace:
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(raw)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())


def answer_to_half(port: int, raw: bytes) -> bytes:
    """What the server answers to a request that does not end; nothing if it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(65536)
        except TimeoutError:
            raise
        except OSError:  # a connection that was reset cannot be shut down either
            return b""


def request(line: str, body: bytes | None = None, **headers: str) -> bytes:
    """The bytes of a request with correct headers, but for those that are passed."""
    found = {"Host": "localhost", "Connection": "close"}
    if body is not None:
        found |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    found |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in found.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + (body or b"")


def dumped(content: object) -> bytes:
    return json.dumps(content).encode()


def cases() -> dict[str, bytes]:
    """All requests by a name."""
    draw, found = dumped({"flow": "masks", "length": 4, "steps": 1}), {}
    for path in PATHS:
        found[f"GET {path[:60]}"] = request(f"GET {path}")
    for host in HOSTS:
        found[f"Host {host[:40]}"] = request("POST /api/draw", draw, Host=host)
    for origin in ORIGINS:
        found[f"Origin {origin}"] = request("POST /api/draw", draw, Origin=origin)
    for number, body in enumerate(BODIES):
        found[f"body {number} {body[:40]!r}"] = request("POST /api/draw", body)
        found[f"completion body {number} {body[:40]!r}"] = request("POST /v1/completions", body)
    for name, value in FIELDS:
        content = {"flow": "masks", name: value}
        found[f"draw {name[:20]!r} {str(value)[:40]!r}"] = request("POST /api/draw", dumped(content))
    for name, value in COMPLETION_FIELDS:
        content = {"model": "masks", name: value}
        found[f"completion {name[:20]!r} {str(value)[:40]!r}"] = request("POST /v1/completions", dumped(content))
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        for path in ("/", "/api/draw", "/v1/completions"):
            found[f"{method} {path}"] = request(f"{method} {path}")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        found[f"type {kind}"] = request("POST /api/draw", draw, Content_Type=kind)
    found["GET /api/draw"] = request("GET /api/draw")
    found["POST /health"] = request("POST /health", b"{}")
    found["chat"] = request("POST /v1/chat/completions", dumped({"model": "masks", "messages": []}))
    head = b"POST /api/draw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found["length -1"] = head + b"Content-Length: -1\r\n\r\n"
    found["length text"] = head + b"Content-Length: many\r\n\r\n"
    found["two lengths"] = head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"
    found["length and chunks"] = head + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    found["chunks without size"] = head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"
    found["chunks beyond the limit"] = (
        head + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n" * 9
    )
    found["two hosts"] = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    found["no host"] = b"GET / HTTP/1.1\r\n\r\n"
    found["no host, HTTP/1.0"] = b"GET / HTTP/1.0\r\n\r\n"
    found["header without colon"] = b"GET / HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n"
    found["folded header"] = b"GET /x HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\nConnection: close\r\n\r\n"
    found["control in a header"] = b"GET / HTTP/1.1\r\nHost: localhost\r\nA: \x00\x1b[2J\r\n\r\n"
    found["no method"] = b"/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
    found["HTTP/2"] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    found["TLS"] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200
    found["binary"] = bytes(range(256)) * 4 + b"\r\n\r\n"
    found["websocket"] = request(
        "GET /api/draw",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="x" * 24,
    )
    return found


INCOMPLETE = {
    "large header": b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 1_000_000,
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200_000,
    "long line": b"GET /" + b"a" * 1_000_000,
    "half a line": b"GET / HT",
    "half a head": b"GET / HTTP/1.1\r\nHost: loc",
    "half a body": b"POST /api/draw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99\r\n\r\n{",
    "half a chunk": b"POST /api/draw HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
}


def refusal(answer: SimpleNamespace) -> str:
    """What is wrong with an answer, which has to be a 4xx of one line without control characters."""
    text = answer.body.decode()
    if not 400 <= answer.status < 500:
        return f"status {answer.status}"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text):
        return f"control characters: {text!r}"
    if answer.headers["Content-Type"] != "application/json":  # refused by uvicorn, before hopflow has seen it
        return "" if text == "Invalid HTTP request received." else text
    error = json.loads(text)["error"]
    if not error["message"].isprintable() or len(text) > LONGEST_ANSWER:
        return f"message: {text}"
    safe = answer.headers["Content-Security-Policy"].startswith("default-src 'self'")
    return "" if safe and answer.headers["X-Content-Type-Options"] == "nosniff" else "no security headers"


def test_hostile_requests_are_refused_in_one_line_and_the_server_goes_on(site):
    found = cases()
    assert len(found) > 200
    wrong = {name: problem for name, raw in found.items() if (problem := refusal(exchange(site.port, raw)))}
    assert wrong == {}
    assert_as_before(site)


def test_incomplete_requests_end_with_their_connection(site):
    for name, raw in INCOMPLETE.items():
        answer = answer_to_half(site.port, raw)
        assert not answer or answer[9:10] == b"4", name
    assert_as_before(site)


def assert_as_before(site) -> None:
    """The server answers, and has no request left."""
    site.wait_until_idle()
    name, _ = events(ask(site.port, "/api/draw", {"flow": "masks", "length": 4, "steps": 1}).text)[-1]
    assert name == "end"
