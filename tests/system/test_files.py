"""Atomic writes: only a regular file is replaced; a FIFO, a device and a link stay what they are."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ekya.core.errors import UserError
from ekya.system.files import expand_home, write_text_atomic

TEXT = "{}\n"


@pytest.fixture
def background():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def fifo(path, background):
    os.mkfifo(path)
    return background.submit(path.read_text).result


def device(path, _):
    reading, writing = os.openpty()
    path.symlink_to(os.ttyname(writing))
    return lambda: os.read(reading, 100).decode().replace("\r\n", "\n")


def link(path, _):
    path.with_name("file").write_text("old")
    path.symlink_to("file")
    return path.with_name("file").read_text


def link_to_nothing(path, _):
    path.symlink_to("file")
    return path.with_name("file").read_text


@pytest.mark.parametrize("make", [fifo, device, link, link_to_nothing])
def test_what_is_no_regular_file_is_written_into(tmp_path, background, make):
    path = tmp_path / "out"
    read = make(path, background)
    before = path.lstat()
    write_text_atomic(path, TEXT)
    assert read() == TEXT
    after = path.lstat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert not list(tmp_path.glob(".*"))


def test_a_user_without_a_home_folder_is_told():
    with pytest.raises(UserError, match=r"^~nobody-of-this-name/a: this user has no home folder; set HOME"):
        expand_home(Path("~nobody-of-this-name/a"))


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    path = tmp_path / "out"
    path.symlink_to("out")
    with pytest.raises(UserError, match="leads back to itself"):
        write_text_atomic(path, TEXT)
    assert path.is_symlink()
