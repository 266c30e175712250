"""Morse: text as dots, dashes and separators, the paper's proof of concept (Section 5.1 [toy_datasets])."""

# International Morse code, Recommendation ITU-R M.1677-1. The paper does not print its table; of those tried on
# Shakespeare, this one predicts 85.44 jumps of independent pairs at L = 128, beside the paper's 85.47 ± 0.1.
# fmt: off
LETTERS = {
    "A": ".-", "B": "-...", "C": "-.-.", "D": "-..", "E": ".", "F": "..-.", "G": "--.", "H": "....", "I": "..",
    "J": ".---", "K": "-.-", "L": ".-..", "M": "--", "N": "-.", "O": "---", "P": ".--.", "Q": "--.-", "R": ".-.",
    "S": "...", "T": "-", "U": "..-", "V": "...-", "W": ".--", "X": "-..-", "Y": "-.--", "Z": "--..",
}
FIGURES = {
    "1": ".----", "2": "..---", "3": "...--", "4": "....-", "5": ".....",
    "6": "-....", "7": "--...", "8": "---..", "9": "----.", "0": "-----",
}
MARKS = {
    ".": ".-.-.-", ",": "--..--", ":": "---...", "?": "..--..", "'": ".----.", "-": "-....-", "/": "-..-.",
    "(": "-.--.", ")": "-.--.-", '"': ".-..-.", "=": "-...-", "+": ".-.-.", "@": ".--.-.",
}
# fmt: on
CODE = {**LETTERS, **{letter.lower(): code for letter, code in LETTERS.items()}, **FIGURES, **MARKS}
SEPARATOR = " "

_TABLE = str.maketrans({character: code + SEPARATOR for character, code in CODE.items()})


def to_morse(text: str) -> str:
    """Each convertible character becomes its code and a separator; all others (spaces, newlines, ";", "!") stay.

    A space of the text follows the separator of the character before it, so that words stand two blanks apart.
    """
    return text.translate(_TABLE)
