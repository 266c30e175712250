"""Judge: how likely a causal language model finds texts.

`judge(name)` finds one: a network that hopflow has trained, which needs no download; "smollm2"; or what transformers
reads, from a folder, a .gguf file or, as `hf:NAME`, the hub.
"""

import errno
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data import cache_folder
from ..data.pulse import Progress, Pulse
from ..data.tokenizers import END, Tokenizer
from ..hints import did_you_mean
from ..models.causal import Causal
from ..network import home, resting
from ..pretrained import CONFIG, from_pretrained
from ..training.folder import CHECKPOINTS, is_run, read_recipe

BUDGET = 1 << 27
"""Numbers that the logits of a batch may hold: 512 MiB of float32."""
NARROW = 1 << 12
"""What a token counts for at least: with a small vocabulary it is the network's features that need the memory."""
NAMES = ("smollm2",)


@dataclass(frozen=True, eq=False)
class Score:
    """What a judge says of n texts: nats, and how many of its tokens, of bytes and of characters they are for.

    A text's first token counts only if the context opens with something. An end-of-text mark has no bytes.
    """

    nats: Float[Tensor, " n"]
    tokens: Int[Tensor, " n"]
    bytes: Int[Tensor, " n"]
    characters: Int[Tensor, " n"]

    def only(self, which: Bool[Tensor, " n"]) -> "Score":
        return Score(self.nats[which], self.tokens[which], self.bytes[which], self.characters[which])


class Judge(ABC):
    """A causal language model with its tokenizer.

    A text with more tokens than `context` is read in consecutive windows, and each of its tokens is scored once. Every
    window opens as a text does; where nothing opens a text (not `opened`), it starts with the last token before it.
    """

    def __init__(self, tokenizer: Tokenizer, context: int, opened: bool, device: torch.device) -> None:
        least = 1 if opened else 2
        if context < least:
            raise ValueError(f"this judge needs a context of at least {least} tokens; got {context}")
        self.tokenizer, self.context, self.opened, self.device = tokenizer, context, opened, device

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What is recorded with each number: plain data."""

    @abstractmethod
    def _nats(self, x: Int[Tensor, "B L"], lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """-log p of each row up to its length, given its opening; without one, of all but the first token."""

    def ids(self, texts: Sequence[str]) -> list[Tensor]:
        """The judge's own tokens. An end-of-text mark becomes its end-of-text token, where it has one."""
        end = self.tokenizer.end
        documents = [[text] if end is None else text.split(END) for text in texts]
        encoded = iter(self.tokenizer.encode_all([part for parts in documents for part in parts]))
        rows = []
        for parts in documents:
            pieces = [torch.from_numpy(next(encoded).astype("int64")) for _ in parts]
            marked = [pieces[0], *(torch.cat([torch.tensor([end]), piece]) for piece in pieces[1:])]
            rows.append(torch.cat(marked))
        return rows

    def speaks(self, tokenizer: Tokenizer) -> bool:
        """Whether ids of that tokenizer are ids of the judge's own."""
        meanings = _meanings(self.tokenizer)
        if meanings is not None and _meanings(tokenizer) == meanings:
            return True  # the same pieces, though another program wrote them down
        return tokenizer.sha256 == self.tokenizer.sha256

    def score(self, texts: Sequence[str], progress: Progress | None = None) -> Score:
        """Of texts, by the tokens that the judge makes of them."""
        spoken = texts if self.tokenizer.end is None else [text.replace(END, "") for text in texts]
        return self._score(self.ids(texts), spoken, Pulse(progress))

    def score_ids(self, rows: Sequence[Int[Tensor, " L"]], progress: Progress | None = None) -> Score:
        """Of token ids of the judge's own vocabulary, as they are."""
        rows = [row.long().cpu() for row in rows]
        return self._score(rows, [self._spoken(row) for row in rows], Pulse(progress))

    def _score(self, rows: Sequence[Tensor], texts: Sequence[str], pulse: Pulse) -> Score:
        first = [row[: 0 if self.opened else 1] for row in rows]  # what is not scored
        pairs = list(zip(texts, map(self._spoken, first), strict=True))
        return Score(
            self._total(rows, pulse),
            torch.tensor([len(row) - len(ids) for row, ids in zip(rows, first, strict=True)], dtype=torch.int64),
            # not below 0: a token that is a part of a character is shown as three bytes
            torch.tensor([max(0, len(text.encode()) - len(part.encode())) for text, part in pairs], dtype=torch.int64),
            torch.tensor([max(0, len(text) - len(part)) for text, part in pairs], dtype=torch.int64),
        )

    def _spoken(self, ids: Int[Tensor, " L"]) -> str:
        """The text of ids, without marks of its end."""
        return self.tokenizer.decode([i for i in ids.tolist() if i != self.tokenizer.end])

    @property
    def protocol(self) -> dict[str, Any]:
        """The part of the identity that every kind has."""
        return {
            "tokenizer": self.tokenizer.name,
            "tokenizer_sha256": self.tokenizer.sha256,
            "context": self.context,
            "windows": "consecutive, each token scored once",
        }

    def _total(self, rows: Sequence[Tensor], pulse: Pulse) -> Float[Tensor, " n"]:
        """The nats of each row, all its windows together."""
        total = torch.zeros(len(rows), dtype=torch.float64)
        windows, done = self._windows(rows), 0
        with pulse.meanwhile(lambda: f"judged {done:,} of {len(windows):,} windows"):
            for batch in self._batches(windows):
                texts, pieces = zip(*batch, strict=True)
                lengths = torch.tensor([len(piece) for piece in pieces], device=self.device)
                x = pad_sequence(list(pieces), batch_first=True)  # at the right, where no token sees it
                total.index_add_(0, torch.tensor(texts), self._nats(x.to(self.device), lengths).double().cpu())
                done += len(batch)
        return total

    def _windows(self, rows: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Of which row, and its tokens; the shortest first, so that little is padded."""
        shared = 0 if self.opened else 1  # tokens that a window has in common with the one before
        windows = [
            (text, row[start : start + self.context])
            for text, row in enumerate(rows)
            for start in range(0, len(row) - shared, self.context - shared)
        ]
        return sorted(windows, key=lambda window: len(window[1]))

    def _batches(self, windows: Sequence[tuple[int, Tensor]]) -> Iterator[list[tuple[int, Tensor]]]:
        """As many windows at once as the budget allows, counted at the length of the longest."""
        batch: list[tuple[int, Tensor]] = []
        for window in windows:
            if batch and (len(batch) + 1) * len(window[1]) * max(self.tokenizer.size, NARROW) > BUDGET:
                yield batch
                batch = []
            batch.append(window)
        if batch:
            yield batch


class CausalJudge(Judge):
    """hopflow's own autoregressive network. A learned vector opens the context: every token is scored."""

    def __init__(self, model: Causal, tokenizer: Tokenizer, context: int, **origin: Any) -> None:
        if tokenizer.size > model.vocab_size:
            raise ValueError(f"the tokenizer has {tokenizer.size} tokens, the network only {model.vocab_size}")
        super().__init__(tokenizer, context, True, home(model))
        self.model, self.origin = model, origin

    @classmethod
    def load(
        cls, folder: Path, *, context: int | None = None, device: torch.device | str | None = None
    ) -> "CausalJudge":
        """From a run's folder, or what `save_pretrained` wrote."""
        found = from_pretrained(folder, device=device)
        if not isinstance(found.model, Causal):
            raise ValueError(
                f"{folder} holds a {type(found.model).__name__}, and a judge predicts each token from those before it: "
                f"train one with `hopflow train … model=causal`"
            )
        if found.tokenizer is None:
            raise ValueError(f"{folder} was saved without its tokenizer: save_pretrained(folder, model, tokenizer=…)")
        if context is None and is_run(folder):
            context = read_recipe(folder)["identity"].get("data.length")
        if context is None:
            raise ValueError(f"{folder} does not say how long its training texts were: pass context=TOKENS")
        return cls(found.model, found.tokenizer, context, name=str(folder), sha256=found.sha256)

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
        with resting(self.model):
            return self.model.nll(x, torch.arange(x.shape[1], device=x.device) < lengths[:, None])


def judge(
    name: str | os.PathLike[str],
    *,
    context: int | None = None,
    opening: Sequence[int] | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    offline: bool = False,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Judge:
    """The judge behind a name: "smollm2", "hf:NAME" or "hf:NAME@REVISION" on the hub, a folder, or a .gguf file.

    Only the first two fetch anything, once, and not if `offline`. `context` are tokens of a window; `opening` is what a
    context opens with, unless said what the model's own tokenizer puts first; `dtype` is that of the weights.
    """
    from . import transformers_judge as extra

    path, text, pulse = Path(name).expanduser(), os.fspath(name), Pulse(progress)
    wish = extra.Wish(context, opening, device, dtype)
    if isinstance(name, str) and text == "smollm2":
        return extra.smollm2(wish, cache_folder(cache), offline, pulse)
    if isinstance(name, str) and text.startswith("hf:"):
        return extra.from_hub(text.removeprefix("hf:"), wish, cache_folder(cache), offline, pulse)
    if _is_ours(path):
        return _own(path, context, opening, device, dtype)
    if path.suffix == ".gguf":
        return extra.from_gguf(path, wish, pulse)
    if (path / CONFIG).is_file():
        return extra.from_folder(path, wish, pulse)
    raise _unknown(text, path)


def _own(path: Path, context: int | None, opening: Any, device: Any, dtype: torch.dtype | None) -> CausalJudge:
    if opening is not None or dtype is not None:
        raise ValueError(
            "a network of hopflow's has an opening and a precision of its own: leave opening and dtype out"
        )
    return CausalJudge.load(path, context=context, device=device)


def _is_ours(folder: Path) -> bool:
    """A run's folder, or a config that says so."""
    if (folder / CHECKPOINTS).is_dir():
        return True
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and config.get("format") == "hopflow"


def _unknown(text: str, path: Path) -> Exception:
    possible = (
        "a judge is a run of `hopflow train … model=causal` or a folder of save_pretrained, smollm2,\n"
        "a folder with config.json, tokenizer.json and safetensors, a .gguf file, or hf:NAME on the hub"
    )
    if path.is_dir():
        return ValueError(f"{text} holds no language model: it has no {CONFIG}\n{possible}")
    if path.exists():
        return ValueError(f"{text} is no language model\n{possible}")
    if os.sep in text:
        return FileNotFoundError(errno.ENOENT, f"no such file or folder\n{possible}", text)
    hint = did_you_mean(text.lower(), NAMES) or f"did you mean hf:{text}, from the hub?"
    return ValueError(f"{text!r} is no judge: {hint}\n{possible}")


def _meanings(tokenizer: Tokenizer) -> dict[str, int] | None:
    """Which id each piece of text has; None if the tokenizer is not a list of such pieces."""
    definition = tokenizer.to_json().get("tokenizer")
    if definition is None or not isinstance(definition["model"].get("vocab"), dict):
        return None
    added = {token["content"]: token["id"] for token in definition.get("added_tokens") or []}
    return {**definition["model"]["vocab"], **added}
