"""The grammar of SMILES strings, without chemistry: atoms, bonds, branches and rings."""

import re

ATOM = re.compile(r"\[[^\[\]]*[A-Za-z*][^\[\]]*\]|Br|Cl|[BCNOPSFIbcnops*]")
BOND = re.compile(r"[-=#$:/\\~]")
RING = re.compile(r"%\d\d|\d")


def is_smiles(text: str) -> bool:
    """Whether a text is a SMILES string by its grammar: every branch and ring is closed, every bond has two atoms.

    >>> is_smiles("CC(=O)O"), is_smiles("c1ccccc1"), is_smiles("C1CC"), is_smiles("CC(")
    (True, True, False, False)
    """
    rings: set[str] = set()
    depth, place = 0, 0
    atom = bond = empty = False  # an atom to bind to, a bond that waits for one, a branch without an atom
    while place < len(text):
        if found := ATOM.match(text, place):
            atom, bond, empty = True, False, False
        elif found := BOND.match(text, place):
            if bond or not atom:
                return False
            bond = True
        elif found := RING.match(text, place):
            if not atom or empty:
                return False
            rings ^= {found[0].lstrip("%").lstrip("0")}
            bond = False
        elif text[place] == "(":
            if bond or not atom or empty:
                return False
            depth, empty = depth + 1, True
        elif text[place] == ")":
            if bond or empty or not depth:
                return False
            depth -= 1
        elif text[place] == ".":
            if bond or empty or not atom:
                return False
            atom = False
        else:
            return False
        place = found.end() if found else place + 1
    return atom and not (bond or empty or depth or rings)
