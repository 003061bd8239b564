"""Fuzz of every detector that is an edge model: what a network may answer, and objects that it may learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_scenes import FLEET, SIDE, scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from other_weights import OUTPUTS, every_detector_lived_in

from ekya.models.edge.architecture_table import DETECTORS
from ekya.models.edge.detection.read_objects import (
    LEAST_CONFIDENCE,
    MOST_OBJECTS,
    BoxCandidates,
    fleet_outputs,
    found_in,
)
from ekya.models.edge.model import EdgeModel, to_input
from ekya.models.training.frames import FrameObjects
from ekya.models.training.goals import DetectionGoal

EVERY = sorted(DETECTORS)
every_detector = pytest.mark.parametrize("name", EVERY)


@pytest.fixture(scope="module")
def models() -> dict[str, EdgeModel]:
    """One of each architecture; tests must not change them."""
    return every_detector_lived_in()


ODD = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e-40, 80.0, -80.0])


@every_detector
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), part=st.sampled_from([0.001, 0.05, 0.5, 1.0]))
def test_detector_outputs_of_any_value_give_valid_objects(models, name: str, seed: int, part: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        outputs = models[name](torch.randn(2, 3, SIDE, SIDE, generator=generator))
        odd = ODD[torch.randint(len(ODD), outputs.shape, generator=generator)]
        outputs = torch.where(torch.rand(outputs.shape, generator=generator) < part, odd, 8 * outputs)
        decoded = models[name].detector.decode_outputs(outputs)
    for found in found_in(BoxCandidates.of(decoded), fleet_outputs(OUTPUTS, FLEET)):
        assert len(found.boxes) == len(found.classes) == len(found.confidence) <= MOST_OBJECTS
        assert ((found.boxes >= 0) & (found.boxes <= 1)).all()
        assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
        assert ((found.confidence >= LEAST_CONFIDENCE) & (found.confidence <= 1)).all()
        assert set(found.classes.tolist()) <= set(range(len(FLEET)))


@st.composite
def any_objects(draw: st.DrawFn) -> FrameObjects:
    """Objects of a frame, of any size and number, many of them on the frame's edge or on each other."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def boxes(count: int) -> np.ndarray:
        sizes = 10 ** rng.uniform(-6, 0, (count, 2))
        low = rng.choice([0.0, 0.5, 1.0, rng.random()], (count, 2)) * (1 - sizes)
        return np.concatenate([low, np.minimum(low + sizes, 1)], axis=1).astype(np.float32)

    objects, doubtful = (draw(st.sampled_from([0, 1, 2, 40, 1000])) for _ in range(2))
    return FrameObjects(boxes(objects), rng.integers(0, len(FLEET), objects), boxes(doubtful))


@every_detector
@settings(max_examples=15)
@given(objects=st.tuples(any_objects(), any_objects()))
def test_detector_loss_of_any_objects_is_finite(models, name: str, objects) -> None:
    frames = replace(scenes(2, 1), objects=objects)
    goal = DetectionGoal(frames, OUTPUTS, models[name].detector, "cpu")
    with torch.no_grad():
        answers = models[name](to_input(frames.images, "cpu"))
    outputs = answers.clone().requires_grad_()
    batch = torch.arange(2)
    loss = goal.loss(outputs, batch) + goal.teaching(OUTPUTS, answers).distance(outputs, batch)
    loss.backward()
    assert loss.isfinite()
    assert loss >= 0
    assert outputs.grad.isfinite().all()
    assert 0.0 <= goal.judge_outputs(answers).accuracy(np.ones(2)) <= 1.0
