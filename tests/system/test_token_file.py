"""Files of tokens: made once, readable by their owner only."""

import os

import pytest

from ekya.core.errors import UserError
from ekya.system.token_file import make_token_file, read_token_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "token"


def test_a_token_is_private_and_there_is_nothing_else_in_its_folder(path):
    make_token_file(path)
    token = read_token_file(path, "")
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_another_process_may_make_the_file_first(path):
    make_token_file(path)
    token = read_token_file(path, "")
    make_token_file(path)
    assert read_token_file(path, "") == token
    assert list(path.parent.iterdir()) == [path]


def test_a_file_system_without_links_holds_a_token_too(path, monkeypatch):
    def refuse(_origin, _target):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    make_token_file(path)
    assert len(read_token_file(path, "")) == 43
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short\n",
        b"\xff" * 40,
        b"a" * 20 + b"\n" + b"b" * 20,
        "ä".encode() * 40,
        b"two lines that are long enough\nfor a token",
    ],
)
def test_a_file_without_a_token_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match="no token of at least 32 characters; remove the file"):
        read_token_file(path, "remove the file")


def test_what_a_user_can_mend_is_said(path):
    with pytest.raises(UserError, match="does not exist"):
        read_token_file(path, "")
    with pytest.raises(UserError, match="does not exist"):
        make_token_file(path.parent / "no" / "token")
