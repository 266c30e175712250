import errno
import os
from pathlib import Path

import pytest

from hopflow import atomic


def test_a_written_file_holds_the_new_content_and_leaves_no_neighbour(tmp_path):
    file = tmp_path / "result.json"
    atomic.write(file, b"old")
    atomic.write(file, b"new")
    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch, call):
    file = tmp_path / "result.json"
    atomic.write(file, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match=r"No space.*result\.json"):
        atomic.write(file, b"new")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_followed_not_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    atomic.write(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_device_is_written_in_place():
    device = Path(os.devnull)
    atomic.write(device, b"gone")
    assert device.is_char_device()
