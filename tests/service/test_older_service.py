"""A service whose folder was written by an earlier version of Ekya (commit eac07541) is started again.

``older_service`` is what that version left after seven windows, without logs, exemplars, kept models and most
answers; the test puts other bytes in the place of its weights.
"""

import shutil
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from ekya import cli
from ekya.config.fleet_reading import load_fleet
from ekya.core.host import HostCosts
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.self_test import SelfTest
from ekya.pipeline.host_probe import ProbedHost
from ekya.results.storage.journal import is_of_other_version
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.segmented_journal import list_segments
from ekya.results.storage.validation_files import validated_jobs
from ekya.runtime.driver import ray_of_run
from ekya.runtime.driver.resuming import newest_weights
from ekya.runtime.driver.run_session import RunSession
from ekya.service import process
from ekya.service.history import read_past
from ekya.service.http.access import token_of
from ekya.service.supervised import SUPERVISOR_PID

WRITTEN = Path(__file__).parent / "older_service"
CAM = "cam-1"
NEWEST = 8
"""Version that served last."""
GONE = ("hand_over", "inference.flow", "zoo")
"""Keys that its fleet file has, and which this version has not."""


def weights_of(version):
    return f"weights {version}".encode()


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(shutil.copytree(WRITTEN, tmp_path / "runs" / "yard"))
    folder.models(CAM).mkdir(parents=True)
    for version in range(4, NEWEST + 1):
        folder.model(CAM, version).write_bytes(weights_of(version))
    return folder


@contextmanager
def a_host(*_):
    """Stands for the measurement of this machine."""
    host = ProbedHost(
        ("person", "car", "truck", "bus", "bicycle", "motorcycle"),
        HostCosts({}, 0.01, (), 2.0),
        SelfTest(PLAIN, 1.0, 1.0, (), 0.1),
    )
    yield SimpleNamespace(result=lambda: host)


@pytest.fixture
def start(folder, monkeypatch):
    """Runs the service process up to where its actors would start, and returns what it has opened."""
    opened = []

    class Session:
        def __init__(self, run, shares, **_):
            self.session = RunSession(run, shares)
            opened.append(run)

        def run_windows(self, console):
            with StateStore(folder.state, of_run=True) as store:
                self.session._first_weights(store)
            self.session._journal().close()

    monkeypatch.setenv(SUPERVISOR_PID, "1")
    monkeypatch.setattr(process, "die_with_parent", lambda: None)
    monkeypatch.setattr(ray_of_run, "start_ray", lambda *_: None)
    monkeypatch.setattr(process, "ended_with_ray", nullcontext)
    monkeypatch.setattr(process, "start_probe", a_host)
    monkeypatch.setattr(process, "RunSession", Session)

    def start():
        runs = str(folder.path.parent)
        assert cli.main(["serve", "--name", "yard", "--runs", runs, "--shares", "cpu"]) == 0
        return opened.pop()

    return start


def test_older_service_keeps_models_history_and_token(folder, start):
    token, before = (folder.path / "token").read_text(), read_past(folder, [CAM])
    assert [row.outcome for row in before[CAM].retrainings] == ["served"] * 5
    run = start()
    assert newest_weights(folder, run.fleet) == {CAM: (weights_of(NEWEST), NEWEST)}
    assert token_of(folder.path) == token.strip()
    assert read_past(folder, [CAM]) == before
    assert 4 in validated_jobs(folder, CAM)


def test_older_service_begins_its_loop_anew_and_says_so_once(folder, start, caplog):
    assert list_segments(folder) == [0]
    assert is_of_other_version(folder.journal)
    run = start()
    said = [line for line in caplog.messages if "anew" in line]
    assert said == [
        f"{folder.snapshot}: was written by a version of Ekya before 0.2.0; the loop starts anew, and the "
        "models, history and token in the folder stay"
    ]
    assert run.resumed is None
    assert run.continue_us > 215_000_000, "times of frames do not go back"
    assert list_segments(folder) == [0]
    assert not is_of_other_version(folder.journal)
    assert not folder.snapshot.exists()
    caplog.clear()
    start()
    assert "written by" not in caplog.text


def test_keys_of_an_older_service_that_are_gone_are_left_out_once(folder, start, caplog):
    assert {"hand_over", "inference"} <= yaml.safe_load(folder.fleet.read_text()).keys()
    start()
    (said,) = [line for line in caplog.messages if "left out" in line]
    assert all(key in said for key in GONE)
    assert [stream.id for stream in load_fleet(folder.fleet).streams] == [CAM]
    caplog.clear()
    start()
    assert "left out" not in caplog.text


def test_misspelt_key_of_a_service_of_this_version_is_refused(folder, start, capsys):
    start()
    folder.fleet.write_text(folder.fleet.read_text() + "windowss: 3\n")
    with pytest.raises(AssertionError):
        start()
    assert "windowss: there is no such key; did you mean windows?" in capsys.readouterr().err
