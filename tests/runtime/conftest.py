"""Fixtures of the live world's tests."""

import pytest
from fake_actors import FakeActors

from ekya.results.storage.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    """Folder of a run."""
    return RunFolder.create_numbered(tmp_path, "run")


@pytest.fixture
def actors(monkeypatch):
    """Fake actors of one stream, in the place of Ray."""
    return FakeActors().install(monkeypatch)
