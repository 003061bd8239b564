"""Tests of preparation on virtual time: charges of a detector's, and the check of its teacher."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from bars import CARD
from bright import FLEET, BrightDetector, kept, serving_detector

from ekya.core import commands as cmd
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import FASTESTDET, Task
from ekya.models.golden.detections import no_detections
from ekya.models.golden.golden_from_detections import detector_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.pipeline.window_preparation import label_stream
from ekya.simulation.emulated.preparing import PreparingWindows, step_cost

# Charges


SIDE, FRAMES = 96, 16
CARS = [(10 * at, 10, 10 * at + 8, 40, "car", 0.9) for at in range(8)]


def prepared(earlier=None):
    """Returns the preparation of a window of frames with eight cars each."""
    settings = PreparationSettings(FLEET, SIDE, 10.0, 96, 3, task=Task.DETECT)
    sample = tuple(kept(2 * at, *CARS) for at in range(FRAMES))
    golden = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
    return StreamPreparation(
        settings, WindowMaterial(2, sample, ()), serving_detector(), golden, earlier=earlier
    )


@pytest.fixture(scope="module")
def card():
    """The card of detectors; their operations are counted here, which takes a second."""
    of = CARD.of(FASTESTDET)
    assert of.forward_gpu_s(1, SIDE) > 0
    return of


def test_comparing_two_detectors_is_charged_by_frames(card):
    alone, both = (label_stream(prepared(earlier)) for earlier in (None, serving_detector(["car"])))
    assert alone.compared is None
    assert both.compared.objects == 8, "they stay in place"
    before, after = (step_cost(of.work, of.prepared.golden, card).gpu_s for of in (alone, both))
    assert after - before == pytest.approx(card.forward_gpu_s(2 * FRAMES, SIDE))


# Check of the teacher


CAM = StreamId("cam")
SETTINGS = PreparationSettings(FLEET, 96, 10.0, 96, 3, task=Task.DETECT)
PASSING = tuple(kept(2 * at, (2 + 50 * (at % 2), 8, 40 + 50 * (at % 2), 40, "car", 0.9)) for at in range(24))


class Blind(BrightDetector):
    """Golden detector that finds nothing."""

    def detect_objects(self, image):
        return no_detections()


def events_of(golden, windows, empty=()):
    """Returns the events of preparing these windows of one camera, and its inputs; some have no frames."""
    prepared = StreamPreparation(
        SETTINGS,
        WindowMaterial(0, PASSING, ()),
        serving_detector(),
        detector_model(FLEET, golden, 0.4, names_boxes=False),
    )
    camera = SimpleNamespace(
        labels=None,
        earlier=None,
        snapshot_serving=lambda: None,
        models=SimpleNamespace(add_labels=lambda _: None),
        inference=SimpleNamespace(forget_material=lambda: None),
        forget_material=lambda _: None,
    )
    preparing = PreparingWindows({CAM: camera}, prepared.golden, CARD, 0)
    preparing.preparation_inputs = lambda _, window, *__: (
        replace(prepared, material=WindowMaterial(0, (), ())) if window in empty else prepared
    )
    events = []
    for window in windows:
        steps = preparing.start_preparation(
            cmd.BeginPreparation(window, 500, (cmd.PrepareStream(CAM, (), ()),)), 0
        )
        events += [step.finish(window) for step in steps]
        preparing.end_preparation()
    return events, prepared


def test_doubt_is_reported_once_and_charged_with_one_pass(caplog):
    events, prepared = events_of(Blind(), (1, 2))
    labels, warned, again = events
    assert isinstance(warned, ev.Warned)
    assert (warned.t_us, warned.source) == (1, "micro-profiler")
    assert warned.text.startswith("cam: golden.model: ")
    assert caplog.messages == [warned.text]
    alone = step_cost(label_stream(prepared).work, prepared.golden, CARD).gpu_s
    # The model has learnt from no labels, so it is measured on all.
    assert again.gpu_s == pytest.approx(alone + CARD.forward_gpu_s(24, 96))
    assert labels.gpu_s == pytest.approx(alone + 2 * CARD.forward_gpu_s(24, 96))


def test_doubt_waits_for_the_first_labelled_frames(caplog):
    events, _ = events_of(Blind(), (1, 2), empty=(1,))
    assert [type(event) for event in events] == [ev.LabelsReady, ev.LabelsReady, ev.Warned]
    assert len(caplog.messages) == 1


def test_golden_detector_that_sees_as_much_is_not_doubted(caplog):
    events, _ = events_of(BrightDetector(), (1,))
    assert [type(event) for event in events] == [ev.LabelsReady]
    assert caplog.messages == []
