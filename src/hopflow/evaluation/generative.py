"""Generative perplexity: the perplexity of samples under another language model, the judge.

Two averages are in use, and they differ a lot: `corpus` is exp(all nats / all tokens), `mean_of_samples` the mean over
texts of their perplexities, which a few bad texts dominate. Both are computed, with standard errors over texts.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..data.tokenizers import Tokenizer
from ..system.progress import ProgressCallback
from .judge import Judge, Score
from .load_judge import judge as load_judge
from .measurement import Measurement


@dataclass(frozen=True, eq=False)
class GenerativePerplexity:
    """The score of texts by a judge; iterate over it for all its numbers.

    Texts without a token to score are left out; `too_short` is their number.
    """

    score: Score
    """The score of each text that is not left out, for paired comparisons."""
    judge: dict[str, Any]
    """The identity of the judge."""
    retokenised: bool
    """Whether the judge tokenized texts itself; otherwise it scored token ids of its vocabulary."""
    too_short: int = 0
    sample_tokens: Float[Tensor, " n"] | None = None
    """Number of scored tokens of each text under the tokenizer of the samples."""

    @cached_property
    def corpus(self) -> Measurement:
        """exp(Σ nats / Σ tokens), per token of the judge."""
        nats = Measurement.ratio("gen_nats_per_token", self.score.nats, self.score.tokens, "nats per judge token")
        return nats.exp("gen_ppl", "per judge token")

    @cached_property
    def mean_of_samples(self) -> Measurement:
        """The mean over texts of exp(nats / tokens), per token of the judge."""
        ppl = (self.score.nats / self.score.tokens).exp()
        return Measurement.mean("gen_ppl_mean", ppl, "per judge token, mean of texts")

    @cached_property
    def bits_per_byte(self) -> Measurement:
        """Bits per byte of UTF-8; it can be compared between judges with different tokenizers."""
        nats = Measurement.ratio("nats_per_byte", self.score.nats, self.score.bytes, "nats per byte")
        return nats.times(1 / math.log(2), "gen_bits_per_byte", "bits per byte")

    @cached_property
    def nats_per_sample_token(self) -> Measurement | None:
        """Nats per token of the samples' tokenizer; None where their number is unknown."""
        if self.sample_tokens is None:
            return None
        return Measurement.ratio("gen_nats", self.score.nats, self.sample_tokens, "nats per sample token")

    @property
    def n(self) -> int:
        """Number of texts that are not left out."""
        return len(self.score.nats)

    def __iter__(self) -> Iterator[Measurement]:
        yield from (self.corpus, self.mean_of_samples, self.bits_per_byte)
        if self.nats_per_sample_token is not None:
            yield self.nats_per_sample_token

    def __str__(self) -> str:
        how = "retokenized by the judge" if self.retokenised else "token ids of the judge's vocabulary"
        short = f"; {self.too_short} texts too short to score" if self.too_short else ""
        lines = [*map(str, self), f"judge {self.judge['name']}, {self.judge['precision']}; {how}{short}"]
        return "\n".join(lines)


def generative_perplexity(
    samples: Sequence[str] | Int[Tensor, "n L"],
    judge: Judge | str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    tokens_per_text: int | Sequence[int] | None = None,
    progress: ProgressCallback | None = None,
) -> GenerativePerplexity:
    """The perplexity of texts, or of token ids, under a judge.

    The judge tokenizes texts itself, since it may have another tokenizer than the samples; pass `tokens_per_text`, the
    number of tokens under the samples' tokenizer, to get nats per such token as well. Token ids need their `tokenizer`,
    and are scored as they are if the judge has the same vocabulary.
    """
    found = judge if isinstance(judge, Judge) else load_judge(judge, progress=progress)
    if isinstance(samples, Tensor):
        _check_ids(found, tokenizer, tokens_per_text)
        score = found.score_ids(list(samples), progress)
        own: Tensor | None = score.tokens
    else:
        _check_texts(samples, tokenizer)
        score = found.score(samples, progress)
        own = _own_tokens(tokens_per_text, score, found)
    counts = (score.tokens > 0) & (score.bytes > 0)
    if not counts.any():
        raise ValueError(_nothing(len(samples), found))
    score = score.only(counts)
    if not score.nats.isfinite().all():
        raise ValueError(f"the judge {found.identity['name']} returned NaN or infinity: load it in float32")
    own = None if own is None else own[counts].double()
    return GenerativePerplexity(score, found.identity, not isinstance(samples, Tensor), int((~counts).sum()), own)


def _check_ids(judge: Judge, tokenizer: Tokenizer | None, tokens_per_text: int | Sequence[int] | None) -> None:
    if tokens_per_text is not None:
        raise ValueError("tokens_per_text is for texts: leave it out for token ids")
    if tokenizer is None:
        raise ValueError("token ids need their tokenizer: pass tokenizer=…, or decode them into texts")
    if not judge.shares_vocabulary(tokenizer):
        raise ValueError(
            f"the judge {judge.identity['name']} has another vocabulary than the tokenizer {tokenizer.name!r} of these "
            f"ids: pass texts, [tokenizer.decode(row) for row in ids.tolist()], and the judge tokenizes them itself"
        )


def _check_texts(samples: Sequence[str], tokenizer: Tokenizer | None) -> None:
    if isinstance(samples, str) or not all(isinstance(text, str) for text in samples):
        raise ValueError("pass a list of texts, or token ids as a tensor (n, L)")
    if tokenizer is not None:
        raise ValueError("tokenizer= is for token ids: the judge tokenizes texts itself")


def _own_tokens(tokens_per_text: int | Sequence[int] | None, score: Score, judge: Judge) -> Tensor | None:
    """Number of tokens under the samples' tokenizer, less the share of a first token that the judge did not score."""
    if tokens_per_text is None:
        return None
    counts, n = torch.as_tensor(tokens_per_text, dtype=torch.float64), len(score.tokens)
    if not (counts.ndim == 0 or counts.shape == (n,)) or bool((counts < 0).any()) or (n and not counts.any()):
        raise ValueError(f"tokens_per_text must be one number > 0, or one for each of {n} texts, got {tokens_per_text}")
    counts = counts.expand(n or 1)
    return counts * score.tokens / (score.tokens + (0 if judge.opened else 1))


def _nothing(n: int, judge: Judge) -> str:
    needs = (
        "one token"
        if judge.opened
        else "two tokens, since it has no beginning-of-text token and cannot score the first one"
    )
    what = f"none of the {n} texts has a token to score" if n else "there is no text to judge"
    return f"{what}: the judge {judge.identity['name']} needs at least {needs}. Were any samples drawn?"
