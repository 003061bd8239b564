"""Tests of what an interrupted run restores from its journal, and of the report that a complete one lacks."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ekya import __version__, cli
from ekya.config.fleet_reading import dump_fleet, load_fleet
from ekya.config.run_options import RunOptions
from ekya.config.shipped import shipped_path
from ekya.control.loop import first_state
from ekya.control.options import LoopOptions
from ekya.control.protocols import Batch
from ekya.control.remote_plan import RemoteRetraining, plan_beside, running_remotely
from ekya.control.step import step
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.errors import UserError
from ekya.core.host import HostCosts, StreamCosts
from ekya.core.profile import Family, FamilyCost, FamilyCurve
from ekya.core.units import ModelVersion, StreamId
from ekya.core.view import InferenceOption
from ekya.core.weights import Elsewhere
from ekya.gpu.backends.backend import Capability
from ekya.gpu.backends.cpu import CpuShares
from ekya.gpu.backends.registry import ChosenBackend
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.self_test import SelfTest
from ekya.pipeline.host_probe import ProbedHost
from ekya.pipeline.run_writer import ModelRecord
from ekya.planning.placement.homes import Processes
from ekya.planning.schedulers.registry import make_scheduler
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.segmented_journal import SegmentedJournal
from ekya.runtime.driver import open_run as open_run_module
from ekya.runtime.driver.live import run_live
from ekya.runtime.driver.open_run import open_run
from ekya.runtime.driver.resuming import newest_weights, resume_run, resume_service
from ekya.runtime.driver.run_session import report_complete
from ekya.system.files import write_text_atomic
from ekya.system.host import HostMemory
from ekya.system.yaml_file import read_mapping

CAM, S = StreamId("cam"), 1_000_000
GAMMA, EVERY = RetrainConfig(4, 16, 0, 0, 1.0), InferenceConfig(1, 32)
OPTIONS = LoopOptions(
    window_us=100 * S,
    windows=4,
    capacity_milli=1000,
    quantum_milli=100,
    steal_milli=100,
    min_accuracy=0.0,
    preparation_share_milli=300,
    preparation_us=15 * S,
    checkpoint_delay_us=S // 2,
    retrain_configs=(GAMMA,),
    inference_configs=(EVERY,),
    family_costs=(FamilyCost(Family(0, 0, 16), 0.01, 0.02),),
)
SCHEDULER = make_scheduler("thief")
CURVE = FamilyCurve(16, 0, 0, 64, (0.6, 0.7), 1.0, 0.5)


class Server:
    """Server driven by hand, which retrains on another server where possible."""

    def __init__(self, folder):
        self.journal = SegmentedJournal(folder, "thief", OPTIONS)
        self.state = first_state()

    def plan(self, view):
        """Returns the scheduler's plan with the remote retrainings."""
        away = {
            stream.stream: RemoteRetraining(
                GAMMA, Elsewhere(view.window_end_us - S), "retrains on another server"
            )
            for stream in view.streams
            if stream.retrain_options
        }
        return plan_beside(view, SCHEDULER.plan, away | running_remotely(view))

    def give(self, now_us, *events):
        batch = Batch(now_us, events)
        if self.state.fleet.window >= 0 and any(isinstance(event, ev.WindowOpened) for event in events):
            self.journal.write_snapshot(self.state)
        turn = step(self.state, batch, OPTIONS, SCHEDULER.needs, self.plan)
        self.journal.record_batch(batch)
        self.journal.record_decision(now_us, turn.plan, turn.commands)
        self.state = turn.state


def labels(t_us, window):
    return ev.LabelsReady(t_us, CAM, window, 100, 40, 0.5, False, 0.5)


@pytest.fixture
def folder(tmp_path):
    """Run interrupted in window 2, with a pending remote retraining and lent spare capacity."""
    folder = RunFolder.create_numbered(tmp_path, "run")
    server = Server(folder)
    added = ev.StreamAdded(0, CAM, (InferenceOption(EVERY, 1.0, 300),))
    server.give(0, added, ev.WindowOpened(0, 0, 100 * S))
    server.give(100 * S, ev.WindowClosed(100 * S, 0), ev.WindowOpened(100 * S, 1, 200 * S))
    server.give(104 * S, labels(104 * S, 1))
    server.give(109 * S, ev.ProfileReady(109 * S, CAM, 1, CURVE, 0.1))
    server.give(110 * S, ev.PreparationEnded(110 * S, 1))
    server.give(120 * S, ev.CapacityLent(120 * S, 400))
    server.give(200 * S, ev.WindowClosed(200 * S, 1), ev.WindowOpened(200 * S, 2, 300 * S))
    server.journal.close()
    return folder


@pytest.fixture
def complete(tmp_path):
    """Run that was stopped when its last window had closed, and its fleet of one camera."""
    folder = RunFolder.create_numbered(tmp_path, "run")
    server = Server(folder)
    server.give(
        0, ev.StreamAdded(0, CAM, (InferenceOption(EVERY, 1.0, 300),)), ev.WindowOpened(0, 0, 100 * S)
    )
    server.give(100 * S, ev.WindowClosed(100 * S, 0))
    server.journal.close()
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    one = fleet.model_copy(update={"streams": (fleet.streams[0].model_copy(update={"id": CAM}),)})
    write_text_atomic(folder.fleet, dump_fleet(one))
    return folder, one


def test_resumed_complete_run_gets_its_report(complete):
    """It needs no Ray, which the test could not start."""
    folder, fleet = complete
    options = RunOptions(resume=folder.path)
    assert run_live(fleet, options, Console(quiet=True)) == folder.path
    summary = json.loads(folder.summary.read_text())
    assert (summary["world"], summary["scheduler"], list(summary["streams"])) == ("live", "thief", [CAM])
    assert folder.report.is_file()


def test_resumed_complete_run_keeps_its_report_in_a_copy(complete):
    """A copy may have any modification times."""
    folder, fleet = complete
    assert report_complete(folder, fleet)
    written = folder.summary.read_text()
    for path in (folder.summary, folder.report):
        os.utime(path, ns=(0, 0))
    assert not report_complete(folder, fleet), "it is there"
    assert folder.summary.read_text() == written


def test_resuming_a_complete_run_is_refused_before_an_engine_is_loaded(complete):
    folder, fleet = complete
    assert report_complete(folder, fleet)
    words = ["run", "--resume", str(folder.path)]
    code = (
        f"import sys; from ekya import cli; print(cli.main({words}), sys.modules.keys() & {{'ray', 'torch'}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "2 set()\n"
    assert "this run is complete; there is nothing to continue" in done.stderr


@pytest.mark.parametrize("lacks", ["summary.json", "report.html"])
def test_resumed_complete_run_without_a_part_of_its_report_gets_it(complete, lacks):
    folder, fleet = complete
    assert report_complete(folder, fleet)
    (folder.path / lacks).unlink()
    assert report_complete(folder, fleet)
    assert (folder.path / lacks).is_file()


def test_resuming_removes_the_report_of_the_part_before(folder):
    """As of a run that was ended early; it would be taken for that of the whole run."""
    for path in (folder.summary, folder.report):
        path.write_text("older")
    resume_run(folder, [CAM])
    assert not folder.summary.exists()
    assert not folder.report.exists()


def with_header(folder, **changes):
    """Changes values of a journal's first line; None removes one."""
    first, rest = folder.journal.read_text().split("\n", 1)
    header = {key: value for key, value in (json.loads(first) | changes).items() if value is not None}
    folder.journal.write_text(json.dumps(header) + "\n" + rest)


@pytest.mark.parametrize(
    ("written", "by"), [(None, "a version of Ekya before 0.2.0"), ("0.3.1", "Ekya 0.3.1")]
)
def test_run_of_another_version_is_not_resumed_and_its_version_is_named(folder, written, by):
    with_header(folder, version=written)
    before = folder.journal.read_bytes()
    with pytest.raises(UserError) as refusal:
        resume_run(folder, [CAM])
    said = str(refusal.value)
    assert said.startswith(
        f"{folder.journal}: this run was begun by {by}, and this is {__version__}; resume it"
    )
    assert folder.journal.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "line 1 is damaged"),
        ('{"a": 1}\n', "is not a journal of a run"),
        ("[]\n", "is not a journal of a run"),
        (None, "the journal cannot be read"),
    ],
)
def test_broken_or_foreign_journal_is_not_resumed(folder, content, problem, capsys):
    """Neither is its fleet file looked at, nor is Ray started."""
    folder.fleet.write_text("a: key\n")
    folder.journal.unlink()
    if content is not None:
        folder.journal.write_text(content)
    assert cli.main(["run", "--resume", str(folder.path)]) == 2
    assert f"{folder.journal}: {problem}" in capsys.readouterr().err


def test_run_whose_shares_were_of_a_removed_backend_is_refused_in_a_sentence(folder):
    options = json.loads(folder.journal.read_text().split("\n", 1)[0])["options"]
    with_header(folder, options=options | {"training_groups": {"group_sms": 8, "sms": 132}})
    with pytest.raises(UserError, match=r"shares of mps\+green, which is no backend any more"):
        resume_run(folder, [CAM])


def test_run_of_an_older_version_is_refused_before_its_fleet_file(folder, capsys):
    with_header(folder, version=None)
    folder.fleet.write_text("hand_over: cuda-ipc\n")
    assert cli.main(["run", "--resume", str(folder.path)]) == 2
    assert "a version of Ekya before 0.2.0" in capsys.readouterr().err


def test_resumed_incomplete_run_is_not_reported(folder):
    assert not report_complete(folder, load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml")))
    assert not folder.report.exists()


def test_resumed_server_keeps_loans_and_drops_guests(folder):
    resumed = resume_run(folder, [CAM])
    resumed.truncate_journal(folder)
    (stream,) = resumed.state.fleet.streams
    assert resumed.from_us == 200 * S
    assert (stream.job.config, stream.job.elsewhere) == (GAMMA, Elsewhere(199 * S))
    kinds = [type(event) for event in resumed.events]
    assert kinds == [ev.CapacityLent, ev.RetrainFailed, ev.StreamLost, ev.StreamBack, ev.WorkerBack]
    assert (resumed.events[0].share_milli, resumed.events[1].job) == (0, stream.job.job)
    _, _, turns = read_journal(folder.journal)
    assert len(turns) == 6, "the window that was interrupted is not there any more"


@pytest.fixture
def opened(folder):
    """The interrupted run, resumed on a machine where training is slower, with the shipped fleet."""
    slower = (FamilyCost(Family(0, 0, 16), 0.02, 0.04),)
    host = ProbedHost(("car",), HostCosts({}, 0.01, slower, 2.0), SelfTest(PLAIN, 1.0, 1.0, (), 0.1))
    shares = CpuShares(2)
    chosen = ChosenBackend("cpu", shares, shares.probe_machine(), ("there is no GPU",), 2)
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    write_text_atomic(folder.fleet, dump_fleet(fleet))
    return open_run(fleet, RunOptions(resume=folder.path), chosen, host)


def open_new(runs, fleet, capability, golden_layout=""):
    """Opens a run of a fleet on a machine where all of its work is cheap."""
    costs = StreamCosts(10.0, dict.fromkeys(fleet.inference.resolutions, 0.0001))
    families = (FamilyCost(Family(0, 0, 16), 0.0001, 0.0001),)
    host = HostCosts({stream.id: costs for stream in fleet.streams}, 0.01, families, 2.0)
    tested = SelfTest(PLAIN, 1.0, 1.0, (), 0.1)
    probed = ProbedHost(("car",), host, tested, golden_layout=golden_layout)
    chosen = ChosenBackend("a backend", CpuShares(2), capability, ("it was asked for",), 64)
    return open_run(fleet, RunOptions(runs=runs, overload=True), chosen, probed)


def test_new_run_writes_down_what_the_golden_detector_means(tmp_path):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    golden = fleet.golden.model_copy(update={"model": "onnx", "weights": Path("a.onnx")})
    given = fleet.model_copy(update={"golden": golden})
    opened = open_new(tmp_path, given, CpuShares(2).probe_machine(), "cxcywh parts")
    assert opened.fleet.golden.layout == "cxcywh parts"
    assert read_mapping(opened.folder.fleet)["golden"]["layout"] == "cxcywh parts"


def mps(gpus):
    """Returns what a machine has whose GPUs take nine processes each."""
    return Capability(True, "cuda", 1000 * gpus, 1, "found", most_processes=9)


@pytest.mark.parametrize(("gpus", "cameras", "refused"), [(1, 3, None), (1, 4, 10), (2, 7, 10), (2, 6, None)])
def test_new_run_with_more_processes_than_a_gpu_takes_is_refused(tmp_path, gpus, cameras, refused):
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    streams = tuple(fleet.streams[0].model_copy(update={"id": StreamId(f"cam-{n}")}) for n in range(cameras))
    values = {"streams": streams, "processes": Processes.STREAM, "gpus": float(gpus)}
    fleet = fleet.model_copy(update=values)
    if refused is None:
        assert open_new(tmp_path, fleet, mps(gpus)).grouping.processes is Processes.STREAM
        return
    told = f"{cameras} streams need {refused} processes on one GPU, which takes 9 under MPS"
    with pytest.raises(UserError, match=f"{told}; set 'processes: gpu'"):
        open_new(tmp_path, fleet, mps(gpus))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("cameras", "expected"), [(3, Processes.STREAM), (4, Processes.GPU)])
def test_streams_share_processes_where_a_gpu_takes_too_few(tmp_path, monkeypatch, cameras, expected):
    monkeypatch.setattr(open_run_module, "read_host_memory", lambda: HostMemory(1 << 40, 1 << 40))
    fleet = load_fleet(shipped_path("datasets/synthetic_city/fleet.yaml"))
    streams = tuple(fleet.streams[0].model_copy(update={"id": StreamId(f"cam-{n}")}) for n in range(cameras))
    fleet = fleet.model_copy(update={"streams": streams, "gpus": 1.0})
    assert open_new(tmp_path, fleet, mps(1)).grouping.processes is expected
    without = open_new(tmp_path, fleet, replace(mps(1), most_processes=None))
    assert without.grouping.processes is Processes.GPU


def test_resumed_run_plans_with_costs_measured_as_it_began(opened):
    """Its journal is replayed with these constants: plans with others would not come out again."""
    assert opened.constants.family_costs == OPTIONS.family_costs


def test_resumed_run_goes_on_from_what_served_and_removes_later_weights(complete):
    """Otherwise they would be taken for the next weights of that number, before those are written."""
    folder, fleet = complete
    with StateStore(folder.state) as store:
        record = ModelRecord(folder, store, CAM)
        for version in range(2):
            record.add_model(ModelVersion(version), b"%d" % version, 0, None, 0.5, 0)
    folder.model(CAM, ModelVersion(2)).write_bytes(b"2")
    assert newest_weights(folder, fleet) == {CAM: (b"1", 1)}
    assert sorted(path.name for path in folder.models(CAM).iterdir()) == ["0.safetensors", "1.safetensors"]


def test_service_whose_database_is_of_a_newer_version_is_refused_before_anything_is_removed(tmp_path):
    folder = RunFolder.create_or_reuse(tmp_path, "yard")
    StateStore(folder.state).close()
    with closing(sqlite3.connect(folder.state)) as connection:
        connection.execute("PRAGMA user_version = 2")
    folder.snapshot.write_text('{"format": 99}')
    folder.journal.write_text("steps of a newer version")
    with pytest.raises(UserError, match=r"state\.sqlite: this is of a newer version of Ekya"):
        resume_service(folder, [CAM])
    assert folder.snapshot.is_file()
    assert folder.journal.is_file()
