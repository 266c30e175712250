"""Set up .venv with the tested set of packages; called by make, or as `python3 tools/set_up.py`.

Standard library only, and no syntax newer than Python 3.6, so that an old Python can say that it is too old.
A second call is instant: .venv/set_up.stamp names what the environment was built from.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from subprocess import DEVNULL, PIPE, STDOUT

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
INPUTS = ("pyproject.toml", "constraints.txt")
OLDEST, NEWEST = (3, 11), (3, 14)  # NEWEST: the last Python with a wheel of the torch in constraints.txt
NEEDED_BYTES = 4 * 1024**3
PIP_PATHS = ("PIP_CERT", "PIP_CLIENT_CERT", "PIP_CONFIG_FILE", "PIP_CONSTRAINT", "PIP_FIND_LINKS")
NETWORK = (
    "Failed to establish a new connection",
    "Max retries exceeded",
    "Connection refused",
    "Connection reset",
    "Network is unreachable",
    "Name or service not known",
    "name resolution",
    "ProxyError",
    "timed out",
    "Remote end closed connection",
    "SSLError",
)


class Problem(Exception):
    """What happened, why, and what to do, in at most six lines."""


def main():
    try:
        set_up()
    except Problem as problem:
        say(str(problem), sys.stderr)
        return 3
    except KeyboardInterrupt:
        say("interrupted; the same command carries on", sys.stderr)
        return 4
    return 0


def set_up():
    asked = "PYTHON" in os.environ  # make passes it on: the user chose this interpreter
    if is_ready() and not (asked and venv_version() != python_version()):
        return
    check_python(sys.version_info[:2])
    check_venv_module()
    check_disk(shutil.disk_usage(ROOT).free)
    make_venv()
    install()
    check_import()
    with open(stamp_file(), "w") as file:
        file.write(fingerprint())
    say(".venv is ready")


# what is there


def fingerprint():
    digest = hashlib.sha256(ROOT.encode())  # a moved clone needs its scripts written anew
    for name in INPUTS:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def stamp_file():
    return os.path.join(VENV, "set_up.stamp")


def busy_file():
    return os.path.join(VENV, "set_up.busy")


def venv_python():
    return os.path.join(VENV, "bin", "python")


def is_ready():
    try:
        with open(stamp_file()) as file:
            return file.read() == fingerprint() and os.path.exists(venv_python())
    except OSError:
        return False


def python_version():
    return "%d.%d" % sys.version_info[:2]


def venv_version():
    """The version of .venv's Python, or None where there is no working one with pip."""
    if not os.path.exists(venv_python()):
        return None
    code = "import pip, sys; print('%d.%d' % sys.version_info[:2])"
    run = run_python(venv_python(), "-c", code, stderr=DEVNULL)
    return run.stdout.decode().strip() if run.returncode == 0 else None


# what can be wrong before the work


def check_python(version):
    if OLDEST <= version <= NEWEST:
        return
    raise Problem(
        "this is Python %d.%d (%s), which is too %s.\n"
        % (version + (sys.executable, "old" if version < OLDEST else "new: torch has no build for it yet"))
        + "hopflow needs Python %d.%d to %d.%d.\n" % (OLDEST + NEWEST)
        + (
            "One is installed here. Run: PYTHON=%s make test" % other_python()
            if other_python()
            else "Install one (system packages, pyenv, uv or conda), then run: PYTHON=python3.12 make test"
        )
    )


def other_python():
    """A suitable interpreter on the PATH, to name in the message."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = "python3.%d" % minor
        # it has to run: version managers leave stubs on the PATH that only complain
        if shutil.which(name) and run_python(name, "-c", "", stderr=DEVNULL).returncode == 0:
            return name
    return None


def check_venv_module():
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return
    raise Problem(
        "this Python (%s) cannot make virtual environments: venv or ensurepip is missing.\n" % sys.executable
        + "Linux distributions package them apart.\n"
        + "Debian, Ubuntu: sudo apt install python%s-venv\n" % python_version()
        + "elsewhere: install the full Python, or use another one: PYTHON=python3.12 make test"
    )


def check_disk(free):
    if free < NEEDED_BYTES:
        raise disk_problem("%.1f GiB are free, at least %.0f GiB are needed" % (free / 1024**3, NEEDED_BYTES / 1024**3))


def disk_problem(why):
    return Problem(
        "the disk is (nearly) full: %s.\n" % why
        + "torch is large: the packages go to .venv, downloads to pip's cache and the temporary folder.\n"
        + "Free some space (`pip cache purge` helps) or set TMPDIR and PIP_CACHE_DIR to a larger disk,\n"
        + "then run the same command again."
    )


# the work


def make_venv():
    """Keep a working .venv of the right Python; make anew one that is missing, broken or half-made."""
    version = venv_version()
    interrupted = os.path.exists(busy_file())
    if version == python_version() and not interrupted:
        say("using .venv (Python %s)" % version)
        return
    again = "again (the last set-up was interrupted) " if interrupted else ""
    say("making .venv %swith Python %s" % (again, python_version()))
    run = run_python(sys.executable, "-m", "venv", "--clear", VENV)
    if run.returncode:
        text = run.stdout.decode(errors="replace")
        if "No space left" in text:
            raise disk_problem(last_line(text))
        raise Problem(
            "the virtual environment .venv could not be made.\nwhy: %s\n" % last_line(text)
            + "Debian, Ubuntu: sudo apt install python%s-venv; then run the same command again." % python_version()
        )


def install():
    say("installing hopflow and the tested packages (torch is large: minutes the first time)")
    command = [venv_python(), "-P", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["-c", os.path.join(ROOT, "constraints.txt"), "-e", ROOT + "[dev,docs]"]
    # a kill -9 between two packages leaves this file: the next set-up then starts from nothing
    open(busy_file(), "w").close()
    code, text = run_pip(command)
    os.remove(busy_file())
    if code:
        raise explain_pip(text)


def run_pip(command):
    """Run pip with a sign of life at least every ten seconds; return its exit code and what it said."""
    with tempfile.TemporaryDirectory(prefix="hopflow-") as empty:
        return watch_pip(subprocess.Popen(command, cwd=empty, env=pip_environment(), stdout=PIPE, stderr=STDOUT))


def watch_pip(pip):
    start, lines = time.time(), []

    def read():
        for raw in pip.stdout:
            line = raw.decode(errors="replace").strip()
            lines.append(line)
            if line.startswith(("Downloading", "Using cached", "WARNING: Retrying")):
                say("  " + line[:100])
            elif line.startswith("Installing collected packages"):
                say("  unpacking %d packages" % (line.count(",") + 1))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        while reader.is_alive():
            seen = len(lines)
            reader.join(10)
            if reader.is_alive() and len(lines) == seen:
                say("  still working, %d s" % (time.time() - start))
    except KeyboardInterrupt:
        pip.terminate()
        raise
    return pip.wait(), "\n".join(lines)


def explain_pip(text):
    """The one problem behind pip's pages."""
    if "No space left" in text:
        return disk_problem("pip stopped with 'No space left on device'")
    if any(sign in text for sign in NETWORK):
        return Problem(
            "the package index cannot be reached (network, proxy or firewall).\n"
            "Retry: run the same command again; behind a proxy set HTTPS_PROXY first.\n"
            "Without a network: on a connected machine with the same system and Python run\n"
            "  pip download -d wheels -c constraints.txt '.[dev,docs]' hatchling editables\n"
            "copy the folder wheels here, and run\n"
            "  PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels make test"
        )
    if "No matching distribution" in text:
        return Problem(
            "pip found no build of a package for this Python (%s) and system.\n" % python_version()
            + "why: %s\n" % last_line(text)
            + "Try another Python: PYTHON=python3.12 make test\n"
            + "With PIP_NO_INDEX set, the wheel is missing from the PIP_FIND_LINKS folder."
        )
    return Problem(
        "pip could not install the packages.\nwhy: %s\n" % last_line(text)
        + "See it all: .venv/bin/python -m pip install -c constraints.txt -e '.[dev,docs]'\n"
        + "Start afresh: rm -rf .venv, then run the same command again."
    )


def check_import():
    code = "import torch, hopflow"
    run = run_python(venv_python(), "-c", code)
    if run.returncode:
        raise Problem(
            "the packages are installed but torch or hopflow cannot be imported.\n"
            + "why: %s\n" % last_line(run.stdout.decode(errors="replace"))
            + "Start afresh: rm -rf .venv, then run the same command again.\n"
            + "If it stays: report it with the output of .venv/bin/hopflow doctor"
        )


# child processes: -P and an empty folder, so that no file of the working directory is run as a module


def run_python(python, *arguments, **options):
    with tempfile.TemporaryDirectory(prefix="hopflow-") as empty:
        options = dict({"stdout": PIPE, "stderr": STDOUT}, **options)
        return subprocess.run((python, "-P") + arguments, cwd=empty, **options)


def pip_environment():
    """What is named relative to the clone, made absolute: pip runs in another folder."""
    found = {name: os.environ[name] for name in PIP_PATHS if name in os.environ}
    return dict(os.environ, **{name: " ".join(map(absolute, value.split())) for name, value in found.items()})


def absolute(word):
    path = os.path.join(ROOT, word)
    return path if os.path.exists(path) else word


# words


def last_line(text):
    """pip's and Python's last error line, cut to a readable length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    chosen = (errors or lines or ["no reason given"])[-1]
    return chosen if len(chosen) <= 200 else chosen[:197] + "..."


def say(text, stream=None):
    print("set-up: " + text, file=stream or sys.stdout)
    (stream or sys.stdout).flush()


if __name__ == "__main__":
    sys.exit(main())
