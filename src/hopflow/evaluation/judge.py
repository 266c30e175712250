"""Judge: a causal language model that scores texts; `load_judge.judge(name)` loads one."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.tokenizers import END, Tokenizer
from ..models.causal import Causal
from ..network.network import device_of, evaluation_mode, is_autoregressive
from ..runs.pretrained import from_pretrained
from ..runs.run_folder import is_run, read_recipe
from ..system.progress import Progress, ProgressCallback

BUDGET = 1 << 27
"""Largest number of logits in a batch: 512 MiB of float32."""
LEAST_LOGITS = 1 << 12
"""Logits that a token counts for at least: with a small vocabulary the features need the memory."""


@dataclass(frozen=True, eq=False)
class Score:
    """Score of n texts: nats, and the number of scored tokens, bytes and characters.

    The first token of a text is scored only if the judge has an opening token before it. An end-of-text mark has no
    bytes.
    """

    nats: Float[Tensor, " n"]
    tokens: Int[Tensor, " n"]
    bytes: Int[Tensor, " n"]
    characters: Int[Tensor, " n"]

    def only(self, which: Bool[Tensor, " n"]) -> "Score":
        return Score(self.nats[which], self.tokens[which], self.bytes[which], self.characters[which])


class Judge(ABC):
    """A causal language model with its tokenizer.

    A text with more tokens than `context` is scored in consecutive windows, each token once. Every window starts with
    the opening tokens of a text; without such tokens (`opened` is False) with the last token of the window before.
    """

    def __init__(self, tokenizer: Tokenizer, context: int, opened: bool, device: torch.device) -> None:
        least = 1 if opened else 2
        if context < least:
            raise ValueError(f"the context of this judge must be at least {least} tokens, got {context}")
        self.tokenizer, self.context, self.opened, self.device = tokenizer, context, opened, device

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Plain data that identifies the judge; stored with each number."""

    @abstractmethod
    def _nats(self, x: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """-log p of each row up to its length, after the opening; without an opening, of all tokens but the first."""

    def ids(self, texts: Sequence[str]) -> list[Tensor]:
        """Token ids of the judge. An end-of-text mark becomes its end-of-text token, where it has one."""
        end = self.tokenizer.end
        documents = [[text] if end is None else text.split(END) for text in texts]
        encoded = iter(self.tokenizer.encode_all([part for parts in documents for part in parts]))
        rows = []
        for parts in documents:
            pieces = [torch.from_numpy(next(encoded).astype("int64")) for _ in parts]
            marked = [pieces[0], *(torch.cat([torch.tensor([end]), piece]) for piece in pieces[1:])]
            rows.append(torch.cat(marked))
        return rows

    def shares_vocabulary(self, tokenizer: Tokenizer) -> bool:
        """Whether token ids of that tokenizer mean the same to the judge."""
        vocabulary = _vocabulary(self.tokenizer)
        if vocabulary is not None and _vocabulary(tokenizer) == vocabulary:
            return True  # the same pieces, even if the files differ
        return tokenizer.sha256 == self.tokenizer.sha256

    def score(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> Score:
        """Score texts, which the judge tokenizes itself."""
        plain = texts if self.tokenizer.end is None else [text.replace(END, "") for text in texts]
        return self._score(self.ids(texts), plain, Progress(progress))

    def score_ids(self, rows: Sequence[Int[Tensor, " L"]], progress: ProgressCallback | None = None) -> Score:
        """Score token ids of the judge's vocabulary."""
        rows = [row.long().cpu() for row in rows]
        return self._score(rows, [self._decoded(row) for row in rows], Progress(progress))

    def _score(self, rows: Sequence[Tensor], texts: Sequence[str], status: Progress) -> Score:
        first = [row[: 0 if self.opened else 1] for row in rows]  # not scored
        pairs = list(zip(texts, map(self._decoded, first), strict=True))
        return Score(
            self._total(rows, status),
            torch.tensor([len(row) - len(ids) for row, ids in zip(rows, first, strict=True)], dtype=torch.int64),
            # not below 0: a token that is a part of a character decodes to three bytes
            torch.tensor([max(0, len(text.encode()) - len(part.encode())) for text, part in pairs], dtype=torch.int64),
            torch.tensor([max(0, len(text) - len(part)) for text, part in pairs], dtype=torch.int64),
        )

    def _decoded(self, ids: Int[Tensor, " L"]) -> str:
        """The text of token ids, without end-of-text marks."""
        return self.tokenizer.decode([i for i in ids.tolist() if i != self.tokenizer.end])

    @property
    def protocol(self) -> dict[str, Any]:
        """The part of the identity that every kind of judge has."""
        return {
            "tokenizer": self.tokenizer.name,
            "tokenizer_sha256": self.tokenizer.sha256,
            "context": self.context,
            "windows": "consecutive, each token scored once",
        }

    def _total(self, rows: Sequence[Tensor], status: Progress) -> Float[Tensor, " n"]:
        """The nats of each row, summed over its windows."""
        total = torch.zeros(len(rows), dtype=torch.float64)
        windows, done = self._windows(rows), 0
        with status.keep_updating(lambda: f"judged {done:,} of {len(windows):,} windows"):
            for batch in self._batches(windows):
                texts, pieces = zip(*batch, strict=True)
                lengths = torch.tensor([len(piece) for piece in pieces], device=self.device)
                x = pad_sequence(list(pieces), batch_first=True)  # on the right, where causal attention does not see it
                total.index_add_(0, torch.tensor(texts), self._nats(x.to(self.device), lengths).double().cpu())
                done += len(batch)
        return total

    def _windows(self, rows: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Windows as (row, tokens), the shortest first, so that little is padded."""
        shared = 0 if self.opened else 1  # tokens that a window shares with the one before
        windows = [
            (text, row[start : start + self.context])
            for text, row in enumerate(rows)
            for start in range(0, len(row) - shared, self.context - shared)
        ]
        return sorted(windows, key=lambda window: len(window[1]))

    def _batches(self, windows: Sequence[tuple[int, Tensor]]) -> Iterator[list[tuple[int, Tensor]]]:
        """Batches of as many windows as BUDGET allows, counted at the length of the longest."""
        batch: list[tuple[int, Tensor]] = []
        for window in windows:
            if batch and (len(batch) + 1) * len(window[1]) * max(self.tokenizer.size, LEAST_LOGITS) > BUDGET:
                yield batch
                batch = []
            batch.append(window)
        if batch:
            yield batch


class CausalJudge(Judge):
    """A causal network of hopflow. Its context opens with a learned vector, so every token is scored."""

    def __init__(self, model: Causal, tokenizer: Tokenizer, context: int, **origin: Any) -> None:
        if tokenizer.size > model.vocab_size:
            raise ValueError(f"the tokenizer has {tokenizer.size} tokens, but the network only {model.vocab_size}")
        super().__init__(tokenizer, context, True, device_of(model))
        self.model, self.origin = model, origin

    @classmethod
    def load(
        cls, folder: Path, *, context: int | None = None, device: torch.device | str | None = None
    ) -> "CausalJudge":
        """Load a run folder, or a folder of `save_pretrained`."""
        found = from_pretrained(folder, device=device)
        if not is_autoregressive(found.model):
            raise ValueError(
                f"{folder} contains a {type(found.model).__name__}, but a judge must predict each token from those "
                f"before it: train one with `hopflow train … model=causal`"
            )
        if found.tokenizer is None:
            raise ValueError(
                f"{folder} was saved without its tokenizer; save it again with "
                "save_pretrained(folder, model, tokenizer=…)"
            )
        if context is None and is_run(folder):
            context = read_recipe(folder)["identity"].get("data.length")
        if context is None:
            raise ValueError(f"{folder} has no record of its sequence length: pass context=TOKENS")
        return cls(cast(Causal, found.model), found.tokenizer, context, name=str(folder), sha256=found.sha256)

    @property
    def identity(self) -> dict[str, Any]:
        return {
            "kind": "hopflow causal",
            "name": self.origin.get("name", "a network in memory"),
            "sha256": self.origin.get("sha256", {}),
            **self.protocol,
            "opening": "a learned vector",
            "precision": str(self.model.start.dtype).removeprefix("torch."),
        }

    def _nats(self, x: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        with evaluation_mode(self.model):
            return self.model.nll(x, torch.arange(x.shape[1], device=x.device) < lengths[:, None])


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int] | None:
    """The id of each piece of text; None if the tokenizer is not a list of pieces."""
    definition = tokenizer.to_json().get("tokenizer")
    if definition is None or not isinstance(definition["model"].get("vocab"), dict):
        return None
    added = {token["content"]: token["id"] for token in definition.get("added_tokens") or []}
    return {**definition["model"]["vocab"], **added}
