"""Which rows of a stored embedding are data tokens, and which is the mask."""

import json
from dataclasses import dataclass

from ..data.subwords import Subwords
from ..data.tokenizers import Tokenizer
from ..vocab import Vocab
from .layouts import SourceName

MASKS = ("[MASK]", "<mask>", "<|mask|>", "[mask]")
"""Names of the mask in tokenizer files."""
MOST_PADDING = 128
"""Rows without a token are fewer: projects round the number of rows up to a multiple of at most 128."""
PADDING = "[PAD]"


@dataclass(frozen=True)
class EmbeddingRows:
    """Data tokens keep their ids; the mask becomes the last token of `vocab`."""

    vocab: Vocab
    mask: int | None = None
    """The row of the mask; None without one."""
    padding: int = 0
    """Rows that are left out."""

    @property
    def embedded(self) -> list[int]:
        """The rows of all tokens of `vocab`."""
        return [*range(self.vocab.data), *([] if self.mask is None else [self.mask])]

    @property
    def predicted(self) -> list[int]:
        """The rows of the data tokens."""
        return list(range(self.vocab.data))

    @property
    def never(self) -> int | None:
        """The data token that is never drawn because its row is the mask; None if the mask has another row."""
        return self.mask if self.mask is not None and self.mask < self.vocab.data else None


def source_of(rows: int, tokenizer: Tokenizer | None, allowed: tuple[SourceName, ...]) -> SourceName:
    """The source of a network with this many rows: a mask needs one row more than the tokenizer has tokens."""
    if len(allowed) == 1:
        return allowed[0]
    if tokenizer is None:
        raise ValueError(f"without a tokenizer, set the source: source={' or source='.join(allowed)}")
    return "uniform" if rows <= tokenizer.size else "mask"


def masked_rows(rows: int, tokenizer: Tokenizer | None, mask: int | None, *, named: bool) -> EmbeddingRows:
    """The tokens of a network with a mask: as typed, by its name in the tokenizer, or the row after the tokenizer's.

    `named` is whether the tokenizer may name it.
    """
    if mask is None:
        mask = _mask_of(tokenizer, rows, MASKS if named else ())
    if not 0 <= mask < rows:
        raise ValueError(f"mask must be a row of the embedding, from 0 to {rows - 1}, got {mask}")
    without = rows - 1 if mask == rows - 1 else rows
    tokens = without if tokenizer is None else tokenizer.size
    padding = rows - tokens - (mask >= tokens)
    if not 0 <= padding < MOST_PADDING:
        raise ValueError(_other_tokenizer(rows, tokens, "and a mask"))
    return EmbeddingRows(Vocab(tokens, 1), mask, padding)


def _mask_of(tokenizer: Tokenizer | None, rows: int, names: tuple[str, ...]) -> int:
    if tokenizer is None:
        return rows - 1
    if isinstance(tokenizer, Subwords):
        found = [tokenizer.vocabulary[name] for name in names if name in tokenizer.vocabulary]
        if found:
            return found[0]
    if tokenizer.size >= rows:
        unnamed = f", and none is called {' or '.join(names[:2])}" if names else ""
        raise ValueError(
            f"the embedding has {rows} rows, which the tokenizer's {tokenizer.size} tokens use up{unnamed}: set the "
            f"row of the mask, mask=ID, or another tokenizer="
        )
    return tokenizer.size


def uniform_rows(rows: int, tokenizer: Tokenizer | None) -> tuple[EmbeddingRows, Tokenizer | None]:
    """The tokens of a network with a uniform source, all rows; a tokenizer with fewer gets further ones."""
    if tokenizer is None or tokenizer.size == rows:
        return EmbeddingRows(Vocab(rows)), tokenizer
    missing = rows - tokenizer.size
    if not 0 < missing < MOST_PADDING or not isinstance(tokenizer, Subwords):
        raise ValueError(_other_tokenizer(rows, tokenizer.size, ""))
    return EmbeddingRows(Vocab(rows)), with_padding(tokenizer, missing)


def with_padding(tokenizer: Subwords, count: int) -> Subwords:
    """The tokenizer with further tokens that no text contains, [PAD], [PAD1], …"""
    parts = json.loads(tokenizer.definition)
    more = [
        {"id": tokenizer.size + i, "content": f"{PADDING[:-1]}{i or ''}]", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i in range(count)
    ]
    parts["added_tokens"] = [*(parts.get("added_tokens") or []), *more]
    return Subwords(json.dumps(parts), tokenizer.name, tokenizer.end)


def _other_tokenizer(rows: int, tokens: int, and_mask: str) -> str:
    needed = f"{rows} rows, but the tokenizer has {tokens} tokens {and_mask}".strip()
    return f"the embedding has {needed}: set the tokenizer of this network, tokenizer=FILE"
