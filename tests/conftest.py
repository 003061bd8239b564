"""Fixtures and limits of all tests: unless marked ``live``, a test may not use Ray and has two seconds."""

import gc
import os
import shutil
import time
from pathlib import Path

# Set before torch is imported: its threads only slow each other down on small crops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import ray
from hypothesis import settings

UNIT_LIMIT_S = 2.0
BLOCKED_LIMIT_S = 20.0
SLOWEST_MACHINE = 4.0
"""Upper bound on how much slower a machine may be than one on which every unit test keeps its limit."""

SLOW = "slow"
"""Name of the property that reports a slow test."""

# The same examples in every run; no deadline for one example, since the limit below is for the whole test.
settings.register_profile("ekya", derandomize=True, deadline=None)
settings.load_profile("ekya")


def _is_live(item):
    return item.get_closest_marker("live") is not None


def _is_virtual(item):
    return item.get_closest_marker("virtual") is not None


def pytest_collection_modifyitems(items):
    """Runs whole runs on virtual time first: they take longest of the tests that run in parallel."""
    items.sort(key=lambda item: not _is_virtual(item))


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


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Limits a unit test to two seconds of processor time; a slower one is listed at the end.

    It fails only if a slow machine cannot be the reason, or if it blocks.
    """
    began_s, began_cpu_s, began_queued_s = time.monotonic(), time.process_time(), _queued_s()
    result = yield
    if not _is_live(item):
        cpu_s = time.process_time() - began_cpu_s
        waited_s = time.monotonic() - began_s - cpu_s - (_queued_s() - began_queued_s)
        if cpu_s > UNIT_LIMIT_S:
            item.user_properties.append((SLOW, f"{cpu_s:.1f} s: {item.nodeid}"))
        if cpu_s > SLOWEST_MACHINE * UNIT_LIMIT_S or waited_s > BLOCKED_LIMIT_S:
            pytest.fail(
                f"a unit test has {UNIT_LIMIT_S:g} s of processor time and may wait {BLOCKED_LIMIT_S:g} s; "
                f"this one took {cpu_s:.1f} s and waited {waited_s:.1f} s",
                pytrace=False,
            )
    return result


def _queued_s():
    """Returns how long threads were ready to run without a core, which is no fault of the test.

    Those of the whole machine, since a test may wait for a process of its own; without the kernel's pressure
    figures, this thread alone.
    """
    try:
        return int(Path("/proc/pressure/cpu").read_text().partition("total=")[2].split()[0]) / 1e6
    except (OSError, IndexError):
        pass
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def pytest_terminal_summary(terminalreporter):
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    slow = [told for report in reports for name, told in report.user_properties if name == SLOW]
    if slow:
        terminalreporter.section(f"unit tests of more than {UNIT_LIMIT_S:g} s of processor time")
        terminalreporter.write_line("\n".join(slow))


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
