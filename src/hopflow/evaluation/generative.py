"""Generative perplexity: how likely a judge finds the texts that a model has drawn.

Two averages are in use, and they differ by a lot: `corpus` is exp(all nats / all tokens), `mean_of_samples` the mean of
each text's own perplexity, which a few bad texts dominate. Both are given, with their errors over texts.
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

from ..data.pulse import Progress
from ..data.tokenizers import Tokenizer
from .judge import Judge, Score
from .judge import judge as find
from .measured import Measured


@dataclass(frozen=True, eq=False)
class GenerativePerplexity:
    """What a judge says of texts; iterate over it for all its numbers.

    Only texts with a token to score count; `too_short` says how many had none.
    """

    score: Score
    """Of each text that counts: for paired comparisons."""
    judge: dict[str, Any]
    """Its identity."""
    retokenised: bool
    """Whether the judge has cut the texts into tokens of its own; if not, it was given ids of its vocabulary."""
    too_short: int = 0
    sample_tokens: Float[Tensor, " n"] | None = None
    """How many tokens of their own tokenizer those texts have, as far as they were scored."""

    @cached_property
    def corpus(self) -> Measured:
        """exp(Σ nats / Σ tokens), per judge token."""
        nats = Measured.ratio("gen_nats_per_token", self.score.nats, self.score.tokens, "nats per judge token")
        return nats.exp("gen_ppl", "per judge token")

    @cached_property
    def mean_of_samples(self) -> Measured:
        """The mean over texts of exp(nats / tokens), per judge token."""
        ppl = (self.score.nats / self.score.tokens).exp()
        return Measured.mean("gen_ppl_mean", ppl, "per judge token, mean of texts")

    @cached_property
    def bits_per_byte(self) -> Measured:
        """Of UTF-8; the number to compare judges with different tokenizers by."""
        nats = Measured.ratio("nats_per_byte", self.score.nats, self.score.bytes, "nats per byte")
        return nats.times(1 / math.log(2), "gen_bits_per_byte", "bits per byte")

    @cached_property
    def nats_per_sample_token(self) -> Measured | None:
        """Per token of the samples' own tokenizer, where it is known how many these are."""
        if self.sample_tokens is None:
            return None
        return Measured.ratio("gen_nats", self.score.nats, self.sample_tokens, "nats per sample token")

    @property
    def n(self) -> int:
        """Texts that count."""
        return len(self.score.nats)

    def __iter__(self) -> Iterator[Measured]:
        yield from (self.corpus, self.mean_of_samples, self.bits_per_byte)
        if self.nats_per_sample_token is not None:
            yield self.nats_per_sample_token

    def __str__(self) -> str:
        how = "retokenised by the judge" if self.retokenised else "the judge's own ids"
        short = f"; {self.too_short} texts too short to score" if self.too_short else ""
        lines = [*map(str, self), f"judge {self.judge['name']}, {self.judge['precision']}; {how}{short}"]
        return "\n".join(lines)


def generative_perplexity(
    samples: Sequence[str] | Int[Tensor, "n L"],
    judge: Judge | str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    tokens_per_text: int | Sequence[int] | None = None,
    progress: Progress | None = None,
) -> GenerativePerplexity:
    """How likely a judge finds texts, or token ids of its own vocabulary.

    Texts are cut into tokens anew by the judge, which may have another tokenizer than the samples; how many tokens of
    their own they have, `tokens_per_text`, gives the nats per such token as well. Ids come with the `tokenizer` they
    belong to, and are scored as they are if they mean the same to the judge.
    """
    found = judge if isinstance(judge, Judge) else find(judge, progress=progress)
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
        raise ValueError(f"the judge {found.identity['name']} gave nats that are no number: load it in float32")
    own = None if own is None else own[counts].double()
    return GenerativePerplexity(score, found.identity, not isinstance(samples, Tensor), int((~counts).sum()), own)


def _check_ids(judge: Judge, tokenizer: Tokenizer | None, tokens_per_text: int | Sequence[int] | None) -> None:
    if tokens_per_text is not None:
        raise ValueError("tokens_per_text is for texts: of ids it is known how many there are")
    if tokenizer is None:
        raise ValueError("ids mean nothing without their tokenizer: pass tokenizer=…, or decode them into texts")
    if not judge.speaks(tokenizer):
        raise ValueError(
            f"the judge {judge.identity['name']} has another vocabulary than the tokenizer {tokenizer.name!r} of these "
            f"ids: pass texts, [tokenizer.decode(row) for row in ids.tolist()], and the judge makes tokens of its own"
        )


def _check_texts(samples: Sequence[str], tokenizer: Tokenizer | None) -> None:
    if isinstance(samples, str) or not all(isinstance(text, str) for text in samples):
        raise ValueError("pass a list of texts, or token ids as a tensor (n, L)")
    if tokenizer is not None:
        raise ValueError("a tokenizer is for ids: texts are cut into tokens by the judge")


def _own_tokens(tokens_per_text: int | Sequence[int] | None, score: Score, judge: Judge) -> Tensor | None:
    """Tokens of the samples' own tokenizer; what the judge did not score, a first token, takes its share of them."""
    if tokens_per_text is None:
        return None
    counts = torch.as_tensor(tokens_per_text, dtype=torch.float64).expand(len(score.tokens) or 1)
    return counts * score.tokens / (score.tokens + (0 if judge.opened else 1))


def _nothing(n: int, judge: Judge) -> str:
    needs = "one token" if judge.opened else "two tokens, since nothing opens its context and the first is not scored"
    said = f"none of the {n} texts has a token to score" if n else "there is no text to judge"
    return f"{said}: the judge {judge.identity['name']} needs at least {needs}. Were any samples drawn?"
