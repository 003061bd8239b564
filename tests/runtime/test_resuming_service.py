"""Tests of what holds when a service is started again in the middle of a window, and where it continues."""

import json
from dataclasses import replace

import pytest
from fake_actors import SETTINGS, FakeActors, make_executor
from frame_rows import seen
from operated import COSTS, shipped_fleet
from test_resuming import EVERY, OPTIONS, SCHEDULER, S

from ekya.config.run_options import RunOptions
from ekya.control.loop import first_state
from ekya.control.protocols import Batch
from ekya.control.step import loop_events_due, step
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.areas import Areas
from ekya.core.host import HostCosts
from ekya.core.stream_faults import Status
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.core.view import InferenceOption
from ekya.core.weights import LabelBudget
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.self_test import SelfTest
from ekya.pipeline.host_probe import ProbedHost
from ekya.pipeline.run_writer import ModelRecord
from ekya.results.storage.hour_tables import HourWriter
from ekya.results.storage.journal import read_steps
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.segmented_journal import SegmentedJournal, list_segments, read_snapshot
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.driver.open_run import OpenRun, continue_us
from ekya.runtime.driver.resuming import newest_weights, resume_service
from ekya.runtime.driver.run_session import RunSession

CAM, OTHER, NEW = "cam", "other", "new"
ENDLESS = replace(OPTIONS, windows=None, last_join_us=1 << 62)
LAMBDAS = (InferenceOption(EVERY, 1.0, 300),)
T = 230 * S
"""In the window that is interrupted, which opened at 200 s."""


class Service:
    """Service of two cameras driven by hand, up to window 2.

    Args:
        folder: of the service.
        early: events before that window.
    """

    def __init__(self, folder, *early):
        self.journal = SegmentedJournal(folder, "thief", ENDLESS, 1 << 30)
        self.state = first_state()
        added = (ev.StreamAdded(0, stream, LAMBDAS) for stream in (CAM, OTHER))
        self.give(0, *added, *loop_events_due(self.state.fleet, 0, ENDLESS))
        self.give(100 * S, *loop_events_due(self.state.fleet, 100 * S, ENDLESS))
        if early:
            self.give(150 * S, *early)
        self.give(200 * S, *loop_events_due(self.state.fleet, 200 * S, ENDLESS))

    def give(self, now_us, *events):
        batch = Batch(now_us, events)
        if self.state.fleet.window >= 0 and any(isinstance(event, ev.WindowOpened) for event in events):
            self.journal.write_snapshot(self.state)
        self.journal.record_batch(batch)
        turn = step(self.state, batch, ENDLESS, SCHEDULER.needs, SCHEDULER.plan)
        self.journal.record_decision(now_us, turn.plan, turn.commands)
        self.state = turn.state


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create_or_reuse(tmp_path, "run")


def interrupted(folder, *events, early=()):
    """Has events in the window that is interrupted, at 230 s, and returns what is resumed from."""
    service = Service(folder, *early)
    if events:
        service.give(T, *events)
    service.journal.close()
    return lambda *streams: resume_service(folder, streams)


def opened(folder, resumed, *streams, endless=True):
    """Returns the run as it is opened again."""
    host = ProbedHost(
        ("car",),
        HostCosts(dict.fromkeys(streams, COSTS), 0.01, (), 2.0),
        SelfTest(PLAIN, 1.0, 1.0, (), 0.1),
    )
    fleet, options = shipped_fleet(*streams), RunOptions(endless=endless)
    from_us = continue_us(folder, fleet, resumed, endless=endless)
    return OpenRun(folder, fleet, options, ENDLESS, None, resumed, host, (), from_us)


def continued(folder, resumed, monkeypatch, *streams):
    """Has a service go on with these cameras, and returns the state after its first step."""
    session = RunSession(opened(folder, resumed, *streams), None)
    first = session._first_events(dict.fromkeys(streams, Ready(SETTINGS)))
    actors = FakeActors(streams).install(monkeypatch)
    actors.clock.now = session.opened.continue_us
    came = make_executor(actors, *first).wait(0)
    state = resumed.state
    batch = Batch(came.now_us, (*came.events, *loop_events_due(state.fleet, came.now_us, ENDLESS)))
    resumed.truncate_journal(folder)
    journal = SegmentedJournal(folder, "thief", ENDLESS)
    journal.write_snapshot(state)
    journal.record_batch(batch)
    journal.record_decision(batch.now_us, None, ())
    journal.close()
    return step(state, batch, ENDLESS, SCHEDULER.needs, SCHEDULER.plan).state.fleet


def test_stream_that_was_set_aside_serves_again_after_a_restart(folder, monkeypatch):
    died = (ev.WorkerDied((150 + at) * S, CAM, ev.Role.INFERENCE, "killed") for at in range(3))
    resumed = interrupted(folder, early=tuple(died))(CAM, OTHER)
    assert resumed.state.fleet.stream(CAM).status is Status.SET_ASIDE
    fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
    assert {one.stream: one.status for one in fleet.streams} == dict.fromkeys((CAM, OTHER), Status.SERVING)


# Requests of the window that was interrupted


def test_requests_of_the_interrupted_window_hold(folder, monkeypatch):
    resume = interrupted(
        folder,
        rq.StreamPaused(T, CAM, True),
        rq.ModelFrozen(T, OTHER, True),
    )
    for _interruption in range(2):
        resumed = resume(CAM, OTHER)
        assert resumed.paused == (CAM,)
        fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
        cam, other = fleet.stream(CAM), fleet.stream(OTHER)
        assert fleet.window == 2
        assert (cam.status, cam.frozen) == (Status.PAUSED, False)
        assert (other.status, other.frozen) == (Status.SERVING, True)


def test_requests_that_were_taken_back_do_not_hold(folder, monkeypatch):
    resumed = interrupted(
        folder,
        rq.StreamPaused(T, CAM, False),
        rq.ModelFrozen(T, CAM, True),
        rq.ModelFrozen(T + 1, CAM, False),
        rq.StreamPaused(T, OTHER, True),
        rq.StreamPaused(T + 1, OTHER, False),
        early=(rq.StreamPaused(150 * S, CAM, True),),
    )(CAM, OTHER)
    assert resumed.paused == ()
    fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
    assert [one.status for one in fleet.streams] == [Status.SERVING, Status.SERVING]
    assert not fleet.stream(CAM).frozen


def test_requests_of_earlier_windows_hold(folder, monkeypatch):
    early = (rq.StreamPaused(150 * S, CAM, True), rq.ModelFrozen(150 * S, OTHER, True))
    resumed = interrupted(folder, early=early)(CAM, OTHER)
    assert (resumed.paused, resumed.events[-1:]) == (
        (CAM,),
        (ev.WorkerBack(200 * S, OTHER, ev.Role.INFERENCE),),
    )
    fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
    assert (fleet.stream(CAM).status, fleet.stream(OTHER).frozen) == (Status.PAUSED, True)


@pytest.mark.parametrize("early", [True, False])
def test_what_the_fleet_file_has_as_well_is_taken_from_there(folder, early):
    """So an edit of the file holds, too; its options begin another segment of the journal."""
    at_us = 150 * S if early else T
    changes = (
        rq.TermsChanged(at_us, OTHER, 3.0, 2 * S),
        rq.AreasChanged(at_us, OTHER, Areas()),
        rq.MinAccuracyChanged(at_us, 0.4),
        rq.SchedulerChanged(at_us, "uniform"),
        rq.LabelBudgetChanged(at_us, LabelBudget(48, 2.0)),
        rq.CapacityChanged(at_us, 700, 200),
    )
    resume = interrupted(folder, early=changes) if early else interrupted(folder, *changes)
    resumed = resume(CAM, OTHER)
    fleet = resumed.state.fleet
    assert (fleet.min_accuracy, fleet.scheduler, fleet.label_budget, fleet.capacity) == (None,) * 4
    assert (fleet.stream(OTHER).terms, fleet.stream(OTHER).areas) == (None, None)
    assert not {type(event) for event in resumed.events} & {type(event) for event in changes}


def test_requests_hold_after_a_start_that_failed(folder):
    resume = interrupted(folder, rq.StreamPaused(T, CAM, True))
    resumed = resume(CAM, OTHER)
    assert resume(CAM, OTHER) == resumed, "it was killed while its actors started"
    assert (resumed.paused, resumed.reached_us) == ((CAM,), T)
    resumed.truncate_journal(folder)
    snapshot = read_snapshot(folder)
    assert read_steps(folder.journal_segment(snapshot.segment), snapshot.at_byte) == []


def test_restart_that_was_requested_is_not_requested_again(folder):
    """What has changed is in the fleet file; the event would have the service start again, and again."""
    resumed = interrupted(folder, rq.RestartRequested(T, "the class tram was added"))(CAM, OTHER)
    assert not any(isinstance(event, rq.RestartRequested) for event in resumed.events)


BACK = rq.RollBackRequested(T, CAM, ModelVersion(3))
LABELS = rq.LabelsRequested(T, CAM, T - 10 * S)
AGAIN = rq.LabelsRequested(200 * S - 1, CAM, T)


def labelled(t_us, since_us, stream=CAM):
    return ev.LabelsReady(t_us, stream, 2, 100, 40, 0.5, False, 0.5, since_us=since_us)


def rolled_back(of, stream=CAM):
    return ev.RolledBack(T + 1, stream, ModelVersion(7), ModelVersion(of), 0)


def asked_again(resumed):
    kinds = rq.LabelsRequested | rq.RollBackRequested
    return [event for event in resumed.events if isinstance(event, kinds)]


def test_labels_and_roll_back_that_were_not_made_are_asked_for_again(folder, monkeypatch):
    resume = interrupted(folder, LABELS, BACK)
    for _interruption in range(2):
        resumed = resume(CAM, OTHER)
        assert asked_again(resumed) == [AGAIN, replace(BACK, t_us=200 * S - 1)]
        cam = continued(folder, resumed, monkeypatch, CAM, OTHER).stream(CAM)
        assert (cam.requested, cam.drifted_us) == (True, T), "the frames before are lost"


def test_roll_back_of_an_interrupted_window_is_commanded(folder, monkeypatch):
    resumed = interrupted(folder, BACK)(CAM, OTHER)
    batch = Batch(T, (*resumed.events, *loop_events_due(resumed.state.fleet, T, ENDLESS)))
    turn = step(resumed.state, batch, ENDLESS, SCHEDULER.needs, SCHEDULER.plan)
    backs = [one for one in turn.commands if isinstance(one, cmd.RollBack)]
    assert [(one.stream, one.version) for one in backs] == [(CAM, 3)]


@pytest.mark.parametrize(
    "since",
    [
        (LABELS, labelled(T + S, T - 10 * S)),
        (LABELS, labelled(T + S, T - 5 * S)),  # and it has drifted
        (BACK, rolled_back(3)),
        (LABELS, BACK, rq.StreamRemoved(T + 1, CAM), ev.StreamAdded(T + 2, CAM, LAMBDAS)),
    ],
    ids=["labels", "labels of a later scene", "roll-back", "of a camera that was removed"],
)
def test_request_that_was_carried_out_is_not_made_again(folder, since):
    assert asked_again(interrupted(folder, *since)(CAM, OTHER)) == []


@pytest.mark.parametrize(
    "since",
    [
        (labelled(T + S, None),),  # of the window before
        (labelled(T + S, T - 15 * S),),  # asked for before
        (labelled(T + S, T),),  # on the first frames of one second
        (labelled(T + S, T - 10 * S, OTHER),),
    ],
    ids=["window", "earlier", "few", "other"],
)
def test_other_labels_do_not_answer_a_request(folder, since):
    assert asked_again(interrupted(folder, LABELS, *since)(CAM, OTHER)) == [AGAIN]


def test_other_roll_backs_do_not_answer_a_request(folder):
    resumed = interrupted(folder, BACK, rolled_back(2), rolled_back(3, OTHER))(CAM, OTHER)
    assert asked_again(resumed) == [replace(BACK, t_us=200 * S - 1)]


def test_only_the_last_roll_back_that_was_asked_for_is_made(folder):
    first = rq.RollBackRequested(T, CAM, ModelVersion(2))
    assert asked_again(interrupted(folder, first, replace(BACK, t_us=T + 1))(CAM, OTHER)) == [
        replace(BACK, t_us=200 * S - 1)
    ]
    assert asked_again(interrupted(folder, first, BACK, rolled_back(3))(CAM, OTHER)) == []


def test_labels_of_an_earlier_window_that_were_not_made_are_asked_for_again(folder):
    early = (rq.LabelsRequested(150 * S, CAM, 140 * S), rq.LabelsRequested(150 * S, OTHER, 140 * S))
    resumed = interrupted(folder, labelled(T, 140 * S, OTHER), early=early)(CAM, OTHER)
    assert asked_again(resumed) == [AGAIN]
    assert not resumed.state.fleet.stream(OTHER).requested, "they were made"


# Cameras that come and go


def test_camera_that_is_not_in_the_fleet_is_removed(folder, monkeypatch):
    """It was removed in the interrupted window, or in the fleet file."""
    paused = (rq.StreamPaused(150 * S, CAM, True), rq.StreamPaused(150 * S, OTHER, True))
    resumed = interrupted(folder, rq.ModelFrozen(T, CAM, True), rq.StreamRemoved(T, CAM), early=paused)(OTHER)
    assert resumed.paused == (OTHER,)
    fleet = continued(folder, resumed, monkeypatch, OTHER)
    assert ([one.stream for one in fleet.streams], CAM in fleet.forgotten) == ([OTHER], True)


def test_camera_that_is_new_in_the_fleet_begins_with_the_base_model(folder, monkeypatch):
    added = ev.StreamAdded(T, NEW, LAMBDAS)
    resumed = interrupted(folder, added, rq.StreamPaused(T + 1, NEW, True))(CAM, OTHER, NEW)
    with StateStore(folder.state) as store:
        for version in range(2):
            ModelRecord(folder, store, CAM).add_model(ModelVersion(version), b"%d" % version, 0, None, 0.5, 0)
    assert newest_weights(folder, shipped_fleet(CAM, OTHER, NEW)) == {CAM: (b"1", 1)}
    assert (resumed.known, resumed.paused) == ({CAM, OTHER}, (NEW,))
    fleet = continued(folder, resumed, monkeypatch, CAM, OTHER, NEW)
    assert (fleet.stream(NEW).version, fleet.stream(NEW).status) == (BASE_VERSION, Status.PAUSED)


@pytest.mark.parametrize("removed_early", [False, True])
def test_camera_that_was_removed_and_added_again_is_a_new_one(folder, monkeypatch, removed_early):
    before = (rq.StreamPaused(150 * S, CAM, True), rq.ModelFrozen(150 * S, CAM, True))
    removed = rq.StreamRemoved(160 * S if removed_early else T + 1, CAM)
    since = (
        ev.StreamAdded(T + 2, CAM, LAMBDAS),
        rq.ModelFrozen(T + 3, CAM, True),
    )
    events = since if removed_early else (rq.StreamPaused(T, CAM, True), removed, *since)
    resume = interrupted(folder, *events, early=(*before, *((removed,) if removed_early else ())))
    for _interruption in range(3):
        resumed = resume(CAM, OTHER)
        assert (resumed.again, resumed.paused) == ({CAM}, ())
        fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
        cam = fleet.stream(CAM)
        assert (cam.status, cam.removed, cam.frozen) == (Status.SERVING, False, True)


def test_camera_of_the_fleet_whose_addition_was_not_recorded_is_added(folder, monkeypatch):
    """The service was killed between the fleet file and the journal."""
    resumed = interrupted(folder, rq.StreamRemoved(T, CAM))(CAM, OTHER)
    fleet = continued(folder, resumed, monkeypatch, CAM, OTHER)
    assert fleet.stream(CAM).status is Status.SERVING


# Without a state


@pytest.mark.parametrize("change", [{"format": 0}, {"state": {"fleet": "other"}}, {"at_byte": 1 << 40}])
def test_service_of_another_version_begins_anew_and_keeps_its_weights(folder, change, caplog):
    resume = interrupted(folder, rq.StreamPaused(T, CAM, True))
    with StateStore(folder.state) as store:
        for version in range(2):
            ModelRecord(folder, store, CAM).add_model(ModelVersion(version), b"%d" % version, 0, None, 0.5, 0)
    content = json.loads(folder.snapshot.read_text())
    folder.snapshot.write_text(json.dumps(content | change))
    assert resume(CAM, OTHER) is None
    assert "the loop starts anew, and the models, history and token in the folder stay" in caplog.text
    assert (list_segments(folder), folder.snapshot.exists()) == ([], False)
    assert newest_weights(folder, shipped_fleet(CAM, OTHER)) == {CAM: (b"1", 1)}
    assert resume(CAM, OTHER) is None, "and once more, if it is killed"


def test_service_that_was_killed_in_its_first_window_begins_anew(folder, caplog):
    SegmentedJournal(folder, "thief", ENDLESS).close()
    assert resume_service(folder, (CAM,)) is None
    assert (list_segments(folder), caplog.text) == ([], "")


# Where it continues


def answer(folder, stream, *frames):
    """Has frames on disk, which came every 0.4 s."""
    writer = HourWriter(folder.hours(stream))
    for frame in frames:
        writer.add_row(seen(frame, []))
    writer.close()


def test_new_run_and_new_service_begin_at_zero(folder):
    for endless in (False, True):
        assert opened(folder, None, CAM, endless=endless).continue_us == 0


def test_service_without_a_state_goes_on_after_its_newest_frame(folder):
    answer(folder, CAM, 0, 1)
    answer(folder, OTHER, 0, 5)
    assert opened(folder, None, CAM, OTHER).continue_us == 2 * S + 1
    assert opened(folder, None, CAM, OTHER, endless=False).continue_us == 0, "a run repeats its frames"


def test_resumed_service_goes_on_after_its_last_step_or_frame(folder):
    resumed = interrupted(folder, ev.WorkerBack(T, CAM, ev.Role.INFERENCE))(CAM, OTHER)
    answer(folder, CAM, 574)
    assert opened(folder, resumed, CAM, OTHER).continue_us == T, "its frames end at 229.6 s"
    answer(folder, OTHER, 576)
    assert opened(folder, resumed, CAM, OTHER).continue_us == 230_400_000 + 1
    assert opened(folder, resumed, CAM, OTHER, endless=False).continue_us == 200 * S


def test_service_that_was_interrupted_as_a_window_opened_goes_on_there(folder):
    service = Service(folder)
    service.journal.write_snapshot(service.state)
    service.journal.close()
    resumed = resume_service(folder, (CAM, OTHER))
    assert opened(folder, resumed, CAM, OTHER).continue_us == service.state.fleet.window_end_us
