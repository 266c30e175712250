"""Reading regular files only, within a limit."""

import tracemalloc

import pytest

from hopflow.system import regular_file


def test_reading_a_small_file_reserves_no_memory_for_the_largest_allowed_one(tmp_path):
    (tmp_path / "small").write_bytes(b"content")
    tracemalloc.start()
    try:
        assert regular_file.read(tmp_path / "small", 1 << 28) == b"content"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("most", [1 << 70, 7])
def test_every_limit_at_or_above_the_size_is_accepted(tmp_path, most):
    (tmp_path / "small").write_bytes(b"content")
    assert regular_file.read(tmp_path / "small", most) == b"content"


def test_a_larger_file_is_not_read(tmp_path):
    (tmp_path / "small").write_bytes(b"content")
    with pytest.raises(ValueError, match="7 bytes, at most 6 are allowed"):
        regular_file.read(tmp_path / "small", 6)
