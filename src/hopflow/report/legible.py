"""Legible: text of any origin as characters that may stand in a file and steer nothing."""

import unicodedata


def legible(text: str) -> str:
    """With a picture for every control character, ␛ for escape, and U+FFFD for what is no character.

    Line ends and tabs stay; so do marks that scripts need, such as joiners.
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Cn") else _picture(c) for c in text)


def _picture(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    return "␡" if character == "\x7f" else "\ufffd"
