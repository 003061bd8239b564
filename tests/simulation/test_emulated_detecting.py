"""Charges of a detector's preparation on virtual time."""

import pytest
from bars import CARD
from bright import BrightDetector, kept, serving_detector

from ekya.models.edge.architecture_table import FASTESTDET, Task
from ekya.models.golden.golden_from_detections import detector_model
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.pipeline.window_preparation import label_stream
from ekya.simulation.emulated.preparing import step_cost

FLEET = ("car", "person")
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
