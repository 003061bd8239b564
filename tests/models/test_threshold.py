"""Tests of a detector's threshold, which is calibrated on the validation part."""

import numpy as np
import pytest
import torch
from drawn_scenes import FLEET, scenes

from ekya.core.configs import RetrainConfig
from ekya.core.objects import SURE
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import from_bytes, to_bytes
from ekya.models.edge.detection.detector import Decoded
from ekya.models.edge.model import build_edge_model, clone, to_input
from ekya.models.training.goals import DetectionGoal
from ekya.models.training.trainer import Retraining, RetrainingData

FRAMES = 6


class Given:
    """A detector whose outputs are its boxes, score and class."""

    def decode_outputs(self, outputs: torch.Tensor) -> Decoded:
        return Decoded(outputs[..., :4], outputs[..., 4], outputs[..., 5].long())


def answers(right: float, wrong: float) -> torch.Tensor:
    """Returns a right box and a wrong one for each frame, with these scores."""
    rows = []
    for of in scenes(FRAMES, 1).objects:
        box = of.boxes[0].tolist()
        rows.append([[*box, right, float(of.classes[0])], [0.0, 0.0, 0.05, 0.05, wrong, 0.0]])
    return torch.tensor(rows)


@pytest.mark.parametrize(
    ("right", "wrong", "least", "most"),
    [
        (0.42, 0.1, 0.2, 0.42),  # good boxes below the usual threshold
        (0.9, 0.58, 0.58, 0.9),  # bad boxes above it
        (0.9, 0.1, SURE, SURE),  # nothing to gain
        (0.1, 0.05, SURE, SURE),  # nothing is found at any
    ],
)
def test_threshold_moves_only_where_it_gains(right: float, wrong: float, least: float, most: float) -> None:
    goal = DetectionGoal(scenes(FRAMES, 1), FLEET, Given(), "cpu")
    assert least <= goal.threshold(answers(right, wrong)) <= most


def test_threshold_survives_copies_and_checkpoints() -> None:
    model = build_edge_model(FLEET, 0, 1, FASTESTDET)
    assert "threshold" not in to_bytes(model)[:2000].decode("latin1")
    model.threshold = 0.35
    assert clone(model).threshold == from_bytes(to_bytes(model)).threshold == 0.35


@pytest.mark.parametrize(("right", "wrong"), [(0.42, 0.1), (0.9, 0.58)])
def test_accuracy_with_the_chosen_threshold_is_higher(right: float, wrong: float) -> None:
    goal, outputs = DetectionGoal(scenes(FRAMES, 1), FLEET, Given(), "cpu"), answers(right, wrong)
    even = np.ones(FRAMES)
    chosen = goal.judge_outputs(outputs, goal.threshold(outputs)).accuracy(even)
    assert chosen > goal.judge_outputs(outputs).accuracy(even) + 0.1


def test_retrained_model_serves_with_the_threshold_that_its_accuracy_was_measured_at() -> None:
    frames = scenes(8, 2)
    held = frames.select_rows(np.arange(6, 8))
    training = Retraining(
        build_edge_model(FLEET, 0, 1, FASTESTDET),
        RetrainConfig(epochs=1, batch_size=4, head_width=0, trainable_blocks=1, data_fraction=1.0),
        RetrainingData(frames.select_rows(np.arange(6)), held, FLEET, seed=1),
    )
    training.prepare_training()
    accuracy = training.run_epoch().validation_accuracy
    model = training.model()
    goal = DetectionGoal(held, FLEET, model.detector, "cpu")
    with torch.inference_mode():
        outputs = model(to_input(held.images, "cpu"))
    assert goal.threshold(outputs) == model.threshold
    assert goal.judge_outputs(outputs, model.threshold).accuracy(np.ones(2)) == pytest.approx(accuracy)
