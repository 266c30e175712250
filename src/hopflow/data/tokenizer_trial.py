"""A program that tests a tokenizer: it loads a definition, and encodes and decodes a few texts.

    python tokenizer_trial.py DEFINITION FOLDER…

It imports from these folders. The exit code is 0 if the library does not crash, even if it raises an exception for a
text; a panic of the library is printed, with exit code 2. Nothing of hopflow is imported here.
"""

import sys
from pathlib import Path

MEMORY = 8 << 30  # bytes
IDS = 4096  # ids that are decoded
PRINTABLE = "".join(map(chr, range(32, 127)))
TEXTS = (
    "",
    " ",
    PRINTABLE,
    f"{PRINTABLE}\r\n\t\n\n{PRINTABLE[::-1]}" * 20,
    "à ça, ñ é ß Ω ж א ع ह 中文 日本 한국 🦊👩‍👩‍👧 \u200b\u00a0\u2028\ufeff\ufffd",
    *(letter * 60 + end for letter in "ae0 ._" for end in ("", "!", "\n", f"! {PRINTABLE}\n")),
)


def survives(definition: str) -> str:
    """The message of a panic of the library; empty if there is none."""
    import tokenizers

    try:
        engine = tokenizers.Tokenizer.from_str(definition)
        engine.encode_special_tokens = True
        ids = sorted(engine.get_vocab(with_added_tokens=True).values())[:IDS]
        for text in TEXTS:
            try:
                found = engine.encode_batch_fast([text], add_special_tokens=False)[0].ids
                engine.decode(found, skip_special_tokens=False)
            except Exception:  # a text that it cannot encode, such as an unknown word, is not a crash
                continue
        for some in (ids, ids[::-1], *([i] for i in ids), *([i, i] for i in ids)):
            engine.decode(some, skip_special_tokens=False)
    except Exception:  # not a tokenizer: reported when it is loaded
        return ""
    except BaseException as panic:
        return str(panic) or "a panic"
    return ""


def main() -> None:
    """Test the definition in a file, with limited memory; the further arguments are the folders to import from."""
    file, *folders = sys.argv[1:]
    sys.path[:] = folders
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):  # the system has no such limits
        pass
    panic = survives(Path(file).read_text(encoding="utf-8"))
    sys.stdout.write(panic)
    sys.exit(2 if panic else 0)


if __name__ == "__main__":
    main()
