import numpy as np
import pytest
from other_weights import freed_with_predictor

from ekya.models.edge.model import EdgeModel
from ekya.models.edge.predictor import Predictor, accuracy
from ekya.models.training.labelled import LabelledCrops, no_crops


class Answers:
    def __init__(self, classes: list[int]) -> None:
        self._classes = np.array(classes, np.int64)

    def predict(self, crops: np.ndarray, resolution: int) -> tuple[np.ndarray, np.ndarray]:
        return self._classes, np.ones(len(crops), np.float32)


def labelled(classes: list[int]) -> LabelledCrops:
    rows = np.zeros(len(classes), np.int64)
    return LabelledCrops(np.zeros((len(classes), 8, 8, 3), np.uint8), np.array(classes, np.int64), rows, rows)


@pytest.mark.parametrize("resolution", [16, 24, 48])
def test_predictor_takes_any_resolution_and_no_crops(
    fresh_model: EdgeModel, make_bars, resolution: int
) -> None:
    predictor = Predictor(fresh_model)
    assert predictor.predict(make_bars(5, 1).crops, resolution)[0].shape == (5,)
    assert predictor.predict(no_crops(32).crops, resolution)[1].shape == (0,)


def test_accuracy_is_the_part_of_right_crops() -> None:
    truth = labelled([0, 0, 0, 1])
    answers = Answers([0, 0, 0, 0])
    assert accuracy(answers, truth) == 0.75
    assert accuracy(answers, no_crops(8)) == 0.0


def test_accuracy_of_unknown_label_counts_as_wrong(fresh_model: EdgeModel) -> None:
    assert accuracy(fresh_model, labelled([7, 7])) == 0.0


def test_predictor_deleted_frees_its_weights_immediately(tiny_model) -> None:
    """Two predictors per window and stream must not wait for garbage collection."""
    assert freed_with_predictor(lambda: Predictor(tiny_model))
