"""tools/kernel_parts.py runs, switches parts off and on, and writes its rows; no test checks a speed."""

import json
import sys
from pathlib import Path

import pytest

from hopflow.kernels import Kernels, switch

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def kernel_parts(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import kernel_parts

    yield kernel_parts
    sys.modules.pop("kernel_parts")


def test_blocks_with_a_part_on_and_off_alternate_and_are_written(kernel_parts, tmp_path, monkeypatch):
    seen = []
    block = kernel_parts.TransportCost.block
    monkeypatch.setattr(
        kernel_parts.TransportCost, "block", lambda self: (seen.append(switch.current.embedding), block(self))[1]
    )
    out = tmp_path / "parts.json"
    arguments = ["--tiny", "--workloads", "ot", "--blocks", "3", "--device", "cpu", "--out", str(out)]
    (row,) = kernel_parts.main(arguments)
    assert seen == [True, False, False, True, True, False]
    assert switch.current == Kernels()
    assert row.error is None
    (written,) = json.loads(out.read_text())["rows"]
    assert (written["part"], len(written["on"]), len(written["off"])) == ("embedding", 3, 3)
    assert written["on_mean"] == pytest.approx(sum(row.on) / 3)


def test_a_part_that_fails_is_recorded_and_the_next_one_is_measured(kernel_parts, tmp_path, monkeypatch):
    prepare = kernel_parts.Bounds.prepare

    def fail_without_divergence(workload):
        if not switch.current.divergence:
            raise RuntimeError("no memory")
        prepare(workload)

    monkeypatch.setattr(kernel_parts.Bounds, "prepare", fail_without_divergence)
    arguments = ["--tiny", "--workloads", "bounds", "--parts", "divergence", "gelu_mlp+short_attention"]
    failed, measured = kernel_parts.main([*arguments, "--blocks", "1", "--device", "cpu", "--out", str(tmp_path / "x")])
    assert failed.error == "RuntimeError: no memory"
    assert (measured.part, measured.error, len(measured.off)) == ("gelu_mlp+short_attention", None, 1)


def test_no_measurement_starts_after_the_time_limit(kernel_parts, tmp_path):
    out = tmp_path / "parts.json"
    assert kernel_parts.main(["--tiny", "--seconds", "-1", "--device", "cpu", "--out", str(out)]) == []
    assert json.loads(out.read_text())["rows"] == []


def test_an_unknown_part_to_time_is_rejected(kernel_parts, capsys):
    with pytest.raises(SystemExit):
        kernel_parts.main(["--parts", "attention"])
    assert "unknown parts: attention" in capsys.readouterr().err
