"""`hopflow bench serve` times the same work in each way; no test checks a speed."""

import pytest

import hopflow as hf

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from hopflow.bench import serve
from hopflow.bench.serve import ALONE, AT_ONCE, ServingCase, ratios

CASE = ServingCase(n=5, clients=3, length=8, tokens=40, steps=4, sources=("mask",))


def test_every_way_draws_the_same_sequences(monkeypatch):
    drawn = []
    generate = hf.generate

    def recording(*arguments, **options):
        drawn.append(generate(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(serve, "generate", recording)
    rows = serve.run(CASE)
    assert [row.way for row in rows] == [ALONE, "server, one client", "server, 3 clients", AT_ONCE]
    assert [len(out.tokens) for out in drawn] == [1, *([1, 1, 2] * 2), 1, 1]  # two, two and one in turns
    for row in rows:
        assert row.requests_per_s > 0
        if "server" in row.way:
            assert 0 < row.first_frame_ms <= row.slowest_first_frame_ms
    assert dict(ratios(rows))[rows[0]] == 1


def test_a_request_that_fails_is_no_measurement(monkeypatch):
    monkeypatch.setattr(serve, "NAME", "other")
    case, answers = CASE, []

    class Refusing(serve.ServedFlow):
        def tokens(self, ids):
            answers.append(ids)
            raise ValueError("no")

    monkeypatch.setattr(serve, "ServedFlow", Refusing)
    with pytest.raises(Exception, match=r"status|IncompleteRead"):
        serve.run(case)
    assert answers


@pytest.mark.parametrize("wrong", [{"n": 0}, {"clients": 0}, {"steps": 0}])
def test_wrong_cases_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be an integer ≥ 1, got 0"):
        ServingCase(**wrong)
