"""What holds for every test: no Ray and two seconds, unless it is marked ``live``."""

import gc
import os
import shutil
import time
from pathlib import Path

# Before torch is imported anywhere: its threads only get in each other's way on small crops.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import ray
from hypothesis import settings

UNIT_LIMIT_S = 2.0
BLOCKED_LIMIT_S = 20.0
SLOWEST_MACHINE = 4.0
"""By how much a machine may be slower than one on which every unit test keeps its limit."""

SLOW = "slow"
"""Property of a test that took longer."""

# The same examples every time, and no limit on one example: the limit below is on the whole test.
settings.register_profile("ekya", derandomize=True, deadline=None)
settings.load_profile("ekya")


def _is_live(item):
    return item.get_closest_marker("live") is not None


def _is_virtual(item):
    return item.get_closest_marker("virtual") is not None


def pytest_collection_modifyitems(items):
    """Whole runs on virtual time come first: of what runs beside others, they take longest."""
    items.sort(key=lambda item: not _is_virtual(item))


@pytest.fixture(autouse=True)
def no_ray_in_unit_tests(request, monkeypatch):
    """A test that is not live, or on virtual time, fails where it reaches for Ray."""
    if _is_live(request.node) and not _is_virtual(request.node):
        return

    def forbidden(*_args, **_kwargs):
        raise AssertionError(
            "only a live test on the wall clock may start Ray; mark it so, or test the part below"
        )

    monkeypatch.setattr(ray, "init", forbidden)


def pytest_collection_finish():
    """What was imported stays: no collection of rubbish need walk over its 700 000 objects."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A unit test has two seconds of processor time: one that takes more is named at the end.

    It fails where no slow machine can be the reason, or where it sits waiting.
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
    """How long this thread was ready to run and had no core: no test's fault."""
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
    """The folder of shared videos and weights; tests that need it are skipped where it is missing."""
    if not _DATA.is_dir():
        pytest.skip(f"no shared data at {_DATA}; set EKYA_DATA to the folder that has it")
    return _DATA


@pytest.fixture(scope="session")
def shared_data():
    """The same folder for tests that can do without it: None where it is missing."""
    return _DATA if _DATA.is_dir() else None


@pytest.fixture(scope="session")
def copied(tmp_path_factory):
    """``copied(draw, folder)`` puts there what ``draw`` draws into a folder, once a process."""
    drawn = {}

    def copy(draw, folder):
        if draw not in drawn:
            drawn[draw] = tmp_path_factory.mktemp("drawn") / "data"
            draw(drawn[draw])
        shutil.copytree(drawn[draw], folder, dirs_exist_ok=True)

    return copy
