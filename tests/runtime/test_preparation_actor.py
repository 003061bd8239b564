"""Tests of the micro-profiler's actor as a plain object: compared weights, and passed crops."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bars import (
    FPS,
    FRAMES,
    NAMES,
    SIDE,
    WINDOW_US,
    Golden,
    knowing,
    standing,
    turned_around,
)
from bright import FLEET, BrightDetector, kept, serving_detector

import ekya.runtime.actors.preparation_actor
import ekya.runtime.actors.preparation_work
from ekya.config.fleet_sections import InferencesConfig
from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.configs import InferenceConfig
from ekya.core.errors import UserError
from ekya.core.host import StreamCosts
from ekya.core.preparation_events import AccuracyAudited
from ekya.core.profile import Family, FamilyCost
from ekya.core.records import FramePrediction
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import BASE_VERSION, ModelVersion, StreamId
from ekya.core.weights import LabelBudget
from ekya.gpu.backends.backend import Measured, Resized
from ekya.models.edge.architecture_table import Task
from ekya.models.edge.checkpoints import to_bytes
from ekya.models.edge.forward import PLAIN
from ekya.models.edge.spec import EdgeSpec
from ekya.models.golden.detections import Proposals, no_detections
from ekya.models.golden.golden_from_detections import detector_model
from ekya.pipeline.audit import DrawnFrame, DrawnFrames
from ekya.pipeline.collector import WindowCollector, WindowMaterial
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.runtime.actors.preparation_actor import PreparationActor

CAM, LATE, ABSENT = StreamId("cam"), StreamId("late"), StreamId("absent")
SETTINGS = PreparationSettings(NAMES, SIDE, FPS, 40, 77)
HEAD = Family(trainable_blocks=0, head_width=0, batch_size=8)


class Handle:
    """Handle of a share that never blocks."""

    def scope(self):
        return nullcontext()

    def measured(self):
        return Measured(1000, 2000)

    def resize(self, share_milli):
        return Resized(share_milli, 0)

    def release(self):
        pass


good = pytest.fixture(knowing, scope="module")


@pytest.fixture(scope="module")
def materials():
    """Collected material of windows 0 to 2."""
    collector = WindowCollector(SETTINGS, WINDOW_US)
    kept = []
    for frame, _ in standing(3 * FRAMES):
        collector.collect_frame(frame, Proposals(frame.boxes))
        if frame.index % FRAMES == FRAMES - 1:
            kept.append(collector.close(frame.index // FRAMES))
    return kept


def made_actor(monkeypatch, golden, classes):
    """Makes an actor with a golden model."""
    monkeypatch.setattr(ekya.runtime.actors.preparation_actor, "lower_priority", lambda niceness: None)
    monkeypatch.setattr(ekya.runtime.actors.preparation_actor, "open_golden", lambda *_: golden)
    monkeypatch.setattr(ekya.runtime.actors.preparation_actor, "fleet_classes", lambda _: classes)
    fleet = SimpleNamespace(
        golden=SimpleNamespace(gpu_s_per_window=None), edge=EdgeSpec(), inference=InferencesConfig()
    )
    costs = dict.fromkeys((CAM, LATE), StreamCosts(10.0, {SIDE: 0.001}))
    shares = SimpleNamespace(attach_job=lambda _: Handle())
    return PreparationActor(
        SimpleNamespace(
            fleet=fleet,
            seed=0,
            shares=shares,
            costs=costs,
            device="cpu",
            way=PLAIN,
            audit_frames=4,
            family_costs=(FamilyCost(HEAD, 0.001, 0.001),),
        )
    )


@pytest.fixture
def unbegun(monkeypatch):
    """Actor before a run begins."""
    return made_actor(monkeypatch, Golden(), NAMES)


@pytest.fixture
def actor(unbegun):
    unbegun.start_run(0)
    return unbegun


def unheard_of():
    """Fails the test: the actor must have these weights already."""
    pytest.fail("these weights were loaded before")


def everything_told(actor, materials, window, version, earlier, speed=LINEAR):
    """Returns all events of a window's preparation, by type."""
    asked = cmd.PrepareStream(CAM, (), (HEAD,))
    actor.start_preparation(cmd.BeginPreparation(window, 500, (asked,), training_speed=speed), window)
    actor.hand_in(window, CAM, SETTINGS, materials[window - 1], version, unheard_of, earlier)
    events = []
    while not any(isinstance(event, ev.PreparationEnded) for event in events):
        events.extend(actor.poll(5.0))
    return {type(event): event for event in events}


def prepare(actor, materials, window, version, earlier):
    """Returns the event about a window's labels."""
    return everything_told(actor, materials, window, version, earlier)[ev.LabelsReady]


def test_newer_weights_are_compared_and_the_better_are_tried(actor, good, materials):
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    assert prepare(actor, materials, 1, BASE_VERSION, None).compared is None
    actor.load_model(CAM, SETTINGS, ModelVersion(1), to_bytes(turned_around(good)))
    second = prepare(actor, materials, 2, ModelVersion(1), BASE_VERSION)
    assert second.compared.new < 0.5 < second.compared.old
    assert second.serving_accuracy > 0.8


def test_second_round_of_a_window_replaces_the_labels_of_its_stream(actor, good, materials):
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    prepare(actor, materials, 1, BASE_VERSION, None)
    first = actor.newest_labels(1, CAM)
    since_us = 5
    asked = cmd.PrepareStream(CAM, (), (HEAD,), since_us)
    actor.start_preparation(cmd.BeginPreparation(1, 500, (asked,), round=1), 2)
    assert actor.newest_labels(1, CAM) is first, "until there are others"
    newer = replace(materials[1], since_us=since_us)
    actor.hand_in(1, CAM, SETTINGS, newer, BASE_VERSION, unheard_of, None, round=1)
    events = []
    while not any(isinstance(event, ev.PreparationEnded) for event in events):
        events.extend(actor.poll(5.0))
    (told,) = (event for event in events if isinstance(event, ev.LabelsReady))
    assert (told.window, told.since_us) == (1, since_us)
    assert events[-1] == ev.PreparationEnded(events[-1].t_us, 1, 1)
    assert actor.newest_labels(1, CAM) is not first


def test_camera_that_is_added_again_has_none_of_what_was_known_of_the_one_before(actor, good, materials):
    actor.load_model(CAM, SETTINGS, ModelVersion(1), to_bytes(turned_around(good)))
    assert prepare(actor, materials, 1, ModelVersion(1), None).serving_accuracy < 0.5
    actor.admit_stream(CAM, StreamCosts(10.0, {SIDE: 0.001}))
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    assert prepare(actor, materials, 2, BASE_VERSION, None).serving_accuracy > 0.8
    newest, *earlier = actor._work._memory.pool._newest_first[CAM]
    assert (newest.window, earlier) == (materials[1].window, [])


def test_cost_of_a_label_is_known_before_the_first_preparation_with_a_budget(actor):
    tried = []
    for serial, budget in enumerate((None, LabelBudget(40), LabelBudget(40, 1.0), LabelBudget(40, 2.0))):
        actor.start_preparation(cmd.BeginPreparation(1 + serial, 500, (), budget=budget), serial)
        tried.append(actor._golden._operations)
    assert tried[:2] == [0, 0]
    assert tried[2] == tried[3] > 0


def test_class_is_refused_that_a_serving_detector_has_no_output_for(monkeypatch, actor, good):
    """Its outputs stay, whatever the fleet asks for; a classifier gets new ones."""
    monkeypatch.setattr(ekya.runtime.actors.preparation_actor, "base_model", lambda *_: None)
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    for task, name in ((Task.CLASSIFY, "tram"), (Task.DETECT, NAMES[0])):
        fleet = SimpleNamespace(golden=None, edge=SimpleNamespace(task=task))
        actor.require_class(fleet, name)
    with pytest.raises(UserError, match="tram: the detector of cam has no output of this name"):
        actor.require_class(fleet, "tram")


def test_weights_evaluated_before_a_restart_are_not_compared(actor, good, materials):
    """Covers an actor that died and was restarted between two windows."""
    actor.load_model(CAM, SETTINGS, ModelVersion(1), to_bytes(turned_around(good)))
    assert prepare(actor, materials, 2, ModelVersion(1), BASE_VERSION).compared is None


def test_trial_cost_is_time_of_a_whole_gpu(actor, good, materials):
    """On a GPU the time of the thread says nothing about the GPU's work."""
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(turned_around(good)))
    line = everything_told(actor, materials, 1, BASE_VERSION, None)[ev.ProfileReady]
    fast = SpeedCurve(((0, 0.0), (500, 0.8), (1000, 1.0)))
    faster = everything_told(actor, materials, 1, BASE_VERSION, None, fast)[ev.ProfileReady]
    assert line.curve.epoch_gpu_s + line.curve.fixed_epoch_gpu_s > 0.001
    assert faster.gpu_s == line.gpu_s
    assert faster.curve.prepare_gpu_s == pytest.approx(1.6 * line.curve.prepare_gpu_s)
    assert faster.curve.epoch_gpu_s == pytest.approx(1.6 * line.curve.epoch_gpu_s)


def told_until_the_end(actor):
    events = []
    while not any(isinstance(event, ev.PreparationEnded) for event in events):
        events.extend(actor.poll(5.0))
    return events


def drawn_frames(count, arrived=30):
    """Returns the first frames as they are drawn, with answers that are right."""
    frames = [
        DrawnFrame(frame.index, frame.image, (80, 16), frame.boxes, answered(frame, truth))
        for frame, truth in standing(count)
    ]
    return DrawnFrames(arrived, tuple(frames))


def answered(frame, truth):
    classes, sure = truth.classes.astype(np.int16), np.ones(len(truth.classes), np.float32)
    return FramePrediction(frame.index, frame.t_us, 0, True, 0, 0, 1, SIDE, truth.boxes, classes, sure)


def audits_in(events):
    return [event for event in events if isinstance(event, AccuracyAudited)]


def test_streams_are_audited_after_everything_else_and_nothing_learns_from_it(actor, good, materials):
    """Also a stream that is not prepared in the window."""
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    alone = everything_told(actor, materials, 1, BASE_VERSION, None)[ev.LabelsReady]
    frames_alone = actor.newest_labels(1, CAM).training.frames
    actor.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), (HEAD,)),)), 2)
    actor.hand_in_audit(LATE, SETTINGS, drawn_frames(2))
    actor.hand_in_audit(CAM, SETTINGS, drawn_frames(3))
    actor.hand_in_audit(ABSENT, SETTINGS, None)
    actor.hand_in(1, CAM, SETTINGS, materials[0], BASE_VERSION, unheard_of, None)
    events = told_until_the_end(actor)
    assert [type(event) for event in events[-3:]] == [AccuracyAudited, AccuracyAudited, ev.PreparationEnded]
    late, cam = audits_in(events)
    assert (late.stream, late.window, late.arrived, len(late.counted)) == (LATE, 1, 30, 2)
    assert (cam.stream, len(cam.counted)) == (CAM, 3)
    assert cam.correct == cam.counted
    assert sum(cam.counted) > 0
    (labels,) = (event for event in events if isinstance(event, ev.LabelsReady))
    assert (labels.training_crops, labels.golden_calls) == (alone.training_crops, alone.golden_calls)
    assert actor.newest_labels(1, CAM).training.frames.tolist() == frames_alone.tolist()


def test_audit_without_time_is_made_after_the_next_labels(actor, good, materials):
    """With what is drawn meanwhile: all frames that arrived stay equally likely."""
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(turned_around(good)))
    actor.hand_in_audit(CAM, SETTINGS, drawn_frames(4))
    actor.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(ABSENT, (), ()),)), 1)
    actor.end_preparation(1)
    assert audits_in(actor.poll(0.1)) == []
    actor.hand_in_audit(CAM, SETTINGS, drawn_frames(4, arrived=50))
    actor.start_preparation(cmd.BeginPreparation(2, 500, (cmd.PrepareStream(CAM, (), (HEAD,)),)), 2)
    actor.hand_in(2, CAM, SETTINGS, materials[1], BASE_VERSION, unheard_of, None)
    told = told_until_the_end(actor)
    assert [type(event) for event in told[:3]] == [ev.LabelsReady, AccuracyAudited, ev.ProfileReady]
    (audited,) = audits_in(told)
    assert (audited.arrived, len(audited.counted)) == (80, 4)


def test_overdue_audits_wait_for_their_own_labels_and_the_others_for_all(actor, good, materials):
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(turned_around(good)))
    for stream in (ABSENT, LATE, CAM):
        actor.hand_in_audit(stream, SETTINGS, drawn_frames(1))
    asked = tuple(cmd.PrepareStream(stream, (), (HEAD,)) for stream in (CAM, LATE))
    actor.start_preparation(cmd.BeginPreparation(1, 500, asked), 1)
    for stream in (CAM, LATE):
        actor.hand_in(1, stream, SETTINGS, materials[0], BASE_VERSION, lambda: to_bytes(good), None)
    told = [(type(event), getattr(event, "stream", None)) for event in told_until_the_end(actor)]
    assert told[:5] == [
        (ev.LabelsReady, CAM),
        (AccuracyAudited, CAM),
        (ev.LabelsReady, LATE),
        (AccuracyAudited, LATE),
        (AccuracyAudited, ABSENT),
    ]
    assert [kind for kind, _ in told].count(AccuracyAudited) == 3


def test_preparation_inside_a_window_audits_nothing(actor, good, materials):
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    actor.hand_in_audit(CAM, SETTINGS, drawn_frames(4))
    actor.start_preparation(
        cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), (HEAD,), 5),), round=1), 1
    )
    actor.hand_in(
        1, CAM, SETTINGS, replace(materials[0], since_us=5), BASE_VERSION, unheard_of, None, round=1
    )
    assert audits_in(told_until_the_end(actor)) == []


def test_audit_that_fails_ends_nothing_else(actor, caplog):
    damaged = DrawnFrames(9, (DrawnFrame(0, None, (80, 16), np.ones((1, 4), np.float32), None),))
    actor.hand_in_audit(LATE, SETTINGS, damaged)
    actor.hand_in_audit(CAM, SETTINGS, drawn_frames(1))
    actor.start_preparation(cmd.BeginPreparation(1, 500, ()), 1)
    assert [event.stream for event in audits_in(told_until_the_end(actor))] == [CAM]
    assert "late: its audit failed" in caplog.text


def test_hand_in_fetches_a_model_not_loaded_yet(actor, good, materials):
    """Covers a resumed run and a restarted actor, in which nothing is loaded at first."""
    actor.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), ()),)), 1)
    actor.hand_in(1, CAM, SETTINGS, materials[0], BASE_VERSION, lambda: to_bytes(good), None)
    assert [event.stream for event in told_until_the_end(actor) if isinstance(event, ev.LabelsReady)] == [CAM]


def test_hand_in_of_a_lost_model_uses_the_one_before(actor, good, materials, caplog):
    def lost():
        raise OSError("their trainer died")

    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    actor.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), ()),)), 1)
    actor.hand_in(1, CAM, SETTINGS, materials[0], ModelVersion(1), lost, None)
    assert [event.stream for event in told_until_the_end(actor) if isinstance(event, ev.LabelsReady)] == [CAM]
    assert "cam: its labels meet an earlier model (their trainer died)" in caplog.text


def test_hand_in_waits_until_the_run_has_begun(unbegun, good, materials):
    unbegun.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(CAM, (), ()),)), 1)
    arguments = (1, CAM, SETTINGS, materials[0], BASE_VERSION, lambda: to_bytes(good), None)
    with ThreadPoolExecutor() as pool:
        handed_in = pool.submit(unbegun.hand_in, *arguments)
        assert not handed_in.done()
        unbegun.start_run(0)
        handed_in.result()
    assert [event.stream for event in told_until_the_end(unbegun) if isinstance(event, ev.LabelsReady)] == [
        CAM
    ]


@pytest.mark.parametrize("labels", [True, False])
def test_lambdas_come_first_where_they_are_asked_for_first_or_alone(actor, good, materials, labels):
    """The streams hand in in another order than they were asked for."""
    for stream in (LATE, CAM):
        actor.load_model(stream, SETTINGS, BASE_VERSION, to_bytes(good))
    config = InferenceConfig(2, SIDE)
    first = {"labels": labels, "inference_first": True}
    asked = (
        cmd.PrepareStream(ABSENT, (config,), (), **first),
        cmd.PrepareStream(LATE, (config,), (), **first),
        cmd.PrepareStream(CAM, (), ()),
    )
    actor.start_preparation(cmd.BeginPreparation(1, 500, asked), 1)
    actor.hand_in(1, CAM, SETTINGS, materials[0], BASE_VERSION, unheard_of, None)
    actor.hand_in_failed(1, ABSENT)
    actor.hand_in(1, LATE, SETTINGS, materials[0], BASE_VERSION, unheard_of, None)
    *told, ended = told_until_the_end(actor)
    labelled = [LATE, CAM] if labels else [CAM]
    assert (type(told[0]), told[0].stream) == (ev.InferenceProfiled, LATE)
    assert [event.stream for event in told[1:] if isinstance(event, ev.LabelsReady)] == labelled
    assert len(told) == 1 + len(labelled)
    assert [option.config for option in told[0].options] == [config]
    assert type(ended) is ev.PreparationEnded


def test_stream_that_has_handed_in_does_not_wait_for_lambdas_of_a_late_one(actor, good, materials):
    actor.load_model(CAM, SETTINGS, BASE_VERSION, to_bytes(good))
    asked = (
        cmd.PrepareStream(LATE, (InferenceConfig(2, SIDE),), (), inference_first=True),
        cmd.PrepareStream(CAM, (), ()),
    )
    actor.start_preparation(cmd.BeginPreparation(1, 500, asked), 1)
    actor.hand_in(1, CAM, SETTINGS, materials[0], BASE_VERSION, unheard_of, None)
    (labelled,) = actor.poll(30.0)
    assert (type(labelled), labelled.stream) == (ev.LabelsReady, CAM)
    actor.hand_in(1, LATE, SETTINGS, materials[0], BASE_VERSION, lambda: to_bytes(good), None)
    assert [(type(event), event.stream) for event in told_until_the_end(actor)[:-1]] == [
        (ev.InferenceProfiled, LATE),
        (ev.LabelsReady, LATE),
    ]


def test_stream_without_hand_in_is_logged_at_the_end(actor, caplog):
    actor.start_preparation(cmd.BeginPreparation(1, 500, (cmd.PrepareStream(ABSENT, (), ()),)), 1)
    actor.end_preparation(1)
    assert "absent: handed in nothing for window 1" in caplog.text


class Blind(BrightDetector):
    """Golden detector that finds nothing."""

    def detect_objects(self, image):
        return no_detections()


PASSING = tuple(kept(2 * at, (2 + 50 * (at % 2), 8, 40 + 50 * (at % 2), 40, "car", 0.9)) for at in range(24))


@pytest.fixture
def detecting(monkeypatch):
    """Actor of a student that finds the passing cars, and of a golden detector that finds none."""
    made = made_actor(monkeypatch, detector_model(FLEET, Blind(), 0.4, names_boxes=False), FLEET)
    monkeypatch.setattr(ekya.runtime.actors.preparation_work, "from_bytes", lambda weights: weights)
    monkeypatch.setattr(ekya.runtime.actors.preparation_work, "serving", lambda *_: serving_detector())
    made.start_run(0)
    return made


def told_of_frames(actor, window, frames):
    """Returns the types of the events of a window with these frames."""
    settings = PreparationSettings(FLEET, 96, 10.0, 96, 3, task=Task.DETECT)
    actor.start_preparation(cmd.BeginPreparation(window, 500, (cmd.PrepareStream(CAM, (), ()),)), window)
    material = WindowMaterial(window - 1, frames, ())
    actor.hand_in(window, CAM, settings, material, BASE_VERSION, lambda: b"", None)
    return [type(event) for event in told_until_the_end(actor)]


def test_doubt_about_the_golden_detector_is_logged_once_from_the_first_labelled_frames(detecting, caplog):
    told_of_frames(detecting, 1, ())
    assert "golden.model" not in caplog.text, "without frames there is nothing to ask"
    told_of_frames(detecting, 2, PASSING)
    assert caplog.text.count("cam: golden.model: in the first 24 labelled frames") == 1
    told_of_frames(detecting, 3, PASSING)
    assert caplog.text.count("golden.model") == 1


def test_doubt_that_fails_leaves_the_labels(detecting, monkeypatch, caplog):
    def fail(*_):
        raise OSError("no such luck")

    monkeypatch.setattr(StreamPreparation, "check_teacher", fail)
    assert told_of_frames(detecting, 1, PASSING) == [ev.LabelsReady, ev.PreparationEnded]
    assert len(detecting.newest_labels(1, CAM).training.examples) == 24
    assert "no such luck" in caplog.text
