import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ekya.gpu.nvml import GpuInventory
from ekya.runtime.driver.machine_report import examine
from ekya.runtime.driver.object_store import STORE_BYTES, fit_object_store, object_store_bytes

MB = 1024**2
DOCKERS_DEFAULT = 64 * MB
RAYS_LEAST = 75 * MB


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
    examination = examine(tmp_path, GpuInventory((), None, "no driver"))
    [finding] = [one for one in examination.findings if one.what == "Shared memory"]
    assert finding.fine
    assert "--shm-size=2g" in finding.found
