"""Rows of any discrete data: arrays in memory, and files of rows."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from unchecked import unchecked

import hopflow as hf
from hopflow.data import Tokenizer, token_cost
from hopflow.data.symbols import Numbers, Symbols
from hopflow.data.tokenizers import Characters

GRID = np.arange(60).reshape(20, 3) % 5


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOPFLOW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def all_rows(corpus):
    """Training and held-out rows, sorted."""
    both = torch.cat([corpus.batch(0, 0, corpus.rows), corpus.test])
    return sorted(map(tuple, both.tolist()))


def test_an_array_becomes_rows_with_every_row_once_and_its_own_label():
    labels = GRID[:, 0]  # so that the label can be checked
    corpus = hf.data.rows(GRID, labels=labels, holdout=0.2)
    assert (corpus.rows, corpus.length, corpus.vocab_size) == (16, 3, 5)
    assert all_rows(corpus) == sorted(map(tuple, GRID.tolist()))
    assert corpus.keep(0, 0, 4) is None
    assert corpus.test_keep is None
    assert torch.equal(corpus.test_labels, corpus.test[:, 0])
    assert torch.equal(corpus.labels(3, 7, 40), corpus.batch(3, 7, 40)[:, 0])
    assert corpus.label_names == ("0", "1", "2", "3", "4")
    assert corpus.decode([3, 1]) == "3 1"


def test_tensors_and_lists_are_arrays_too():
    assert all_rows(hf.data.rows(torch.tensor(GRID))) == all_rows(hf.data.rows(GRID.tolist()))


def test_rows_of_different_lengths_end_with_one_more_token_and_are_padded_and_masked():
    corpus = hf.data.rows([[0, 1], [2], [1, 1, 1]], holdout=0.0)
    assert (corpus.length, corpus.vocab_size, corpus.tokenizer.end) == (4, 4, 3)
    kept = {
        tuple(row): keep.tolist()
        for row, keep in zip(corpus.batch(0, 0, 3).tolist(), corpus.keep(0, 0, 3), strict=True)
    }
    assert kept[0, 1, 3, 3] == [True, True, True, False]
    assert kept[2, 3, 3, 3] == [True, True, False, False]
    assert kept[1, 1, 1, 3] == [True] * 4


def test_padding_of_an_array_is_marked_by_keep_and_may_have_any_id():
    corpus = hf.data.rows(
        np.array([[0, 1, -1], [2, 1, 0]]), keep=np.array([[True, True, False], [True] * 3]), holdout=0.0
    )
    assert all_rows(corpus) == [(0, 1, 3, 3), (2, 1, 0, 3)]


def test_keep_true_counts_the_padding():
    corpus = hf.data.rows([[0, 1], [2], [1, 1, 1]], keep=True, holdout=0.4)
    assert corpus.keep(0, 0, 2) is None
    assert corpus.test_keep is None


def test_a_mask_inside_rows_is_kept_as_it_is():
    keep = GRID != 2
    corpus = hf.data.rows(GRID, keep=keep, holdout=0.2)
    assert torch.equal(corpus.keep(0, 0, 16), corpus.batch(0, 0, 16) != 2)
    assert torch.equal(corpus.test_keep, corpus.test != 2)


def test_decode_by_symbols_is_stored_and_by_a_function_is_not():
    corpus = hf.data.rows(GRID, decode="ACGTN")
    assert corpus.decode([0, 4]) == "AN"
    assert Tokenizer.from_json(corpus.tokenizer.to_json()) == corpus.tokenizer
    shown = hf.data.rows(GRID, decode=lambda ids: f"{len(ids)} tokens")
    assert shown.decode([0, 4]) == "2 tokens"
    assert shown.tokenizer == Numbers(5)


@pytest.mark.parametrize(
    "tokenizer", [Numbers(300), Numbers(3, True), Symbols(("A", "C")), Symbols(("Cl", "Br"), True)], ids=str
)
def test_numbers_and_symbols_are_tokenizers(tokenizer):
    data = [i for i in range(tokenizer.size) if i != tokenizer.end]
    assert tokenizer.encode(tokenizer.decode(data)) == data
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer
    assert tokenizer.with_end().end == len(data)
    with pytest.raises(ValueError, match="'n"):
        tokenizer.encode("nope")


def test_the_identity_changes_with_every_part_of_the_data():
    labels = GRID[:, 0]
    variants = [
        hf.data.rows(GRID),
        hf.data.rows(GRID + 1),
        hf.data.rows(GRID, vocab=9),
        hf.data.rows(GRID, labels=labels),
        hf.data.rows(GRID, labels=labels[::-1]),
        hf.data.rows(GRID, decode="ACGTN"),
    ]
    identities = [tuple(corpus.identity.items()) for corpus in variants]
    assert len(set(identities)) == len(identities)
    assert hf.data.rows(GRID.copy()).identity == variants[0].identity


def test_rows_are_prepared_once_and_a_damaged_store_again(monkeypatch):
    np.save("x.npy", GRID)
    first = hf.data.load("x.npy")
    with monkeypatch.context() as patched:
        patched.setattr("hopflow.data.row_corpus.read_rows", lambda path: pytest.fail("the file was read again"))
        assert hf.data.load("x.npy").identity == first.identity
    train = first.store.folder / "train.bin"
    train.write_bytes(bytes(train.stat().st_size))
    assert all_rows(hf.data.load("x.npy")) == all_rows(first)


FILES = {
    "x.npy": lambda: np.save("x.npy", GRID),
    "one.npz": lambda: np.savez("one.npz", GRID),
    "x.npz": lambda: np.savez("x.npz", tokens=GRID, labels=GRID[:, 0], vocab=7),
    "x.fasta": lambda: write("x.fasta", ">a label=no\nAC\ngt\n>b label=yes\nGGGG\n"),
    "x.fa.gz": lambda: Path("x.fa.gz").write_bytes(gzip.compress(b">a\nACGT\n>b\nGGGG*\n")),
    "x.smi": lambda: write("x.smi", "CCO ethanol\nc1ccccc1 benzene\n"),
    "x.csv": lambda: write("x.csv", "name,sequence,label\na,ACGT,0\nb,GGGG,1\n"),
    "numbers.csv": lambda: write("numbers.csv", "p0,p1,label\n0,3,a\n2,1,b\n"),
}


def write(name, text):
    Path(name).write_text(text)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_rows_is_read(name):
    FILES[name]()
    corpus = hf.data.load(name, holdout=0.0)
    rows = sorted(corpus.decode(row) for row in corpus.batch(0, 0, corpus.rows))
    expected = {
        "x.smi": ["CCO<|endoftext|>" + "<|endoftext|>" * 5, "c1ccccc1<|endoftext|>"],
        "numbers.csv": ["0 3", "2 1"],
    }
    if name.endswith((".npy", ".npz")):
        assert all_rows(corpus) == sorted(map(tuple, GRID.tolist()))
    else:
        assert rows == expected.get(name, ["ACGT", "GGGG"])
    labels = {"x.npz": 5, "x.fasta": 2, "x.csv": 2, "numbers.csv": 2}
    assert len(corpus.label_names) == labels.get(name, 0)
    assert corpus.vocab_size == {"x.npz": 7, "x.smi": 5, "numbers.csv": 4}.get(name, 5 if "np" in name else 4)


def test_only_the_last_star_of_a_protein_is_the_mark_of_its_end():
    write("x.fasta", ">a\nMK*\nLV*\n>b\nMKLV\nA\n")
    corpus = hf.data.load("x.fasta", holdout=0.0)
    assert sorted(corpus.decode(row) for row in corpus.batch(0, 0, 2)) == ["MK*LV", "MKLVA"]


def test_a_line_break_inside_quotes_is_a_part_of_the_sequence():
    write("x.csv", 'sequence\n"a\nb"\nabc\n')
    corpus = hf.data.load("x.csv", holdout=0.0)
    assert sorted(corpus.decode(row) for row in corpus.batch(0, 0, 2)) == ["a\nb", "abc"]


@pytest.mark.parametrize("first", ["0,1,2", "1,2,3"])
def test_columns_may_be_called_by_their_place(first, own_cache):
    write("x.csv", f"{first}\n4,0,2\n0,3,1\n")
    corpus = hf.data.load("x.csv", holdout=0.0)
    assert sorted(corpus.batch(0, 0, 2).tolist()) == [[0, 3, 1], [4, 0, 2]]


def test_texts_have_a_mask_and_a_vocabulary_too():
    keep = np.array([[True, False, True], [False, True, True]])
    corpus = hf.data.rows(["abc", "bca"], keep=keep, holdout=0.0)
    at = {
        tuple(row): mask.tolist()
        for row, mask in zip(corpus.batch(0, 0, 2).tolist(), corpus.keep(0, 0, 2), strict=True)
    }
    assert at == {(0, 1, 2): [True, False, True], (1, 2, 0): [False, True, True]}
    np.savez("x.npz", tokens=np.array(["abc", "bca"]), keep=keep)
    assert torch.equal(hf.data.load("x.npz", holdout=0.0).keep(0, 0, 2), corpus.keep(0, 0, 2))
    assert hf.data.rows(["abc", "bca"], vocab=3).vocab_size == 3
    with pytest.raises(ValueError, match="vocab=9, but there are 3 symbols: pass vocab=3"):
        hf.data.rows(["abc", "bca"], vocab=9)


BAD = {
    "ids out of range": (lambda: np.savez("x.npz", tokens=GRID, vocab=4), "row 1, position 1: token id 4 is out of"),
    "negative ids": (lambda: np.save("x.npy", GRID - 1), "row 0, position 0: token id -1 is out of range"),
    "wrong shape": (lambda: np.save("x.npy", GRID.ravel()), r"shape \(rows, positions\).*got \(60,\)"),
    "three dimensions": (lambda: np.save("x.npy", GRID.reshape(5, 4, 3)), "reshape"),
    "no rows": (lambda: np.save("x.npy", GRID[:0]), "not be empty"),
    "floats": (lambda: np.save("x.npy", GRID / 2), "must contain integers.*float64"),
    "objects": (lambda: np.save("x.npy", np.array([[1], [2, 3]], object)), "Python objects"),
    "no array": (lambda: write("x.npy", "nothing"), "is not an array"),
    "no archive": (lambda: write("x.npz", "nothing"), "is not an array"),
    "unknown arrays": (lambda: np.savez("x.npz", tokens=GRID, colour=GRID), "unknown: colour"),
    "NaN labels": (lambda: np.savez("x.npz", tokens=GRID, labels=[0.0] * 19 + [np.nan]), "label of row 19 is NaN"),
    "float labels": (lambda: np.savez("x.npz", tokens=GRID, labels=[0.5] * 20), "labels must be integers"),
    "negative labels": (lambda: np.savez("x.npz", tokens=GRID, labels=[-1] * 20), "label of row 0 is -1"),
    "a label that is too large": (
        lambda: np.savez("x.npz", tokens=GRID, labels=[0] * 19 + [1 << 20]),
        "label of row 19 is 1048576; labels are integers from 0 to 1,048,575",
    ),
    "too few labels": (lambda: np.savez("x.npz", tokens=GRID, labels=[1] * 19), r"shape \(20,\), got \(19,\)"),
    "keep of another shape": (lambda: np.savez("x.npz", tokens=GRID, keep=GRID[1:] > 0), "keep must be True or False"),
    "an empty FASTA": (lambda: write("x.fasta", "\n"), "has no sequence"),
    "a FASTA record without a sequence": (lambda: write("x.fasta", ">a\nAC\n>b\n"), "line 3.*'b' has no sequence"),
    "a FASTA without names": (lambda: write("x.fasta", "ACGT\n"), "begins with a line"),
    "one label missing": (lambda: write("x.fasta", ">a label=1\nAC\n>b\nAC\n"), "line 3.*no label"),
    "a damaged archive": (lambda: write("x.fasta.gz", ">a\nAC\n"), "cannot be unpacked"),
    "an empty SMILES file": (lambda: write("x.smi", "# nothing\n"), "has no sequence"),
    "a missing label": (lambda: write("x.csv", "sequence,label\nAC,1\nAC,nan\n"), "row 3: the label is missing"),
    "a short line": (lambda: write("x.csv", "sequence,label\nAC\n"), "row 2: it has 1 columns"),
    "no column": (lambda: write("x.csv", "word\nhello\n"), "name the column of the sequences sequence"),
    "an empty table": (lambda: write("x.csv", ""), "has no rows"),
    "Latin-1": (lambda: Path("x.smi").write_bytes(b"C\xe9\n"), "not UTF-8"),
    "one row": (lambda: np.save("x.npy", GRID[:1]), "only one row"),
    "NaN": (lambda: np.save("x.npy", np.array([[0, np.nan], [1, 2]])), "must contain integers.*float64"),
    "truth values": (lambda: np.save("x.npy", GRID > 1), "must contain integers.*bool"),
    "one number": (lambda: np.save("x.npy", np.array(3)), "got a single value"),
    "an id far too large": (lambda: np.save("x.npy", GRID + (GRID == 4) * 2**40), "1099511627780 is out of range"),
    "an unsigned id far too large": (lambda: np.save("x.npy", np.full((2, 2), 2**63, np.uint64)), "is out of range"),
    "a vocabulary far too large": (lambda: np.savez("x.npz", tokens=GRID, vocab=2**40), "from 1 to 16,777,216"),
    "ragged arrays": (lambda: np.savez("x.npz", tokens=np.array([[1], [2, 3]], object)), "Python objects"),
    "an empty archive": (lambda: np.savez("x.npz"), "tokens is missing"),
    "an empty file": (lambda: Path("x.npy").touch(), "is not an array"),
    "keep without a token": (lambda: np.savez("x.npz", tokens=GRID, keep=GRID > 9), "row 0: keep is False everywhere"),
    "a table with a header only": (lambda: write("x.csv", "sequence,label\n"), "has no rows"),
    "NaN in a table": (lambda: write("x.csv", "p0,p1\n1,nan\n"), "row 2, column p1: 'nan' is not an integer"),
    "a blank in a table": (lambda: write("x.csv", "p0,p1\n1,2\n1,\n"), "row 3, column p1: '' is not an integer"),
    "a negative id in a table": (lambda: write("x.csv", "p0,p1\n1,-1\n0,1\n"), "token id -1 is out of range"),
    "a column twice": (lambda: write("x.csv", "sequence,sequence\nA,B\nC,D\n"), "two columns have the name 'sequence'"),
    "a column without a name": (lambda: write("x.csv", ",p0,p1\n0,1,2\n1,2,2\n"), "column 1 has no name"),
    "a table without column names": (lambda: write("x.csv", "1,2,0\n0,1,2\n"), "add a line of column names"),
    "a quote that is not closed": (lambda: write("x.csv", 'sequence\nAC\n"AG\nAT\n'), "is not a CSV file"),
    "an empty label": (lambda: np.savez("x.npz", tokens=GRID, labels=["a"] * 19 + [""]), "label of row 19 is empty"),
    "a row without a token that counts": (
        lambda: np.savez("x.npz", tokens=GRID, keep=(np.arange(60).reshape(20, 3) % 2 == 0) & (GRID[:, :1] != 4)),
        "keep is False everywhere",
    ),
    "an empty sequence": (lambda: write("x.csv", "sequence\nA\n \n"), "row 3: the column sequence is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_refused_with_one_message_and_nothing_is_stored(case, own_cache):
    make, message = BAD[case]
    make()
    (name,) = (path.name for path in own_cache.iterdir() if path.suffix)
    with pytest.raises(ValueError, match=message):
        hf.data.load(name)
    assert not list(own_cache.glob("cache/tokens/*/*"))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "got a single value"),
        (5, "got a single value"),
        ("ACGT", "got a single value"),
        ([], "got no rows"),
        ([[]], "not be empty"),
        ([1, 2], r"got \(2,\)"),
        ([["a"]], "must contain integers"),
        ([[0.5, 1], [1]], "must contain one or more integers"),
        (["AC", [1]], "row 1 must be a text"),
        (["AC", ""], "row 1 must be a text of one or more characters"),
        ([[0, -1], [1]], "row 0, position 1: token id -1"),
    ],
    ids=str,
)
def test_bad_rows_in_memory_are_refused(rows, message, own_cache):
    with pytest.raises(ValueError, match=message):
        hf.data.rows(rows)
    assert not list(own_cache.glob("cache/tokens/*/*"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"labels": ["a", float("nan")] * 10}, "label of row 1 is nan; use integers from 0, or texts only"),
        ({"labels": ["a", None] * 10}, "label of row 1 is None"),
        ({"labels": [1, "a"] * 10}, "label of row 0 is 1"),
        ({"holdout": -1.0}, "holdout must be a fraction from 0 to 1, e.g. 0.02, got -1.0"),
        ({"holdout": float("nan")}, "holdout must be a fraction from 0 to 1"),
    ],
    ids=str,
)
def test_wrong_arguments_of_rows_are_named(keys, message):
    with pytest.raises(ValueError, match=message):
        unchecked(hf.data.rows)(GRID, **keys)


def test_labels_of_a_table_s_column_are_texts():
    column = np.array(["b", "a"] * 10, object)  # as pandas returns it
    assert hf.data.rows(GRID, labels=column).label_names == ("a", "b")


def test_the_length_of_rows_is_theirs():
    np.save("x.npy", GRID)
    with pytest.raises(ValueError, match="have 3 tokens, but length is 5: leave length out"):
        hf.data.load("x.npy", length=5)
    assert hf.data.load("x.npy", length=3).length == 3


def test_a_tokenizer_of_text_is_refused_for_ids():
    np.save("x.npy", GRID)
    with pytest.raises(ValueError, match="contains token ids"):
        hf.data.load("x.npy", tokens="byte")
    with pytest.raises(ValueError, match="contains token ids, tokens=bpe:300 is for text"):
        hf.data.load("x.npy", tokens="bpe:300")


def test_a_file_that_does_not_exist_is_named():
    with pytest.raises(FileNotFoundError, match=r"nothing\.fasta"):
        hf.data.load("nothing.fasta")


BLOSUM = """# the first amino acids of BLOSUM62
   A  R  N  D
A  4 -1 -2 -2
R -1  5  0 -2
N -2  0  6  1
D -2 -2  1  6
"""


def test_a_similarity_matrix_becomes_a_cost_with_zero_diagonal():
    write("blosum.txt", BLOSUM)
    cost = token_cost("blosum.txt", Characters("ADN", True), masks=1)
    rows = np.array(cost.rows)
    assert rows.shape == (5, 5)
    assert (np.diagonal(rows) == 0).all()
    assert rows[0, 1] == (4 + 6) / 2 + 2  # A to D
    assert rows[1, 2] == (6 + 6) / 2 - 1  # D to N
    assert (rows[3:][~np.eye(5, dtype=bool)[3:]] == 7).all()  # end and mask: the largest cost of the table, A to N


def test_a_table_of_costs_is_used_as_it_is():
    write("costs.txt", "\ufeffa b\na 0 2\nb 3 0\n")
    assert token_cost("costs.txt", Characters("ab")).rows == ((0.0, 2.0), (3.0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a table"),
        ("a b\na 0 1\n", "not a table"),
        ("a b\na 0 x\nb 1 0\n", "not a table"),
        ("a b\na 0 1\nb 1 0\na 0 2\n", "not a table"),
        ("a a\na 0 1\na 1 0\n", "not a table"),
        ("a b\na 0 1\nb 1 0\nc 1 1\n", "not a table"),
        ("a b\na 0 nan\nb 1 0\n", "not a table"),
        ("a b\na 0 -1\nb 1 0\n", "from a to b is -1"),
        ("a c\na 0 1\nc 1 0\n", "no row for the token 'b'"),
    ],
)
def test_a_bad_table_is_refused(text, message):
    write("costs.txt", text)
    with pytest.raises(ValueError, match=message):
        token_cost("costs.txt", Characters("ab"))


def test_a_vocabulary_may_have_one_token():
    assert hf.data.rows([[0, 0], [0, 0]], vocab=1, holdout=0.5).vocab_size == 1
