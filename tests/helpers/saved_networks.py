"""Saved networks for tests of `hopflow sample` and `hopflow infill`, and what such a test asserts."""

import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

import hopflow as hf
from hopflow.data.tokenizers import Characters

LETTERS = Characters("\n abcdefghijklm", ends=True)
SMALL = hf.Size(layers=1, width=16, heads=2)
LENGTH = 12


def save_networks(home: Path) -> None:
    """Saved networks that were never trained: two flows, a causal one, and some that lack something."""
    torch.manual_seed(0)
    recipe = {"length": LENGTH}
    for name, source in {
        "masks": hf.MultiMask(hf.Vocab(LETTERS.size, 3)),
        "letters": hf.Uniform(hf.Vocab(LETTERS.size)),
    }.items():
        network = shaken(hf.Transformer(source.vocab, SMALL))
        hf.save_pretrained(home / name, network, hf.Flow(source), tokenizer=LETTERS, recipe=recipe)
        hf.save_pretrained(home / f"{name}-without-length", network, hf.Flow(source), tokenizer=LETTERS)
    hf.save_pretrained(home / "without-flow", network, tokenizer=LETTERS, recipe=recipe)
    hf.save_pretrained(home / "without-tokenizer", network, hf.Flow(source), recipe=recipe)
    hf.save_pretrained(home / "own-module", nn.Linear(2, 2), hf.Flow(source), tokenizer=LETTERS)
    hf.save_pretrained(home / "causal", shaken(hf.Causal(LETTERS.size, SMALL)), tokenizer=LETTERS, recipe=recipe)
    for name, file in {"damaged-weights": "model.safetensors", "damaged-config": "config.json"}.items():
        hf.save_pretrained(home / name, network, hf.Flow(source), tokenizer=LETTERS, recipe=recipe)
        content = bytearray((home / name / file).read_bytes())
        content[len(content) // 2] ^= 1
        (home / name / file).write_bytes(content)


def shaken(network: nn.Module) -> nn.Module:
    """A new network finds all tokens equally likely; this one does not."""
    nn.init.normal_(network.head.weight)
    return network


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def refused(result: SimpleNamespace, message: str) -> None:
    assert (result.code, result.out) == (2, "")
    said = result.err[result.err.index("hopflow: ") :]
    assert message in said
    assert len(said.splitlines()) <= 6
    assert "Traceback" not in said
