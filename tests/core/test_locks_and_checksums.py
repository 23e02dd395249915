"""Files and folders keep what they are: one writer, checksums, devices, links and modes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.core import StorageError
from gradus.core.files import check_checksums, write_checksums, write_text
from gradus.sandbox.locks import FolderLock

HOLD = """
import sys
from pathlib import Path
from gradus.sandbox.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_writer_and_a_second_is_told_who_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=rf"in use by process {other.pid} "):
            FolderLock(tmp_path / "run")
        other.kill()
        other.wait()
        FolderLock(tmp_path / "run").release()  # a killed process holds nothing
    first, again = FolderLock(tmp_path / "mine"), FolderLock(tmp_path / "mine")
    again.release()
    first.release()


def test_every_flipped_byte_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "weights").write_bytes(bytes(range(100)))
    (tmp_path / "sub" / "config.json").write_text("{}")
    check_checksums(tmp_path)  # nothing to compare with
    write_checksums(tmp_path)
    check_checksums(tmp_path)
    for name in ("weights", "sub/config.json"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(StorageError, match=f"is damaged: {name}"):
            check_checksums(tmp_path)
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "weights").unlink()
    with pytest.raises(StorageError, match="is damaged"):
        check_checksums(tmp_path)
    (tmp_path / "SHA256SUMS").write_bytes(b"\xff")
    with pytest.raises(StorageError, match="is damaged"):
        check_checksums(tmp_path)


def test_devices_links_and_modes_stay_what_they_are(tmp_path: Path) -> None:
    fifo, reader = tmp_path / "pipe", None
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    write_text(fifo, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert fifo.is_fifo()
    write_text(Path("/dev/null"), "nothing")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    (tmp_path / "target").chmod(0o600)
    write_text(tmp_path / "target", "private")
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o600
