"""Tests that a Ray of ours is reached by this user alone; what it listens on is in ``test_live_service``."""

import os
from pathlib import Path

import pytest
from ray._private import ray_constants, services

from ekya.runtime.driver.private_ray import private_ray


@pytest.fixture(autouse=True)
def token(tmp_path, monkeypatch):
    """Path of the token in a home of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".ray" / "auth_token"


def test_node_of_a_private_ray_is_on_loopback_and_others_are_as_before():
    before = ray_constants.ENABLE_RAY_CLUSTER
    with private_ray():
        assert services.get_node_ip_address() == "127.0.0.1"
    assert before is ray_constants.ENABLE_RAY_CLUSTER is True


@pytest.mark.parametrize("known", ["", "a token of Ray's"])
def test_token_of_ray_is_readable_by_its_user_alone(token, known):
    if known:
        token.parent.mkdir()
        token.write_text(known)
        token.chmod(0o644)
    with private_ray():
        assert token.stat().st_mode & 0o777 == 0o600
        assert token.read_text() == known


def test_token_from_elsewhere_is_left_alone(token, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    with private_ray():
        assert not token.parent.exists()
        assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "elsewhere")
    assert Path.home() == tmp_path
