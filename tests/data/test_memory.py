"""Memory does not grow with the text: a gigabyte takes what a tenth of it takes. `make torture`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hopflow as hf

MB = 1_000_000
PROGRAM = """
import json, re, sys
from pathlib import Path
import hopflow as hf
corpus = hf.data.load(sys.argv[1], sys.argv[2], 128, cache=sys.argv[3])
# not getrusage: its peak begins with that of the process that started this one
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
header = corpus.store.header
print(json.dumps({**header["read"], "peak": peak, "seconds": header["seconds"]}))
"""


def prepare(path: Path, tokens: str, cache: Path) -> dict[str, int]:
    """What a process of its own finds, and the most memory it took."""
    env = {**os.environ, "PYTHONPATH": str(Path(hf.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, str(path), tokens, str(cache)]
    return json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)


def write(path: Path, size: int, line_break: str) -> None:
    """WordCache by Zipf's law, never the same twice in a row, with a mark every 100 kB; or all on one line."""
    generator = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(generator.choice(letters, 1 + i % 9)) for i in range(200_000)]
    done = 0
    with path.open("w") as file:
        while done < size:
            chosen = (words[i % len(words)] for i in generator.zipf(1.3, 15_000))
            done += file.write(" ".join(chosen) + line_break)


@pytest.fixture
def tokenizer(tmp_path, bpe) -> str:
    (tmp_path / "tokenizer.json").write_text(bpe.definition)
    return str(tmp_path / "tokenizer.json")


@pytest.mark.torture
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("tokens", ["char", "bpe"])
def test_a_gigabyte_takes_the_memory_of_a_tenth(tmp_path, cache, tokenizer, tokens, record_property):
    peaks = []
    for size in (100 * MB, 1000 * MB):
        write(tmp_path / "text.txt", size, "\n<|endoftext|>\n")
        found = prepare(tmp_path / "text.txt", tokenizer if tokens == "bpe" else tokens, cache)
        record_property(f"{tokens} {size // MB} MB", f"{found['peak'] / MB:.0f} MB, {found['seconds']:.0f} s")
        print(tokens, size // MB, "MB of text:", found["peak"] // MB, "MB,", found["seconds"], "s")  # noqa: T201
        peaks.append(found["peak"])
    assert peaks[1] - peaks[0] < 100 * MB


@pytest.mark.torture
@pytest.mark.timeout(3000)
def test_one_line_of_100_mb_takes_the_memory_and_the_ids_of_short_lines(tmp_path, cache, tokenizer):
    write(tmp_path / "long.txt", 100 * MB, " ")
    assert "\n" not in (tmp_path / "long.txt").read_text()
    long = prepare(tmp_path / "long.txt", tokenizer, cache)
    write(tmp_path / "short.txt", 100 * MB, "\n")
    short = prepare(tmp_path / "short.txt", tokenizer, cache)
    print("one line:", long["peak"] // MB, "MB; short lines:", short["peak"] // MB, "MB")  # noqa: T201
    assert long["forced_cuts"] == 0
    assert abs(long["peak"] - short["peak"]) < 50 * MB
    # the tokens of the first 2 MB, cut or whole
    store = hf.data.load(tmp_path / "long.txt", tokenizer, 128, cache=cache).store
    text = (tmp_path / "long.txt").read_text()[: 2 * MB].rpartition(" ")[0]
    whole = store.tokenizer._encode_batch([text])[0]
    assert store.tokens("train")[: len(whole)].tolist() == whole
