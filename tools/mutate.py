"""Change the package in small ways, and list the changes that no test notices: `make mutate seed=0 count=100`.

    python tools/mutate.py map                        run every fast test once; note failures, seconds, blocks
    python tools/mutate.py run --seed 0 --count 100   draw changes by seed, run the tests of each, list the survivors
    python tools/mutate.py show FILE...               the share noticed, and the survivors, of result files

Every change lives in a copy of the package in a temporary folder; the working tree is never touched. Results are
lines of JSON, written as they come: the same command goes on where it was stopped, and `--part 1/3` takes a third of
the draw. Needs pytest and what hopflow itself needs. A failed test counts only if it passes without the change.

`map` takes the time of the whole suite, and notes which blocks of code each test reaches: `run` starts with those that
reach the changed one. It may be left out or stopped: `run` takes all tests of a file that the map lacks, by a guess of
their time, and a change whose tests did not end in time counts as not noticed.
"""

import argparse
import difflib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
ROOT = TOOLS.parent
PACKAGE = ROOT / "src" / "hopflow"
sys.path.insert(0, str(TOOLS))

import mutate_blocks  # noqa: E402
import mutate_sites  # noqa: E402
import mutate_tests  # noqa: E402

BUILD = ROOT / "build" / "mutate"
FAILING, PASSING = BUILD / "failing.json", BUILD / "passing.json"  # tests, on the package as it is
NEAREST = 2  # test files that are tried first
GROUP = 8  # test files that `map` runs in one process
COLLECT = 0.3  # seconds to import one more test file
GUESS = 3000  # characters of a test file that is not mapped whose tests take a second
LARGEST_FILE = 4 << 30  # bytes that a changed program may write to one file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapping, running, showing = (commands.add_parser(name) for name in ("map", "run", "show"))
    for command in (mapping, running):
        command.add_argument("--jobs", type=int, default=max(1, os.cpu_count() or 1), help="processes at a time")
        command.add_argument("--map", type=Path, default=BUILD / "map.jsonl", help="what `map` writes and `run` reads")
        command.add_argument("--minutes", type=float, default=1e9, help="stop after this time")
    mapping.add_argument("--only", default="", help="only test files whose path starts with this")
    running.add_argument("--seconds", type=float, default=90, help="tests of so many seconds, at most, for one change")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--count", type=int, default=100)
    running.add_argument("--part", default="1/1", help="I/N: the I-th of N parts of the draw")
    running.add_argument("--out", type=Path, help="results; build/mutate/SEED.jsonl otherwise")
    running.add_argument("--only", default="", help="only changes whose file and line start with this, as bounds.py:12")
    showing.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "map":
        return map_tests(arguments.map, arguments.jobs, arguments.minutes, arguments.only)
    if arguments.command == "run":
        return run(arguments)
    return show(arguments.files)


def map_tests(out: Path, jobs: int, minutes: float, only: str = "") -> int:
    """Run groups of test files on a copy that notes its blocks; a file that the map already holds is not run again."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {line["file"] for line in read(out) if "file" in line}
    files = [file.relative_to(ROOT).as_posix() for file in mutate_tests.Imports(ROOT).tests]
    files = sorted((file for file in files if file not in known and file.startswith(only)), key=folder_and_name)
    groups = [files[i : i + GROUP] for i in range(0, len(files), GROUP)]
    end = time.monotonic() + 60 * minutes

    with tempfile.TemporaryDirectory(prefix="mutate-base-") as base:
        mutate_blocks.copy(PACKAGE, Path(base) / "hopflow")

        def one(group: list[str]) -> list[dict]:
            with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
                record, reached = Path(folder) / "record.jsonl", Path(folder) / "reached"
                variables = {"MUTATE_RECORD": str(record), "MUTATE_REACHED": str(reached)}
                code, tail = pytest(Path(folder), Path(base), group, end - time.monotonic(), **variables)
                lines = read(record)
            begun = list(dict.fromkeys(line["test"].split("::")[0] for line in lines))
            done = group if code in (0, 1, 5) else begun  # where pytest itself ended early, the next call goes on
            return [*lines, *({"file": name, "code": code, "tail": tail if code else ""} for name in done)]

        with ThreadPoolExecutor(jobs) as pool, out.open("a") as file:
            for done in as_completed([pool.submit(one, group) for group in groups if end > time.monotonic()]):
                for line in done.result():
                    line["first"] = line is done.result()[0]  # the places of names start again
                    print(json.dumps(line), file=file, flush=True)
    tests = [line for line in read(out) if "test" in line]
    passed = [line for line in tests if line["outcome"] == "passed"]
    print(f"{len(passed)} of {len(tests)} tests pass and are used; {sum(t['seconds'] for t in tests):.0f} s of tests")
    return 0


def folder_and_name(file: str) -> tuple[str, str]:
    return str(Path(file).parent), file


def run(arguments: argparse.Namespace) -> int:
    out = arguments.out or BUILD / f"{arguments.seed}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    tests, failing = Tests(arguments.map), set(read_list(FAILING))
    part, parts = map(int, arguments.part.split("/"))
    drawn = mutate_sites.draw(PACKAGE, arguments.seed, arguments.count)[part - 1 :: parts]
    known = {line["key"] for line in read(out)}
    todo = [site for site in drawn if site.key not in known and f"{site.path}:{site.line}".startswith(arguments.only)]
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="mutate-base-") as folder:
        base = Path(folder) / "hopflow"
        shutil.copytree(PACKAGE, base, ignore=shutil.ignore_patterns("__pycache__"))
        compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(base)]
        subprocess.run(compiling, check=True)
        with tempfile.TemporaryDirectory(prefix="mutate-") as collected:  # compiles with checked shapes, once
            pytest(Path(collected), base.parent, ["tests", "--collect-only"], 600)

        def one(site: mutate_sites.Site) -> dict | None:
            chosen, expected = tests.chosen(site, arguments.seconds)
            limit = min(90 + 3 * expected, end - time.monotonic())
            if limit <= 0:
                return None
            result = try_change(site, base, chosen, limit, failing)
            if result["outcome"] in ("hung", "unfinished") and limit < 90 + 3 * expected:
                return None  # not finished in time: the next call tries it
            return {"seed": arguments.seed, **result}

        with ThreadPoolExecutor(arguments.jobs) as pool, out.open("a") as file:
            for done in as_completed([pool.submit(one, site) for site in todo]):
                if result := done.result():
                    print(json.dumps(result), file=file, flush=True)
                    print(f"{result['outcome']:9} {result['path']}:{result['line']} {result['kind']}", flush=True)
    confirm(out)
    left = len({site.key for site in drawn} - {line["key"] for line in read(out)})
    if left:
        print(f"{left} changes are left; the same command goes on")
    return show([out])


class Tests:
    """The tests that pass without a change, and which of them to run for one."""

    def __init__(self, path: Path):
        self.imports = mutate_tests.Imports(ROOT)
        self.by_file: dict[str, list[dict]] = {}
        self.mapped = {line["file"] for line in read(path) if "file" in line}
        names: list[str] = []
        for line in read(path):
            if line.get("first"):
                names = []
            if "test" in line:
                names += line["names"]
                line["reached"] = {names[i] for i in line["reached"]}
                if line["outcome"] == "passed":
                    self.by_file.setdefault(line["test"].split("::")[0], []).append(line)

    def chosen(self, site: mutate_sites.Site, seconds: float) -> tuple[list[str], float]:
        """Tests of the files that import the module, nearest first, up to `seconds`; one file takes at most a third.

        Tests that reach the changed block come before the others of their file and its neighbors. A file's tests
        stay together, because they share fixtures.
        """
        block = mutate_blocks.block_of(PACKAGE, site)
        distances = {file: distance for distance, file in self.imports.ranked(site.path)}
        groups: list[tuple[bool, int, float, list[dict]]] = []
        for file in sorted({*distances, *self.by_file}):
            distance = distances.get(file, 3)
            if file not in self.mapped:
                text = (ROOT / file).read_text(encoding="utf-8")
                near = distance < 0 or site.function.split(".")[-1] in text or Path(site.path).stem in text
                if near or distance == 0:
                    groups.append((not near, min(distance, 2), len(text) / GUESS, [unmapped(file, len(text) / GUESS)]))
                continue
            tests = self.by_file.get(file, [])
            reaching = [test for test in tests if block in test["reached"]]
            others = [test for test in tests if block not in test["reached"]] if reaching or distance <= 0 else []
            for late, part in ((False, reaching), (True, others)):
                if part:
                    part.sort(key=lambda test: test["seconds"])
                    groups.append((late, min(distance, 2), sum(test["seconds"] for test in part), part))
        groups.sort(key=lambda group: group[:3])
        found, total = [], 0.0
        for *_, tests in groups:
            share = seconds / 3
            total += COLLECT
            for test in tests:
                if test["seconds"] <= min(share, seconds - total):
                    share -= test["seconds"]
                    total += test["seconds"]
                    found.append(test["test"])
        return found, total


def unmapped(file: str, seconds: float) -> dict:
    """A test file of which nothing is known, as one test."""
    return {"test": file, "seconds": seconds}


def try_change(site: mutate_sites.Site, base: Path, tests: list[str], limit: float, failing: set[str]) -> dict:
    source = (PACKAGE / site.path).read_bytes()
    changed = site.apply(source)
    diff = difflib.unified_diff(source.decode().splitlines(), changed.decode().splitlines(), n=0, lineterm="")
    result = {
        "key": site.key,
        "path": site.path,
        "line": site.line,
        "kind": site.kind,
        "function": site.function,
        "diff": [line for line in diff if not line.startswith(("---", "+++", "@@"))],
        "tests": len(tests),
    }
    start = time.monotonic()
    if not tests:
        return {**result, "outcome": "no tests", "by": "", "seconds": 0.0}
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        overlay = Path(folder) / "src"
        shutil.copytree(base, overlay / "hopflow")
        target = overlay / "hopflow" / site.path
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            compiled.unlink()
        target.write_bytes(changed)
        files = list(dict.fromkeys(test.split("::")[0] for test in tests))
        for part in filter(None, (files[:NEAREST], files[NEAREST:])):  # most changes are noticed by the nearest files
            (chosen := Path(folder) / "tests.json").write_text(json.dumps({"run": tests, "skip": sorted(failing)}))
            left = limit - (time.monotonic() - start)
            code, tail = pytest(Path(folder), overlay, part, left, MUTATE_TESTS=str(chosen))
            if code not in (0, 5):
                break
    by = next((line for line in tail.splitlines() if line.startswith(("FAILED", "ERROR"))), tail[-300:])
    late = "hung" if all("::" in test for test in tests) else "unfinished"
    outcome = {0: "survived", 4: "error", 5: "no tests", None: late}.get(code, "noticed")
    return {**result, "outcome": outcome, "by": by[:300], "seconds": round(time.monotonic() - start, 1)}


def confirm(out: Path) -> None:
    """Run the tests that failed on the package as it is; results of those that fail there, too, are removed."""
    results, known = read(out), set(read_list(FAILING))
    failed = {failed_test(line) for line in results if line["outcome"] == "noticed"} - {""}
    confirmed = set(read_list(PASSING))
    if asked := sorted(failed - confirmed - known):
        with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
            chosen = Path(folder) / "tests.json"
            chosen.write_text(json.dumps({"run": asked, "skip": []}))
            files = list(dict.fromkeys(test.split("::")[0] for test in asked))
            record = Path(folder) / "record.jsonl"
            variables = {"MUTATE_TESTS": str(chosen), "MUTATE_RECORD": str(record)}
            pytest(Path(folder), PACKAGE.parent, files, 3600, stop=False, **variables)
            confirmed |= {line["test"] for line in read(record) if line["outcome"] == "passed"}
        PASSING.write_text(json.dumps(sorted(confirmed)))
    known |= failed - confirmed
    FAILING.write_text(json.dumps(sorted(known)))
    kept = [line for line in results if failed_test(line) not in known]
    out.write_text("".join(json.dumps(line) + "\n" for line in kept))


def failed_test(result: dict) -> str:
    """The test that noticed a change; "" if it was no single test."""
    by = result["by"]
    return by.removeprefix("FAILED ").partition(" - ")[0] if by.startswith("FAILED") else ""


def pytest(
    folder: Path, source: Path, files: list[str], seconds: float, stop: bool = True, **variables: str
) -> tuple[int | None, str]:
    """Run tests on the package in `source`: the exit code (None: it took too long) and the end of the output."""
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TMPDIR": str(folder / "tmp"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        **variables,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files save a third of the time
    command = [sys.executable, "-m", "pytest", *files, "-q", "--tb=no", "-rfE", "-p", "mutate_plugin"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "-m", "not slow and not torture"]
    command += ["-W", "ignore::pytest.PytestConfigWarning", "-o", "addopts=--import-mode=importlib"]
    if stop and "MUTATE_TESTS" in variables:
        command += ["-x", "-o", "timeout=75"]  # a test that hangs fails
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=bound_files,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a changed program left running, too
            process.wait()
        output.seek(0)
        return code, output.read()[-2000:]


def bound_files() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def show(files: list[Path]) -> int:
    results = [line for file in files for line in read(file)]
    noticed = [line for line in results if line["outcome"] in ("noticed", "hung")]
    survivors = [line for line in results if line not in noticed]
    for line in sorted(survivors, key=lambda line: (line["path"], line["line"])):
        print(f"\n{line['outcome']}: src/hopflow/{line['path']}:{line['line']} in {line['function']} ({line['kind']})")
        print("\n".join(f"  {text}" for text in line["diff"]))
    print(f"\n{len(noticed)} of {len(results)} changes noticed")
    return 0


def read_list(path: Path) -> list[str]:
    return json.loads(path.read_text()) if path.exists() else []


def read(path: Path) -> list[dict]:
    """Lines of JSON; a last line that was cut off is ignored."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
