"""Fixtures of the tests of commands."""

import sys
from types import ModuleType

import pytest
from commands import FakeWorld, write_fleet


@pytest.fixture
def fleet(tmp_path):
    """Fleet file of one rendered camera."""
    return write_fleet(tmp_path)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Fake of both worlds."""
    fake = FakeWorld(tmp_path / "runs")
    for module, function in (
        ("ekya.runtime.driver.live", "run_live"),
        ("ekya.simulation.emulated.run", "run_emulated"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, function, fake.run)
        monkeypatch.setitem(sys.modules, module, stand_in)
    return fake
