"""Tests of stored whole frames, and of scoring what detectors find in them."""

import numpy as np
import pytest
from bars import FPS, FRAMES, WINDOW_US
from bright import FLEET, SIZE, BrightDetector, picture, serving_detector

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.records import LabelledBoxes
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.golden_from_detections import detector_model
from ekya.models.proposer import NoProposals
from ekya.pipeline.collector import WindowCollector
from ekya.pipeline.reference import Referee
from ekya.pipeline.settings import PreparationSettings
from ekya.simulation.emulated.examining import true_options
from ekya.simulation.emulated.model_inputs import model_input_of
from ekya.simulation.emulated.stored_frames import iterate_windows
from ekya.streams.ingest.frame import Frame

SIDE, SMALL = 96, 64
LAMBDAS = tuple(InferenceConfig(every, side) for every in (1, 5) for side in (SIDE, SMALL))
BY_GOLDEN = InferenceConfig(5, GOLDEN_RESOLUTION)
SETTINGS = PreparationSettings(FLEET, SIDE, FPS, 40, 5, task=Task.DETECT)
SIGHT = model_input_of(SETTINGS, LAMBDAS)
TEXTURE = np.random.default_rng(1).integers(150, 256, (30, 24), np.uint8)
"""Of the object that moves, for optical flow."""
PARKED, HALF = (70, 50, 110, 75, "person", 0.9), (70, 5, 110, 30, "car", 0.3)


def frames(count):
    """Yields frames with a parked object, one of which the golden detector is unsure, and one that moves."""
    for index in range(count):
        left = 4 * (index % 20)
        moving = (left, 10, left + 24, 40, "car", 0.9)
        image = picture(PARKED, HALF)
        if index % 10:
            image = picture(moving, PARKED)
            image[10:40, left : left + 24, 1] = TEXTURE
        yield Frame(index, round(index * 1e6 / FPS), image, None), None


@pytest.fixture(scope="module")
def seen():
    """Two windows."""
    golden = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
    collector, referee = WindowCollector(SETTINGS, WINDOW_US), Referee(golden, StreamId("cam"))
    return list(
        iterate_windows(frames(2 * FRAMES), NoProposals(), collector, referee, SIGHT, WINDOW_US, None, (5,))
    )


@pytest.fixture(scope="module")
def window(seen):
    return seen[1].frames


def answers(window, side=SIDE, sees=FLEET):
    return SIGHT.answer_frames(window, serving_detector(sees).predict(window.images[side], side))


def test_frames_are_stored_whole_at_every_resolution(window):
    assert {side: images.shape for side, images in window.images.items()} == {
        side: (FRAMES, side, side, 3) for side in (SIDE, SMALL)
    }
    assert window.boxes.tolist() == [[0, 0, *SIZE]] * FRAMES
    thin = window.thinned(5)
    assert thin.frame.tolist() == list(range(FRAMES, 2 * FRAMES, 5))
    np.testing.assert_array_equal(thin.images[SMALL], window.images[SMALL][::5])


def test_accuracy_of_detections_is_f1_without_doubtful_boxes(window):
    score, series = window.score(answers(window), len(FLEET))
    assert score.accuracy == 1.0
    moves = FRAMES - FRAMES // 10
    assert (score.objects, score.boxes) == (FRAMES + moves, FRAMES + moves)
    assert series.counted.sum() == score.counted

    # Of 57 objects 30 are found, and nothing else.
    fewer, _ = window.score(answers(window, sees=["person"]), len(FLEET))
    assert fewer.accuracy == pytest.approx(2 * FRAMES / (FRAMES + moves + FRAMES))
    nothing, objects = window.score(window.unanswered(), len(FLEET))
    assert (nothing.accuracy, objects.counted.sum()) == (0.0, FRAMES + moves)


def test_labelled_frames_do_not_count(seen):
    labelled = np.array([FRAMES + 1, FRAMES + 1, FRAMES + 2])
    first, last = SIGHT.counting([of.frames for of in seen], LabelledBoxes(labelled, np.zeros((3, 4))))
    assert len(first.reference.frame) == FRAMES
    assert np.setdiff1d(last.frame, last.reference.frame).tolist() == [FRAMES + 1, FRAMES + 2]
    whole, fewer = (of.score(answers(of), len(FLEET))[0].objects for of in (seen[1].frames, last))
    assert whole - fewer == 4


def test_true_lambda_of_detectors_counts_f1(window):
    found = {side: (answers(window, side),) for side in (SIDE, SMALL)}
    seconds = {SIDE: 0.02, SMALL: 0.01}
    options = {of.config: of for of in true_options(LAMBDAS, window, found, len(FLEET), seconds, FPS)}
    assert options[InferenceConfig(1, SIDE)].relative_accuracy == 1.0
    held = options[InferenceConfig(5, SIDE)].relative_accuracy
    score, _ = window.score(answers(window), len(FLEET), 5, 5)
    assert held == pytest.approx(score.accuracy)
    assert 0.5 < held < 0.9
    assert [option.share_needed_milli for option in options.values()] == [200, 100, 40, 20]


def test_true_lambda_of_the_golden_detector_has_followed_boxes(window):
    """It is right where it runs; boxes stay in place while a frame is analysed, and are followed later."""

    def option(gpu_s):
        (of,) = true_options(
            (BY_GOLDEN,), window, {}, len(FLEET), {GOLDEN_RESOLUTION: gpu_s}, FPS, {GOLDEN_RESOLUTION: 0.1}
        )
        return of

    slow, fast = option(0.45), option(0.1)
    assert (slow.share_needed_milli, fast.share_needed_milli) == (1100, 1000)
    held, _ = window.score(window.golden[5], len(FLEET), 5, 5)
    assert held.accuracy < slow.relative_accuracy < fast.relative_accuracy <= 1.0
    assert np.diff(window.golden[5].offsets)[0] == 1
