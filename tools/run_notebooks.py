"""Run the notebooks of docs/notebooks and keep what they print and draw, without Jupyter.

`python tools/run_notebooks.py [NAME …]`
Cells run in order in one namespace. What is printed becomes a stream, each figure that is open at the end of a cell a
PNG.
"""

import base64
import io
import json
import sys
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def main(names: list) -> None:
    for file in sorted(FOLDER.glob("*.ipynb")):
        if not names or file.stem in names:
            notebook = json.loads(file.read_text(encoding="utf-8"))
            run(notebook)
            file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB")


def run(notebook: dict) -> None:
    """Fill in the outputs of every code cell."""
    namespace: dict = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with TemporaryDirectory() as folder, chdir(folder):
        for number, cell in enumerate(cells, 1):
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
            cell["execution_count"] = number
            cell["outputs"] = [*stream(printed.getvalue()), *figures()]


def stream(text: str) -> list:
    return [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []


def figures() -> list:
    """The open figures, closed."""
    outputs = []
    for number in pyplot.get_fignums():
        figure, png = pyplot.figure(number), io.BytesIO()
        figure.savefig(png, format="png", dpi=100, facecolor="white")
        pyplot.close(figure)
        data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": [figure.get_label() or "figure"]}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return outputs


if __name__ == "__main__":
    main(sys.argv[1:])
