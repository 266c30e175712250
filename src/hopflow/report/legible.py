"""Text of any origin without control characters."""

import unicodedata


def legible(text: str) -> str:
    """The text with symbols for control characters (␛ for escape), and U+FFFD for invalid ones.

    Line ends and tabs stay, and so do marks that scripts need, such as joiners.
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs", "Cn") else _picture(c) for c in text)


def _picture(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    return "␡" if character == "\x7f" else "\ufffd"
