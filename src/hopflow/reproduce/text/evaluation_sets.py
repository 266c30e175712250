"""The test sequences of the text study, tokenized once per process and shared by its cells."""

from dataclasses import replace

from ...evaluation import sets
from ...evaluation.evaluated_model import EvaluatedModel
from ...system.progress import ProgressCallback
from .protocol import Protocol

TEST = "test"
"""The name of the protocol's test set in the cells."""


class EvaluationSets:
    """The test set and the zero-shot sets: the same rows, in the same order, for every variant and seed.

    Tokenizing them takes seconds, as long as all bounds of a small network on a GPU. So each is read once for a
    tokenizer, a length and a number of rows.
    """

    def __init__(self, *, offline: bool, say: ProgressCallback) -> None:
        self.offline, self.say = offline, say
        self._read: dict[tuple[object, ...], sets.TextSet] = {}

    def test(self, protocol: Protocol, subject: EvaluatedModel) -> sets.TextSet:
        """`rows` random rows of the test set."""
        return self._rows(protocol.test_set, protocol.rows, subject)

    def zero_shot(self, name: str, protocol: Protocol, subject: EvaluatedModel) -> sets.TextSet:
        """`zero_shot_rows` random rows of another corpus."""
        return self._rows(name, protocol.zero_shot_rows, subject)

    def _rows(self, name: str, rows: int, subject: EvaluatedModel) -> sets.TextSet:
        corpus = subject.identity.get("data.source_sha256"), subject.identity.get("data.tokenizer_sha256")
        key = (name, rows, subject.length, *corpus)
        if key not in self._read:
            if name == "held-out":
                found = sets.held_out(subject, offline=self.offline, progress=self.say)
            else:
                found = sets.named(name, subject, offline=self.offline, progress=self.say)
            self._read[key] = first_rows(found, rows)
        return self._read[key]


def first_rows(texts: sets.TextSet, rows: int) -> sets.TextSet:
    """`rows` random rows, chosen with a fixed seed."""
    shuffled = texts.shuffled(0)
    characters = None if shuffled.characters is None else shuffled.characters[:rows]
    return replace(shuffled, x1=shuffled.x1[:rows], characters=characters)
