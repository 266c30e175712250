"""What mkdocs does not do by itself: notebooks become pages, formulas MathML, citations of theory.md links.

A notebook is JSON with text, code and what the code printed or drew; no further package is needed to read it. MathML is
drawn by the browser itself, without scripts or fonts.
"""

import base64
import html
import json
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
PRIME = re.compile(r"<msup>(<mi>.</mi>)<mi>&#x02032;</mi></msup>")
"""Without a font for mathematics a superscript prime stands far above its letter."""
TAG = re.compile(r"\\tag\{(.*)\}")
FENCE = "````"
"""Longer than any fence inside a cell."""


def on_files(files, config):
    """Add a page, and its pictures, for each notebook. The notebook itself stays, to be downloaded."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        notebook = json.loads(file.content_string)
        page, pictures = rendered(notebook, Path(file.src_uri).stem)
        folder = Path(file.src_uri).parent
        files.append(File.generated(config, str(Path(file.src_uri).with_suffix(".md")), content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, str(folder / name), content=content))
    return files


def on_page_markdown(markdown, page, **_):
    """A link to a notebook, which a code host shows by itself, leads to its page."""
    return re.sub(r"\]\(([^):]+)\.ipynb\)", r"](\1.md)", markdown)


def on_page_content(html, page, **_):
    """Formulas are typeset. Docstrings say `theory.md (B)`; in the reference that is a link to The mathematics."""
    html = FORMULA.sub(lambda found: formula(found[2], display=found[1] == "div"), html)
    if not page.file.src_uri.startswith("api/"):
        return html
    return re.sub(r"(?<![/>])theory\.md(?![\w<\"])", '<a href="../theory.html">The mathematics</a>', html)


def formula(latex, display):
    """A formula, \\(…\\) or \\[…\\], as MathML; \\tag{F} becomes (F) at the right margin."""
    latex = html.unescape(latex)[2:-2].strip()
    tag = TAG.search(latex)
    math = convert(TAG.sub("", latex), display="block" if display else "inline")
    math = math.replace("<mi>log</mi>", '<mo lspace="0.17em" rspace="0.17em">log</mo>')  # as LaTeX spaces it
    math = PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x2b9;</mo></mrow>', math)
    if not display:
        return math
    label = f'<span class="tag">({tag[1]})</span>' if tag else ""
    return f'<div class="formula"><div>{math}</div>{label}</div>'


def rendered(notebook, name):
    """The page, and the pictures that it shows."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"{FENCE}python\n{source}\n{FENCE}")
        for output in cell["outputs"]:
            parts += shown(output, name, pictures)
    parts.append(f'<a href="{name}.ipynb" download>This page as a notebook</a>')
    return "\n\n".join(parts) + "\n", pictures


def shown(output, name, pictures):
    """What one output looks like: text as it was printed, a picture as a file."""
    if output["output_type"] == "stream":
        return [printed("".join(output["text"]))]
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}_{len(pictures) + 1}.png"
        pictures[file] = base64.b64decode("".join(data["image/png"]))
        return [f"![{html.escape(''.join(data.get('text/plain', 'figure')))}]({file})"]
    return [printed("".join(data["text/plain"]))] if "text/plain" in data else []


def printed(text):
    return f"{FENCE}text\n{text.rstrip()}\n{FENCE}"
