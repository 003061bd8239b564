"""Tests of what operators ask of a run, from threads of their own."""

import errno
import os
import threading
from concurrent.futures import wait
from dataclasses import replace

import pytest
import ray
from fake_actors import SETTINGS
from operated import FIRST, SECOND, Operated, camera, ended
from ray.exceptions import RayError, RayTaskError
from test_resuming import OPTIONS
from waiting import HANG_GUARD_S

from ekya.config.fleet_reading import load_fleet
from ekya.control.options import StreamHome
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core import requests as rq
from ekya.core.areas import Areas
from ekya.core.errors import NotThereError, UserError
from ekya.core.units import JobId, ModelVersion, StreamId
from ekya.core.weights import LabelBudget, Validation
from ekya.planning.sizing.fleet_sizes import MachineSize
from ekya.results.storage.run_state import StateStore
from ekya.results.storage.validation_files import KeptValidation, keep_validation, validated_jobs
from ekya.runtime.actors.actor_kinds import Ready
from ekya.runtime.driver import loop_calls, operator_control
from ekya.runtime.driver.resuming import kept_weights
from ekya.streams.ingest.playing import Joins, PlayConfig

NEW, OTHER = "new", "other"
S = 1_000_000
VALIDATION = KeptValidation(Validation((), (), (), ()), ())


@pytest.fixture
def run(tmp_path, monkeypatch):
    made = Operated(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def opening(tmp_path, monkeypatch):
    """Run whose cameras open when a test says so."""
    made = Operated(tmp_path, monkeypatch, opens=False)
    yield made
    made.close()


@pytest.fixture
def full_disk(monkeypatch):
    """Call after which no file can be written."""

    def fill():
        def full(_descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)

    return fill


def reply(run, call):
    """Has a camera open."""
    call.reply(Ready(SETTINGS))


# Cameras are added and removed


def test_added_camera_is_in_the_fleet_with_its_terms_and_the_base_model(run):
    run.ask(run.control.add_camera, camera(NEW).model_copy(update={"weight": 3.0, "max_age_s": 2.0}))
    assert list(run.cameras()) == [FIRST, SECOND, NEW]
    assert [type(event) for event in run.events] == [ev.StreamAdded, rq.TermsChanged]
    added, terms = run.events
    assert (added.stream, terms.stream, terms.weight, terms.max_age_us) == (NEW, NEW, 3.0, 2 * S)
    assert [row.version for row in run.store.read_models(NEW)] == [0]


@pytest.mark.parametrize("change", ["pause_camera", "freeze_model"])
def test_change_is_answered_when_it_is_in_the_journal(run, change):
    asked = run.begin(getattr(run.control, change), FIRST, True)
    while not (events := run.executor.wait(run.actors.clock.now + 1).events):
        assert not asked.done()
    assert [event.stream for event in events] == [FIRST]
    assert not wait([asked], 0.05).done, "a power cut now would lose it"
    run.turn()
    assert ended(asked)
    asked.result()


def test_models_are_told_while_a_full_disk_holds_the_loop(run):
    run.may_go_on = False
    loop = run.begin(run.turn)
    pause = run.begin(run.control.pause_camera, FIRST, True)
    models = run.begin(run.control.models, FIRST)
    assert ended(models)
    assert not pause.done()
    run.may_go_on = True
    assert ended(loop)
    run.turn()
    assert ended(pause)


def test_change_that_cannot_be_written_is_not_reported_as_made(run, monkeypatch):
    monkeypatch.setattr(loop_calls, "_ANSWER_S", 0.2)
    asked = run.begin(run.control.pause_camera, FIRST, True)
    while not run.executor.wait(run.actors.clock.now + 1).events:
        pass
    assert ended(asked)
    with pytest.raises(UserError, match="not in the journal yet; see whether the disk is full"):
        asked.result()


def test_recording_begins_when_its_camera_is_added(run, monkeypatch):
    monkeypatch.setattr(run.control, "now_us", lambda: 7_500_000)
    faster = camera(NEW).model_copy(update={"play": PlayConfig(speed=2.0, loop=True)})
    run.ask(run.control.add_camera, faster)
    scripted = camera(OTHER).model_copy(update={"play": PlayConfig(script=(Joins(at_s=99.0),))})
    run.ask(run.control.add_camera, scripted)
    kept = load_fleet(run.folder.fleet)
    assert kept.stream(NEW).play == PlayConfig(speed=2.0, loop=True, script=(Joins(at_s=15.0),))
    assert kept.stream(NEW).play.joins_us == 7_500_000
    assert kept.stream(OTHER).play == scripted.play, "its script says when"


def test_camera_of_a_known_id_is_refused(run):
    with pytest.raises(UserError, match=r"cam-1: there is a camera of this name"):
        run.ask(run.control.add_camera, camera(FIRST))
    assert run.actors.calls("admit_stream") == []


def test_second_camera_of_an_id_that_is_being_added_is_refused(opening):
    first = opening.begin(opening.control.add_camera, camera(NEW))
    (call,) = opening.opening()
    with pytest.raises(UserError, match="new: there is a camera of this name"):
        opening.ask(opening.control.add_camera, camera(NEW).model_copy(update={"weight": 9.0}))
    assert not first.done(), "it is not disturbed"
    reply(opening, call)
    opening.until(first.done)
    first.result()
    assert opening.cameras()[NEW].weight == 1.0


def test_cameras_that_are_added_together_are_all_in_the_fleet(opening):
    asked = [opening.begin(opening.control.add_camera, camera(name)) for name in (NEW, OTHER)]
    calls = opening.opening(2)
    assert opening.cameras().keys() == {FIRST, SECOND}, "they may still fail to open"
    for call in reversed(calls):
        reply(opening, call)
        opening.turn()
    opening.until(lambda: all(one.done() for one in asked))
    assert [one.result() for one in asked] == [None, None]
    assert list(opening.cameras()) == [FIRST, SECOND, NEW, OTHER]
    assert set(opening.actors.streams) == {FIRST, SECOND, NEW, OTHER}


def test_camera_beside_one_that_fails_to_open_is_added(opening):
    fails, opens = (opening.begin(opening.control.add_camera, camera(name)) for name in (NEW, OTHER))
    calls = {call.arguments[0]: call for call in opening.opening(2)}
    calls[NEW].fail(RayError("no such address"))
    reply(opening, calls[OTHER])
    opening.until(lambda: fails.done() and opens.done())
    with pytest.raises(UserError, match=r"new: it cannot be added \(.*no such address"):
        fails.result()
    opens.result()
    assert list(opening.cameras()) == [FIRST, SECOND, OTHER]


def test_changes_while_a_camera_is_being_added_are_kept(opening):
    asked = opening.begin(opening.control.add_camera, camera(NEW))
    (call,) = opening.opening()
    opening.ask(opening.control.change_terms, FIRST, {"weight": 5.0})
    opening.ask(opening.control.remove_camera, SECOND)
    opening.ask(opening.control.change_fleet, {"min_accuracy": 0.4})
    reply(opening, call)
    opening.until(asked.done)
    asked.result()
    known = opening.cameras()
    assert (list(known), known[FIRST].weight) == ([FIRST, NEW], 5.0)
    assert opening.control.fleet.min_accuracy == 0.4
    assert rq.StreamRemoved(opening.events[1].t_us, SECOND) in opening.events


def test_camera_that_is_being_added_cannot_be_changed_yet(opening):
    asked = opening.begin(opening.control.add_camera, camera(NEW))
    (call,) = opening.opening()
    with pytest.raises(NotThereError):
        opening.ask(opening.control.remove_camera, NEW)
    reply(opening, call)
    opening.until(asked.done)
    opening.ask(opening.control.remove_camera, NEW)
    assert list(opening.cameras()) == [FIRST, SECOND]


def test_last_camera_cannot_be_removed(run):
    run.ask(run.control.remove_camera, FIRST)
    with pytest.raises(UserError, match="cam-2: it is the last camera; pause it"):
        run.ask(run.control.remove_camera, SECOND)
    assert list(run.cameras()) == [SECOND]
    assert [type(event) for event in run.events] == [rq.StreamRemoved]


def test_camera_is_added_again_when_the_one_before_has_ended(run):
    run.keep_model(FIRST, 0)
    run.keep_model(FIRST, 1)
    run.folder.exemplars(FIRST).write_bytes(b"learnt")
    keep_validation(run.folder, FIRST, JobId(3), VALIDATION)
    run.ask(run.control.remove_camera, FIRST)
    workers = [run.actors.streams[FIRST].worker(role) for role in ev.Role]
    with pytest.raises(UserError, match="cam-1: the camera of this name is still ending"):
        run.ask(run.control.add_camera, camera(FIRST))
    for worker in workers:
        run.actors.kill(worker)
    run.turn()
    run.ask(run.control.add_camera, camera(FIRST))
    assert list(run.cameras()) == [FIRST, SECOND]
    assert [row.version for row in run.store.read_models(FIRST)] == [0]
    assert not run.folder.model(FIRST, ModelVersion(1)).exists(), "of an earlier camera"
    assert not run.folder.exemplars(FIRST).exists()
    assert not validated_jobs(run.folder, FIRST)


def test_pictures_of_a_camera_are_forgotten(run):
    run.folder.exemplars(FIRST).write_bytes(b"learnt")
    for stream in (FIRST, SECOND):
        keep_validation(run.folder, stream, JobId(3), VALIDATION)
    run.ask(run.control.forget_pictures, FIRST)
    assert not run.folder.exemplars(FIRST).exists()
    assert not validated_jobs(run.folder, FIRST)
    assert validated_jobs(run.folder, SECOND).keys() == {3}
    assert len(run.actors.calls("forget_pictures")) == 1


def test_pictures_of_a_removed_camera_are_forgotten(run):
    gone = StreamId("gone")
    keep_validation(run.folder, gone, JobId(3), VALIDATION)
    run.ask(run.control.forget_pictures, gone)
    assert not validated_jobs(run.folder, gone)
    assert run.actors.calls("forget_pictures") == []
    with pytest.raises(NotThereError, match="there is no camera gone, and no picture of one"):
        run.ask(run.control.forget_pictures, gone)


def test_camera_is_not_added_again_while_the_one_before_is_being_prepared(run):
    """Labels of the earlier one may still come, and would be taken for those of the new one."""
    asked = tuple(cmd.PrepareStream(one, (), ()) for one in (FIRST, SECOND))
    run.executor.execute_commands([cmd.BeginPreparation(1, 300, asked)])
    workers = [run.actors.streams[FIRST].worker(role) for role in ev.Role]
    run.ask(run.control.remove_camera, FIRST)
    for worker in workers:
        run.actors.kill(worker)
    run.turn()
    with pytest.raises(UserError, match="cam-1: the camera of this name is still ending"):
        run.ask(run.control.add_camera, camera(FIRST))
    run.executor.execute_commands([cmd.EndPreparation(1)])
    run.ask(run.control.add_camera, camera(FIRST))
    assert list(run.cameras()) == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("remove_camera", ()),
        ("pause_camera", (True,)),
        ("freeze_model", (True,)),
        ("change_terms", ({"weight": 2.0},)),
        ("ask_labels", ()),
        ("roll_back", ()),
        ("models", ()),
        ("picture", ()),
    ],
)
def test_unknown_camera_is_not_there(run, method, arguments):
    with pytest.raises(NotThereError, match="there is no camera nowhere"):
        run.ask(getattr(run.control, method), "nowhere", *arguments)
    assert run.events == []


# Requests


def test_weights_of_a_version_that_served_again_are_those_of_its_file(run):
    run.keep_model(FIRST, 1)
    run.keep_model(FIRST, 2, of=1)
    assert (
        kept_weights(run.folder, run.store, FIRST, 2) == kept_weights(run.folder, run.store, FIRST, 1) == b"1"
    )
    assert kept_weights(run.folder, run.store, FIRST, 3) is None


def test_terms_that_no_inference_keeps_are_refused(run):
    before = run.cameras()
    with pytest.raises(UserError, match=r"'streams\.cam-1\.max_age_s': 0\.0001 is too little"):
        run.ask(run.control.change_terms, FIRST, {"max_age_s": 0.0001})
    assert run.cameras() == before
    assert run.events == []


def test_requests_are_events_of_the_loop(run):
    run.actors.clock.now = 60 * S
    run.ask(run.control.pause_camera, FIRST, True)
    run.ask(run.control.freeze_model, SECOND, True)
    run.ask(run.control.ask_labels, SECOND)
    run.ask(run.control.change_terms, SECOND, {"weight": 2.0, "max_age_s": None})
    paused, frozen, labels, terms = run.events
    assert (type(paused), paused.stream, paused.paused) == (rq.StreamPaused, FIRST, True)
    assert (type(frozen), frozen.stream, frozen.frozen) == (rq.ModelFrozen, SECOND, True)
    assert (type(labels), labels.t_us - labels.since_us) == (rq.LabelsRequested, operator_control.LABELLED_US)
    assert (type(terms), terms.weight, terms.max_age_us) == (rq.TermsChanged, 2.0, None)


def test_changed_mask_and_zone_are_an_event_and_are_in_the_file(run):
    low, high = (((0.0, y), (1.0, y), (1.0, y + 0.5), (0.0, y + 0.5)) for y in (0.5, 0.0))
    run.ask(run.control.change_terms, SECOND, {"mask": (low,)})
    run.ask(run.control.change_terms, SECOND, {"mask": (low,), "weight": 2.0})
    assert [type(event) for event in run.events] == [rq.AreasChanged, rq.TermsChanged]
    assert run.events[0].areas == Areas(mask=(low,))
    assert load_fleet(run.folder.fleet).stream(SECOND).areas == Areas(mask=(low,))
    with pytest.raises(UserError, match="cam-2: nowhere in the picture would an object count; leave"):
        run.ask(run.control.change_terms, SECOND, {"zone": (low,)})
    run.ask(run.control.change_terms, SECOND, {"zone": (low,), "mask": (high,)})
    assert (type(run.events[-1]), run.events[-1].areas) == (rq.AreasChanged, Areas((high,), (low,)))
    assert run.cameras()[FIRST].areas == Areas()


def test_changes_of_the_fleet_are_events_and_are_in_its_file(run):
    run.ask(run.control.change_fleet, {"min_accuracy": 0.3, "scheduler": "uniform:inference=300"})
    assert run.events == [rq.MinAccuracyChanged(0, 0.3), rq.SchedulerChanged(0, "uniform:inference=300")]
    run.ask(run.control.change_fleet, {"labels_per_window": 48, "gpu_s_per_window": 2.0})
    run.ask(run.control.change_fleet, {"gpu_s_per_window": None})
    assert [one.budget for one in run.events[2:]] == [LabelBudget(48, 2.0), LabelBudget(48, None)]
    assert run.actors.fleet.golden == run.control.fleet.golden
    assert run.control.fleet.golden.labels_per_window == 48
    assert load_fleet(run.folder.fleet) == run.control.fleet
    assert (run.control.fleet.min_accuracy, run.control.fleet.scheduler) == (0.3, "uniform:inference=300")


def test_changed_gpus_are_the_capacity_with_a_preparation_that_fits(run):
    """It is never larger than the one with which the run began."""
    began_milli = run.control.fleet.preparation.share_milli
    told = []
    for gpus in (0.6, 3.0):
        run.ask(run.control.change_fleet, {"gpus": gpus})
        event = run.events[-1]
        told.append((event.capacity_milli, event.preparation_share_milli))
        assert run.executor._shares._ledger.free_milli(0) == event.capacity_milli
        assert load_fleet(run.folder.fleet).gpus == run.actors.fleet.gpus == gpus
        assert run.actors.fleet.preparation.share_milli == event.preparation_share_milli
    (small, less_milli), (large, most_milli) = told
    assert (small, large) == (600, 3000)
    assert less_milli < 600
    assert less_milli < most_milli <= began_milli


def test_part_of_one_gpu_is_changed_and_several_are_not(tmp_path, monkeypatch):
    one = Operated(tmp_path, monkeypatch, machine=MachineSize(1000, on_cores=False))
    one.ask(one.control.change_fleet, {"gpus": 0.7})
    assert one.events[-1].capacity_milli == 700
    with pytest.raises(UserError, match="gpus: 2 is more than the 1 that are here"):
        one.ask(one.control.change_fleet, {"gpus": 2.0})
    one.close()


def test_other_number_of_gpus_has_the_service_start_again(tmp_path, monkeypatch):
    homes = (StreamHome(FIRST, 0), StreamHome(SECOND, 1))
    constants = replace(OPTIONS, homes=homes, capacity_milli=2000)
    two = Operated(tmp_path, monkeypatch, constants=constants, machine=MachineSize(2000, on_cores=False))
    two.ask(two.control.change_fleet, {"gpus": 1.5})
    assert two.events == [rq.RestartRequested(two.events[0].t_us, "the fleet has 1.5 GPUs from now on")]
    assert load_fleet(two.folder.fleet).gpus == 1.5
    with pytest.raises(UserError, match="gpus: 3 is more than the 2 that are here"):
        two.ask(two.control.change_fleet, {"gpus": 3.0})
    two.close()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"min_accuracy": -0.1}, "min_accuracy: -0.1 is too small; use at least 0"),
        ({"min_accuracy": 1.0}, "min_accuracy: 1.0 is too large; use less than 1"),
        ({"min_accuracy": float("nan")}, "min_accuracy: nan is not possible"),
        ({"scheduler": "fifo"}, "the request: scheduler: there is no 'fifo'; choose one of cloud, ekya"),
        ({"scheduler": "oracle"}, "scheduler: oracle has to know what a retraining will give"),
        ({"scheduler": "cloud"}, "scheduler: cloud serves weights that are not trained on the GPUs here"),
        ({"scheduler": "paper"}, "scheduler: paper is a preset, which sets what cannot be changed"),
        ({"scheduler": "uniform@paper"}, "scheduler: uniform@paper is a preset"),
        ({"labels_per_window": 0}, "golden.labels_per_window: 0 is too small; use at least 1"),
        ({"frames_per_window": 24}, "frames_per_window: edge models that classify learn from objects"),
        ({"gpus": 9.0}, "gpus: 9 is more than the 4 that are here; use at most that"),
        ({"gpus": 0.001}, "gpus: 2 cameras are too many for 0 cores"),
        ({"min_accuracy": 0.3, "scheduler": "fifo"}, "there is no 'fifo'"),
    ],
)
def test_impossible_terms_of_the_fleet_are_refused(run, values, sentence):
    before = run.control.fleet
    with pytest.raises(UserError) as refused:
        run.ask(run.control.change_fleet, values)
    assert sentence in str(refused.value)
    assert (run.events, run.control.fleet) == ([], before)


# Classes


def test_added_class_is_the_last_of_the_fleet_and_what_lacks_its_name_is_forgotten(run, monkeypatch):
    fleet = run.control.fleet.model_copy(update={"classes": ("person", "car", "bus")})
    monkeypatch.setattr(run.control, "_fleet", fleet)
    monkeypatch.setattr(type(fleet.streams[0].source), "open", lambda source, classes: None)
    run.folder.exemplars(FIRST).parent.mkdir(exist_ok=True)
    run.folder.exemplars(FIRST).write_bytes(b"learnt")
    run.actors.replies["require_class"] = ()
    run.ask(run.control.add_class, "truck")
    ((larger, name),) = run.actors.arguments("require_class")
    assert (larger.classes, name) == (("person", "car", "bus", "truck"), "truck")
    assert [(type(event), event.reason) for event in run.events] == [
        (rq.RestartRequested, "the class truck was added")
    ]
    assert run.control.fleet.classes == ("person", "car", "bus", "truck")
    assert load_fleet(run.folder.fleet).classes == run.control.fleet.classes
    assert run.actors.arguments("forget_pictures") == [(FIRST,), (SECOND,)]
    assert not run.folder.exemplars(FIRST).exists()


def test_class_that_the_golden_model_does_not_know_is_refused(run, monkeypatch):
    monkeypatch.setattr(type(run.control.fleet.streams[0].source), "open", lambda source, classes: None)
    refusal = RayTaskError("require_class", "traceback", UserError("key 'classes': it knows no 'tram'"))

    def get(_reference, timeout):
        raise refusal

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(UserError, match="key 'classes': it knows no 'tram'"):
        run.control.add_class("tram")
    assert (run.events, run.control.fleet.classes[-1]) == ([], "motorcycle")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("car", "car: there is a class of this name; the classes are person, car"),
        ("tram", "classes: the synthetic city has no 'tram'"),
        ("", "classes"),
    ],
)
def test_class_that_is_not_possible_is_refused_without_asking_the_models(run, name, sentence):
    with pytest.raises(UserError) as refused:
        run.control.add_class(name)
    assert sentence in str(refused.value)
    assert (run.events, run.actors.calls("require_class")) == ([], [])


# Earlier weights


def rolled_back(run, stream=FIRST, version=None):
    """Returns the version that a roll-back asks for."""
    run.events.clear()
    run.ask(run.control.roll_back, stream, version)
    (asked,) = run.events
    return asked.version


def test_roll_backs_go_back_version_by_version(run):
    for version in range(4):
        run.keep_model(FIRST, version)
    assert rolled_back(run) == 2
    run.keep_model(FIRST, 4, of=2)
    assert rolled_back(run) == 1, "not 3, which it was to undo"
    run.keep_model(FIRST, 5, of=1)
    assert rolled_back(run) == 0
    run.keep_model(FIRST, 6)
    assert rolled_back(run) == 5, "trained since"
    assert rolled_back(run, version=3) == 3


def test_roll_back_passes_by_weights_that_never_served(run):
    """Their trainer died on the way: what serves is older than the newest version."""
    run.keep_model(FIRST, 0)
    run.keep_model(FIRST, 1)
    run.actors.streams[FIRST].version = ModelVersion(2)
    assert rolled_back(run) == 0


def test_roll_back_without_earlier_weights_is_refused(run):
    run.keep_model(FIRST, 0)
    with pytest.raises(UserError, match="cam-1: earlier versions that are kept: none"):
        run.ask(run.control.roll_back, FIRST)
    run.keep_model(FIRST, 1)
    run.folder.model(FIRST, ModelVersion(0)).unlink()
    with pytest.raises(UserError, match="kept: none"):
        run.ask(run.control.roll_back, FIRST)
    with pytest.raises(UserError, match="kept: none"):
        run.ask(run.control.roll_back, FIRST, ModelVersion(1))
    assert run.events == []


@pytest.mark.parametrize("version", [2, 7])
def test_refused_version_names_all_that_may_serve_again(run, version):
    """Also those that a roll-back was to undo."""
    run.keep_model(FIRST, 0)
    run.keep_model(FIRST, 1)
    run.keep_model(FIRST, 2, of=0)
    with pytest.raises(UserError, match="cam-1: versions beside the serving one that are kept: 0, 1"):
        run.ask(run.control.roll_back, FIRST, ModelVersion(version))
    assert run.events == []


# A loop that does not answer, a disk that is full


def test_change_that_the_loop_is_late_for_is_not_made(run, monkeypatch):
    monkeypatch.setattr(loop_calls, "_ANSWER_S", 0.01)
    asked = run.begin(run.control.pause_camera, FIRST, True)
    assert ended(asked)
    with pytest.raises(UserError, match=r"the service has not answered within 0\.01 s"):
        asked.result()
    run.turn()
    assert (run.events, run.actors.calls("set_paused")) == ([], [])


def test_camera_that_opens_late_is_added_all_the_same(opening, monkeypatch):
    monkeypatch.setattr(operator_control, "_ADDED_S", 0.01)
    with pytest.raises(UserError, match=r"new: it is still being added after 0\.01 s"):
        opening.ask(opening.control.add_camera, camera(NEW))
    (call,) = opening.opening()
    reply(opening, call)
    opening.turn()
    assert list(opening.cameras()) == [FIRST, SECOND, NEW]


def test_close_ends_calls_that_wait(opening, monkeypatch):
    adding = opening.begin(opening.control.add_camera, camera(NEW))
    opening.opening()
    posted = threading.Event()
    monkeypatch.setattr(opening.executor, "post_call", lambda _call: posted.set())
    pausing = opening.begin(opening.control.pause_camera, FIRST, True)
    assert posted.wait(HANG_GUARD_S)
    opening.control.close()
    later = opening.begin(opening.control.pause_camera, FIRST, True)
    assert ended(adding, pausing, later)
    for asked in (adding, pausing, later):
        with pytest.raises(UserError, match="the service is stopping"):
            asked.result()


def test_add_whose_loop_ends_at_once_does_not_wait(opening, monkeypatch):
    def last(call):
        call()
        opening.control.close()

    monkeypatch.setattr(opening.executor, "post_call", last)
    monkeypatch.setattr(operator_control, "remove_all", lambda *_: None)  # of the thread of the loop
    adding = opening.begin(opening.control.add_camera, camera(NEW))
    assert ended(adding)
    with pytest.raises(UserError, match="the service is stopping"):
        adding.result()


def test_full_disk_changes_nothing(run, full_disk):
    before = run.folder.fleet.read_text()
    full_disk()
    for method, *arguments in (
        ("remove_camera", FIRST),
        ("change_terms", FIRST, {"weight": 2.0}),
        ("change_fleet", {"min_accuracy": 0.5}),
    ):
        with pytest.raises(UserError, match="the disk is full"):
            run.ask(getattr(run.control, method), *arguments)
    assert run.events == []
    assert run.folder.fleet.read_text() == before
    assert list(run.cameras()) == [FIRST, SECOND]


def test_camera_that_cannot_be_kept_for_a_full_disk_is_removed(run, full_disk):
    full_disk()
    with pytest.raises(UserError, match="the disk is full"):
        run.ask(run.control.add_camera, camera(NEW))
    assert [type(event) for event in run.events] == [ev.StreamAdded, rq.StreamRemoved]
    assert list(run.cameras()) == [FIRST, SECOND]


def test_camera_is_not_begun_while_the_database_is_full(run, monkeypatch):
    def full(*_):
        raise UserError("state.sqlite: the disk is full")

    monkeypatch.setattr(StateStore, "remove_models", full)
    with pytest.raises(UserError, match="the disk is full"):
        run.ask(run.control.add_camera, camera(NEW))
    assert (run.events, run.actors.calls("admit_stream")) == ([], [])
