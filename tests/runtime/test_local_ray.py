"""Tests that a Ray of ours is this user's alone, and of its store; sockets are in ``test_live_service``."""

import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._private import ray_constants, services

from ekya.core.errors import UserError
from ekya.gpu.nvml import GpuInventory
from ekya.runtime.driver.local_ray import STORE_BYTES, fit_object_store, object_store_bytes, private_ray
from ekya.runtime.driver.machine_report import examine_machine

MB = 1024**2
DOCKERS_DEFAULT = 64 * MB
RAYS_LEAST = 75 * MB


@pytest.fixture
def token(tmp_path, monkeypatch):
    """Path of the token in a home of this test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".ray" / "auth_token"


@pytest.mark.usefixtures("token")
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


@pytest.mark.usefixtures("token")
def test_ray_that_a_busy_machine_starts_too_slowly_is_the_users_error():
    with pytest.raises(UserError, match="did not start within the 30 s"), private_ray():
        raise Exception("The current node timed out during startup. This could happen because ...")
    with pytest.raises(ValueError, match="another"), private_ray():
        raise ValueError("another")


@pytest.fixture
def shared_memory(monkeypatch):
    of_disk = shutil.disk_usage

    def has(free_bytes):
        def usage(folder):
            return SimpleNamespace(free=free_bytes) if folder == Path("/dev/shm") else of_disk(folder)

        monkeypatch.setattr(shutil, "disk_usage", usage)

    return has


def test_store_in_large_shared_memory_has_the_wanted_size(shared_memory, caplog):
    shared_memory(8 * STORE_BYTES)
    assert object_store_bytes() == STORE_BYTES
    assert object_store_bytes(256 * MB) == 256 * MB
    assert caplog.messages == []


@pytest.mark.parametrize("free_mb", [80, 128, 512, 1000])
def test_store_in_small_shared_memory_takes_what_is_free(shared_memory, caplog, free_mb):
    shared_memory(free_mb * MB)
    assert RAYS_LEAST <= object_store_bytes() <= free_mb * MB
    assert caplog.messages == []


def test_store_in_tiny_shared_memory_warns_once_with_the_remedy(shared_memory, caplog):
    shared_memory(DOCKERS_DEFAULT)
    with caplog.at_level(logging.WARNING):
        assert object_store_bytes() >= RAYS_LEAST
    assert len(caplog.messages) == 1
    assert "67 MB free" in caplog.text
    assert "docker run --shm-size=2g" in caplog.text


def test_store_without_shared_memory_is_on_disk(tmp_path):
    assert "kept on disk" in fit_object_store(shared=tmp_path / "none").slow


def test_doctor_on_small_shared_memory_warns_and_succeeds(shared_memory, tmp_path):
    shared_memory(DOCKERS_DEFAULT)
    examination = examine_machine(tmp_path, GpuInventory((), None, "no driver"))
    [finding] = [one for one in examination.findings if one.what == "Shared memory"]
    assert finding.fine
    assert "--shm-size=2g" in finding.found
