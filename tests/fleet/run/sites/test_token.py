"""The token of a fleet: made once, readable by its owner only."""

import stat

import pytest

from ekya.core.errors import UserError
from ekya.fleet.run.sites.server import TOKEN_VARIABLE, fleet_token


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_a_missing_file_is_made_once_and_for_its_owner(tmp_path) -> None:
    path = tmp_path / "ekya" / "token"
    token = fleet_token(path)
    assert len(token) == 43
    assert fleet_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["token"]
    assert fleet_token(tmp_path / "other") != token


def test_the_default_is_in_the_home_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = fleet_token()
    assert (tmp_path / ".config/ekya/fleet_token").read_text().strip() == token


def test_the_variable_comes_first(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, " " + "t" * 40 + "\n")
    assert fleet_token(tmp_path / "token") == "t" * 40
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(UserError, match=r"^EKYA_FLEET_TOKEN: .*unset it$"):
        fleet_token(tmp_path / "token")


def test_a_file_that_others_can_read_or_without_a_token_is_refused(tmp_path) -> None:
    path = tmp_path / "token"
    fleet_token(path)
    path.chmod(0o640)
    with pytest.raises(UserError, match=r"token: .*chmod 600"):
        fleet_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(UserError, match="no token of at least 32 characters; remove the file"):
        fleet_token(path)


def test_another_process_may_make_the_file_first(tmp_path, monkeypatch) -> None:
    path = tmp_path / "token"
    first = fleet_token(path)
    monkeypatch.setattr(type(path), "exists", lambda _: False)
    assert fleet_token(path) == first
    assert len(list(tmp_path.iterdir())) == 1
