"""Fixtures of the tests of commands."""

import sys
from types import ModuleType

import pytest
from commands import FakeWorld, write_fleet
from draw_samples import draw_cityscapes


def two_cities(root):
    draw_cityscapes(root, {"aachen": 3, "ulm": 2})
    for top in ("leftImg8bit", "gtFine"):
        (root / top / "val").mkdir()


@pytest.fixture
def place(tmp_path, copied, monkeypatch):
    """Working folder that contains a data set of two cities."""
    copied(two_cities, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
