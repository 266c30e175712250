"""hopflow infill."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import saved
from .drawing import Out, Run, Watch, deliver, draw, replay
from .drawn import Drawn, check_out
from .how import READERS, how
from .output import check_target, progress_line
from .words import Debug, Json, parse_settings, real_number

if TYPE_CHECKING:
    from torch import Tensor

KEYS: dict[str, Callable[[str], Any]] = {**READERS, "guidance": real_number, "prompts": str}
SETTING = re.compile(r"([a-z_]+)=")
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PROMPT|KEY=VALUE]...", help="Texts with holes, and settings.", show_default=False),
]


def infill(
    run: Run,
    words: Words = None,
    out: Out = None,
    watch: Watch = False,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    r"""Fill the holes of a prompt: \[MASK] is one token, \[MASK:5] are five; your words stay as they are.

    \[MASK:3 words] and \[MASK:12 chars] are as many tokens as these take on
    average: chars are exact for tokens=char, the others approximate. Where a
    token holds a word with the blank before it (gpt2, bpe:N), the blank before
    a hole belongs to the hole: "upon a \[MASK]," can become "upon a time,".
    A prompt without holes is continued. Settings: those of `hopflow sample`,
    with n=1 for each prompt, and
    prompts=FILE (a .txt with one on each line, or a .jsonl with "prompt")
    length (with it, every prompt is continued to so many tokens)
    guidance=1 (2 follows the prompt twice as far)
    """
    texts, chosen = _sorted(words or [])
    check_out(out)
    check_target(json_file)
    told = how(chosen)
    texts = _all(texts, chosen.get("prompts"))
    with progress_line() as say:
        say(f"reading {run}")
        network = saved.read(run, chosen.get("device", "auto"))
    if network.flow is None:
        raise ValueError(f"{network.folder} holds a causal network, which fills no holes; see `hopflow sample`")
    whole = cache(lambda: network.length(chosen.get("length")))  # asked for once, since it may have something to say
    prompts = [_prompt(text, number, network, chosen.get("length"), whole) for number, text in enumerate(texts, 1)]
    n = chosen.get("n", 1)
    with network.threads(chosen.get("threads")):
        found, rows, seconds = draw(network, [prompt for prompt in prompts for _ in range(n)], told, watch)
    asked = [{"prompt": text, "prompt_index": index} for index, text in enumerate(texts) for _ in range(n)]
    drawn = Drawn.of(found, network, seconds, chosen, rows, len(asked), [asked[row] for row in rows])
    seen = watch and not drawn.interrupted and replay(found, network)
    deliver(drawn, out, json_file, seen)


def _sorted(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Prompts, and settings: words that begin with a key, or look like key=value with a mistyped one."""
    settings = [word for word in words if _is_setting(word)]
    return [word for word in words if word not in settings], parse_settings(settings, KEYS)


def _is_setting(word: str) -> bool:
    key = SETTING.match(word)
    return key is not None and (key[1] in KEYS or not re.search(r"\s|\[MASK", word))


def _all(texts: list[str], file: str | None) -> list[str]:
    from ..prompts import read

    texts = texts + (read(Path(file)) if file else [])
    if not texts:
        raise ValueError('there is no prompt: write one, such as "To be, [MASK:5]", or name a file, prompts=FILE')
    return texts


def _prompt(text: str, number: int, network: saved.Saved, asked: int | None, whole: Callable[[], int]) -> "Tensor":
    """The prompt's tokens, continued by holes where it has none or where a length is asked for."""
    from ..generation import HOLE
    from ..prompts import prompt

    try:
        tokens = prompt(text, network.tokenizer)
    except ValueError as error:
        raise ValueError(f"prompt {number}: {error}") from None
    if not len(tokens):
        raise ValueError(f"prompt {number} is empty; `hopflow sample` draws without one")
    most, holes = asked or network.trained, bool((tokens == HOLE).any())
    if most is not None and len(tokens) > most:
        limit = f"more than length={asked}" if asked else f"and the network was trained with {most}"
        raise ValueError(f"prompt {number} has {len(tokens)} tokens, {limit}: shorten it, or say length={len(tokens)}")
    if holes and not asked:
        return tokens
    tokens = prompt(text, network.tokenizer, length=whole())
    if not (tokens == HOLE).any():
        raise ValueError(f"prompt {number} has no hole and fills all {whole()} tokens: there is nothing to draw")
    return tokens
