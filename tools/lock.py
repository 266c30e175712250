"""Write the development environment with hashes: `python tools/lock.py requirements.lock`.

Each line pins one package of constraints.txt to the file that pip would install here, by its sha256. The file is not
part of the repository: it holds for one Python, one system and one package index (builds of torch differ between
indexes). Make it once where you trust the index, review it, and use it everywhere else:

    pip install --require-hashes -r requirements.lock
    pip install --no-deps --no-build-isolation -e .
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ("hatchling>=1.27,<2", "editables")  # what `pip install -e .` needs without build isolation


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/lock.py FILE")
    target = Path(sys.argv[1]).absolute()
    target.write_text(locked(resolve()), encoding="utf-8")
    print("written:", target)


def resolve():
    """pip's report on what it would install into an empty environment."""
    with tempfile.TemporaryDirectory(prefix="hopflow-") as empty:
        report = Path(empty, "report.json")
        options = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--quiet", "--report", str(report)]
        command = [sys.executable, "-P", "-m", "pip", "install", *options, "-c", str(ROOT / "constraints.txt")]
        if subprocess.call([*command, f"{ROOT}[dev,docs]", *BUILD], cwd=empty):
            sys.exit("pip could not resolve the development environment")
        return json.loads(report.read_text(encoding="utf-8"))


def locked(report):
    """One line for each package, in the order of names; hopflow itself is the working copy and has no hash."""
    lines = []
    for package in report["install"]:
        name, version = package["metadata"]["name"], package["metadata"]["version"]
        if name == "hopflow":
            continue
        sha256 = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if not sha256:
            sys.exit("the package index gives no sha256 for " + name)
        lines.append(f"{name.lower()}=={version} --hash=sha256:{sha256}")
    environment = report["environment"]
    made_for = f"{environment['python_full_version']}, {environment['sys_platform']} {environment['platform_machine']}"
    return "\n".join([f"# by tools/lock.py for Python {made_for}", *sorted(lines), ""])


if __name__ == "__main__":
    main()
