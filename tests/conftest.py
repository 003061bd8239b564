"""Fixtures and limits of all tests: unless marked ``live``, a test may not use Ray, and none may hang."""

import faulthandler
import gc
import os
import shutil
import sys
from pathlib import Path

# Set before torch is imported: its threads only slow each other down on small crops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import ray
from hypothesis import settings

# Of what is made while tests are collected, nearly all stays: looking for garbage took a third of the time.
gc.disable()

LONG_HANG_GUARD_S = 1800
"""How long a test may take that is long or live: it plays a whole run, or waits for many things, with a guard
for each (``waiting.py``). All others have the ``timeout`` of pyproject.toml.
"""

TO_FAIL_S = 60.0
"""How long a test that hung may take to fail and to tidy up."""

_STDERR = pytest.StashKey[int]()

# The same examples in every run; no deadline for one example: no test looks at a clock.
settings.register_profile("ekya", derandomize=True, deadline=None)
settings.load_profile("ekya")


def _is_live(item):
    return item.get_closest_marker("live") is not None


def _is_virtual(item):
    return item.get_closest_marker("virtual") is not None


def pytest_collection_modifyitems(items):
    """Gives whole runs their guard, and begins with those on virtual time, which take longest in parallel."""
    items.sort(key=lambda item: not _is_virtual(item))
    for item in items:
        if item.get_closest_marker("long") or _is_live(item):
            item.add_marker(pytest.mark.timeout(LONG_HANG_GUARD_S))


@pytest.fixture(autouse=True)
def no_ray_in_unit_tests(request, monkeypatch):
    """Makes a test fail that uses Ray, unless it is live and not on virtual time."""
    if _is_live(request.node) and not _is_virtual(request.node):
        return

    def forbidden(*_args, **_kwargs):
        raise AssertionError(
            "only a live test on the wall clock may start Ray; mark it so, or test the part below"
        )

    monkeypatch.setattr(ray, "init", forbidden)


def pytest_collection_finish():
    """Freezes the 700 000 imported objects, so that garbage collections skip them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Ends the process, and shows its stacks, if a test that hung could not be failed: say, one stuck in C.

    pytest-xdist names such a test, and the run ends.
    """
    marker = item.get_closest_marker("timeout")
    guard_s = float(marker.args[0] if marker else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(guard_s + TO_FAIL_S, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_configure(config):
    # A test's own standard error is captured, and would be lost with the process.
    config.stash[_STDERR] = os.dup(sys.__stderr__.fileno())


_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
_DATA = Path(os.environ.get("EKYA_DATA", _BESIDE))


@pytest.fixture(scope="session")
def data_dir():
    """Folder of shared videos and weights; skips the test if it is missing."""
    if not _DATA.is_dir():
        pytest.skip(f"no shared data at {_DATA}; set EKYA_DATA to the folder that has it")
    return _DATA


@pytest.fixture(scope="session")
def shared_data():
    """Folder of shared videos and weights, or None if it is missing, for tests that can do without it."""
    return _DATA if _DATA.is_dir() else None


@pytest.fixture(scope="session")
def copied(tmp_path_factory):
    """``copied(draw, folder)`` copies what ``draw`` writes into a folder; ``draw`` runs once per process."""
    drawn = {}

    def copy(draw, folder):
        if draw not in drawn:
            drawn[draw] = tmp_path_factory.mktemp("drawn") / "data"
            draw(drawn[draw])
        shutil.copytree(drawn[draw], folder, dirs_exist_ok=True)

    return copy
