"""The judges of the text study: an autoregressive network that is trained for it, and SmolLM2."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...bounds.estimate import known
from ...evaluation.evaluated_model import EvaluatedModel
from ...evaluation.judge import CausalJudge, Judge
from ...evaluation.likelihood import LikelihoodEvaluation
from ...evaluation.load_judge import judge as load_judge
from ...evaluation.stopping import StoppingRule
from ...recipes import build
from ...runs.devices import choose_device
from ...system.progress import ProgressCallback
from .cell import JudgeScores
from .evaluation_sets import EvaluationSets
from .protocol import JUDGE_SEED, Protocol, training_recipe
from .training_run import train


@dataclass(frozen=True)
class NamedJudge:
    """A judge, its name in the cells, and what is recorded of it."""

    name: str
    judge: Judge
    facts: dict[str, Any]

    def scores(self, tokens: Tensor, texts: list[str]) -> JudgeScores:
        """Nats of each sample; a judge with the same vocabulary scores the token ids."""
        score = self.judge.score_ids(list(tokens)) if self.name == "ar" else self.judge.score(texts)
        return JudgeScores(score.nats.tolist(), score.tokens.tolist(), score.bytes.tolist())


def prepare_judges(
    protocol: Protocol, work: Path, device: str, texts: EvaluationSets, later: Sequence[str] = ()
) -> list[NamedJudge]:
    """The protocol's judges but `later`; the autoregressive one is trained first, unless it is in `work` already."""
    found = []
    for name in protocol.judges:
        if name == "ar":
            found.append(_autoregressive(protocol, work, device, texts))
        elif name not in later:
            found.append(load_named(name, device, texts.offline, texts.say))
    return found


def judge_folder(protocol: Protocol, work: Path) -> Path:
    """The run of the autoregressive judge."""
    return work / f"judge-{protocol.sha256}"


def load_named(name: str, device: str, offline: bool, say: ProgressCallback) -> NamedJudge:
    """A judge that reads texts."""
    say(f"loading the judge {name}")
    judge = load_judge(name, device=choose_device(device), offline=offline, progress=say)
    return NamedJudge(name, judge, {"identity": judge.identity})


def _autoregressive(protocol: Protocol, work: Path, device: str, texts: EvaluationSets) -> NamedJudge:
    recipe = replace(
        training_recipe("ar", protocol, JUDGE_SEED, protocol.judge_steps),
        device=device,
        compile=choose_device(device).type == "cuda",
    )
    folder = judge_folder(protocol, work)
    built = build(recipe, offline=texts.offline, progress=texts.say)
    texts.say(f"training the judge: {recipe.steps} steps")
    train(built, folder, texts.say, "judge")
    subject = EvaluatedModel.load(folder, device)
    likelihood = LikelihoodEvaluation(stopping=StoppingRule(error=0.0, seconds=600.0, rows=protocol.rows))
    row = next(iter(likelihood.rows(subject, texts.test(protocol, subject), texts.say)))
    judge = CausalJudge.load(folder, device=choose_device(device))
    identity = {**judge.identity, "name": folder.name}  # without the path of the machine
    facts = {"identity": identity, "test_nll": row.value, "test_nll_stderr": known(row.stderr), "unit": row.unit}
    torch.cuda.empty_cache()
    return NamedJudge("ar", judge, facts)
