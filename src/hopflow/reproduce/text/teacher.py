"""Train a variant of a study; a rectified one on pairs that its teacher draws, which is trained first if need be."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...evaluation.evaluated_model import EvaluatedModel
from ...recipes import Built, Recipe, build
from ...runs.devices import choose_device
from ...runs.rectify import rectify
from ...system.progress import ProgressCallback
from .protocol import StudyVariant, Teacher
from .training_run import train


@dataclass(frozen=True)
class Training:
    """Where and how the variants of a budget are trained."""

    budget: str
    work: Path
    device: str
    offline: bool
    say: ProgressCallback

    def folder(self, variant: StudyVariant, seed: int) -> Path:
        """The run of a variant."""
        return self.work / f"{self.budget}-{variant.name}-seed{seed}"

    def build(self, variant: StudyVariant, seed: int) -> Built:
        """The text and the network of a variant; pairs and weights of its teacher are made first."""
        return build(self.recipe(variant, seed), offline=self.offline, progress=self.say)

    def run(self, variant: StudyVariant, seed: int) -> Path:
        """Train a variant in its folder, unless that is done already."""
        folder, built = self.folder(variant, seed), self.build(variant, seed)
        train(built, folder, self.say)
        return folder

    def recipe(self, variant: StudyVariant, seed: int) -> Recipe:
        """The recipe that is trained."""
        recipe = variant.resolved(seed)
        if variant.teacher is not None:
            store = self._pairs(variant.teacher, seed)
            init = str(self.folder(variant.teacher.variant, seed))
            recipe = replace(recipe, coupling=f"{recipe.coupling}:{store}", init=init)
        return replace(recipe, device=self.device, compile=choose_device(self.device).type == "cuda")

    def _pairs(self, teacher: Teacher, seed: int) -> Path:
        """The pairs of a teacher, drawn once for all of its students."""
        run = self.run(teacher.variant, seed)
        subject = EvaluatedModel.load(run, self.device)
        assert subject.flow is not None
        assert subject.tokenizer is not None
        self.say(f"{run.name} draws {teacher.pairs:,} pairs in {teacher.steps} steps")
        store = rectify(
            subject.model,
            subject.flow,
            out=run.with_name(f"{run.name}-pairs"),
            n=teacher.pairs,
            length=teacher.variant.protocol.length,
            seed=seed,
            steps=teacher.steps,
            tokenizer=subject.tokenizer.sha256,
            progress=partial(_say_pairs, self.say),
        )
        del subject
        torch.cuda.empty_cache()
        return store.folder


def _say_pairs(say: ProgressCallback, done: int, count: int) -> None:
    if done % (1 << 14) == 0 or done == count:
        say(f"{done:,} of {count:,} pairs")


def without_folders(recipe: Recipe) -> dict[str, Any]:
    """The settings that a cell keeps: a store and a run by their names, not by the folders of this machine."""
    kind, _, store = recipe.coupling.partition(":")
    coupling = f"{kind}:{Path(store).name}" if store else kind
    return {**vars(recipe), "coupling": coupling, "init": recipe.init and Path(recipe.init).name}
