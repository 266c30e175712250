"""The notebooks are whole and do what they say, in a small size; and they show what they last gave."""

import json

import matplotlib
import pytest
from pages import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SMALL = {
    "a_flow_in_ten_minutes": {"STEPS": 3, "SAMPLES": 2},
    "what_the_oracle_says": {"ETAS": (0.0, 1.0), "STEPS": (2, 4)},
}
"""What replaces the numbers of the cell that is tagged `parameters`."""
each_notebook = pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)


def cells(file, kind: str) -> list[dict]:
    return [cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


@each_notebook
def test_a_notebook_runs_from_top_to_bottom(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    matplotlib.use("agg")
    from matplotlib import pyplot

    namespace = {"__name__": "__main__"}
    for cell in cells(file, "code"):
        exec(compile("".join(cell["source"]), file.name, "exec"), namespace)
        if "parameters" in cell["metadata"].get("tags", ()):
            assert SMALL[file.stem].keys() <= namespace.keys()
            namespace |= SMALL[file.stem]
    assert pyplot.get_fignums()
    pyplot.close("all")


@each_notebook
def test_a_notebook_is_whole_small_and_shows_what_it_gave(file):
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert file.stat().st_size < 200_000
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    code = cells(file, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any(output["output_type"] == "stream" for output in outputs)
    assert all(output["output_type"] in ("stream", "display_data") for output in outputs)
