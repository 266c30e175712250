"""hopflow infill."""

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import trained_network
from .build_sampler import sampling_options
from .draw_samples import Out, Run, Watch, draw, draw_watched, write_samples
from .options import Debug, Json, Offline
from .output import check_target, echo, fitting, progress_line
from .sample_output import DrawnSamples, check_out, label_facts
from .settings_parser import parse_settings

if TYPE_CHECKING:
    from torch import Tensor

SETTING = re.compile(r"([a-z_]+)=")
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT|KEY=VALUE", help="Texts with holes, and settings, such as n=1.", show_default=False),
]


def infill(
    run: Run,
    words: Words = None,
    out: Out = None,
    watch: Watch = False,
    json_file: Json = None,
    offline: Offline = False,
    debug: Debug = False,
) -> None:
    """Fill the holes of a prompt: [MASK] is a hole of one token, [MASK:5] of five.

    The rest of the prompt stays as it is. A prompt without holes is continued.

    [MASK:3 words] is a hole of as many tokens as three words have on average; [MASK:12 chars] counts characters.

    If tokens include the space before a word (gpt2, bpe:SIZE), the space before a hole is part of the hole.
    """
    from .command_settings import InfillSettings

    known = InfillSettings.model_fields
    settings = [word for word in words or [] if _is_setting(word, known)]
    texts = [word for word in words or [] if word not in settings]
    chosen = parse_settings(settings, InfillSettings)
    check_out(out)
    check_target(json_file)
    options = sampling_options(chosen)
    _note_quotes(texts)
    texts = _with_file(texts, chosen.prompts)
    with progress_line() as progress:
        progress(f"loading {run}")
        network = trained_network.load(run, chosen.device, chosen.model, offline=offline)
    if network.flow is None:
        raise ValueError(f"{network.folder} is an autoregressive network, which cannot infill; use `hopflow sample`")
    longest = cache(lambda: network.sequence_length(chosen.length))  # once: it may print a note
    prompts = [_prompt(text, number, network, chosen.length, longest) for number, text in enumerate(texts, 1)]
    _note_short(prompts, network.trained_length)
    n = chosen.n
    labels = network.labels(chosen.label, n * len(prompts))
    options = {**options, "labels": labels}
    with network.threads(chosen.threads):
        found = (draw_watched if watch else draw)(network, [prompt for prompt in prompts for _ in range(n)], options)
    asked = [{"prompt": text, "prompt_index": index} for index, text in enumerate(texts) for _ in range(n)]
    facts = label_facts(network, labels, found.rows) or [{} for _ in found.rows]
    of = [{**asked[row], **label} for row, label in zip(found.rows, facts, strict=True)]
    drawn = DrawnSamples.of(found.out, network, found.seconds, chosen, found.rows, len(asked), of)
    write_samples(drawn, out, json_file, found.shown)


def _note_short(prompts: Sequence["Tensor"], trained: int | None) -> None:
    """Tell the user if a prompt is far shorter than what the network has seen in training."""
    shortest = min(map(len, prompts))
    if trained is not None and 2 * shortest <= trained:
        tokens = f"{shortest} token{'s' * (shortest != 1)}"
        note = (
            f"note: a prompt of {tokens} is short for this network, which was trained on {trained}; "
            f"length={trained} continues the text and often fills the holes better"
        )
        echo(fitting(note), err=True)


def _note_quotes(words: Sequence[str]) -> None:
    """Tell the user if the words of one prompt were probably typed without quotes, or a hole in another spelling."""
    if len(words) > 1 and not any(re.search(r"\s", word) for word in words):
        text = shlex.quote(" ".join(words))
        echo(fitting(f"note: these are {len(words)} prompts; one prompt is typed in quotes: {text}"), err=True)
    for word in words:
        other = re.search(r"\[mask(:[^\]]*)?\]|<mask>", word, re.IGNORECASE)
        if other and not other[0].startswith("[MASK"):
            echo(fitting(f"note: {other[0]} is taken as text; a hole is typed [MASK] or [MASK:5]"), err=True)
            return


def _is_setting(word: str, known: Collection[str]) -> bool:
    """Whether a word is a setting: it begins with a known key, or looks like key=value with a mistyped key."""
    key = SETTING.match(word)
    return key is not None and (key[1] in known or not re.search(r"\s|\[MASK", word))


def _with_file(texts: list[str], file: str | None) -> list[str]:
    from ..sampling.prompts import read

    texts = texts + (read(Path(file)) if file else [])
    if not texts:
        raise ValueError('no prompt: type one, such as "To be, [MASK:5]", or a file of prompts, prompts=FILE')
    return texts


def _prompt(
    text: str,
    number: int,
    network: trained_network.TrainedNetwork,
    length: int | None,
    longest: Callable[[], int],
) -> "Tensor":
    """The prompt's tokens, continued by holes if it has none or if a length was typed."""
    from ..sampling.generation import HOLE
    from ..sampling.prompts import prompt

    try:
        tokens = prompt(text, network.tokenizer)
    except ValueError as error:
        raise ValueError(f"prompt {number}: {error}") from None
    if not len(tokens):
        raise ValueError(f"prompt {number} is empty; `hopflow sample` draws without a prompt")
    most, has_holes = length or network.trained_length, bool((tokens == HOLE).any())
    if most is not None and len(tokens) > most:
        limit = f"more than length={length}" if length else f"and the network was trained with {most}"
        raise ValueError(f"prompt {number} has {len(tokens)} tokens, {limit}: shorten it, or set length={len(tokens)}")
    if has_holes and not length:
        return tokens
    tokens = prompt(text, network.tokenizer, length=longest())
    if not (tokens == HOLE).any():
        raise ValueError(f"prompt {number} has no hole and fills all {longest()} tokens: there is nothing to draw")
    return tokens
