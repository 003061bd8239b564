"""Fast inference of detectors: both engines answer alike, alone and among classifiers."""

import logging
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection import predictor as module
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.detection.read_objects import BoxCandidates, found_in
from ekya.models.edge.forward import ONNXRUNTIME, PLAIN, TORCH, ForwardWay
from ekya.models.edge.model import EdgeModel, build_edge_model, clone
from ekya.models.edge.multi_model import (
    BatchedPredictor,
    MultiModelPredictor,
    Predictors,
    Request,
    SharedTrunk,
)
from ekya.models.edge.predictor import Predictor
from ekya.models.edge.self_test import choose_way

SIDE = 96
IN_TORCH = ForwardWay(engine=TORCH)


def detector(seed: int, classes: int = 3) -> EdgeModel:
    """Returns a detector with random weights and statistics, so that no two tensors are equal."""
    model = build_edge_model(tuple(f"class {place}" for place in range(classes)), 0, seed, FASTESTDET)
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                layer.bias.uniform_(-0.1, 0.4, generator=made)
                layer.running_mean.uniform_(-0.1, 0.1, generator=made)
                layer.running_var.uniform_(0.3, 1.2, generator=made)
    return model


def images(count: int, seed: int, side: int = SIDE) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3)).astype(np.uint8)


def differs(one: BoxCandidates, other: BoxCandidates) -> float:
    """Returns the largest difference of boxes and scores; outputs may differ where two are equal."""
    return max(float(np.abs(one.boxes - other.boxes).max()), float(np.abs(one.scores - other.scores).max()))


@pytest.mark.parametrize("classes", [1, 3, 80])
def test_engines_agree_at_every_side(classes: int) -> None:
    model = detector(1, classes)
    fast, exact = DetectorPredictor(model), DetectorPredictor(model, way=IN_TORCH)
    assert (fast.way.engine, exact.way.engine) == (ONNXRUNTIME, TORCH)
    assert "onnxruntime" in str(fast.way)
    for side in (32, 64, 160, 96):
        shown = images(2, side, side)
        found, expected = fast.predict(shown, side), exact.predict(shown, side)
        assert found.boxes.shape == (2, (side // 16) ** 2, 4)
        assert differs(found, expected) < 1e-4
        assert (found.outputs == expected.outputs).mean() > 0.9
        assert [array.dtype for array in (found.boxes, found.scores, found.outputs)] == [
            np.float32,
            np.float32,
            np.int64,
        ]
    assert expected.scores.std() > 1e-4, "the answers say something"


def test_every_model_answers_with_its_own_weights() -> None:
    models = [detector(seed) for seed in range(3)]
    shown = images(1, 0)
    answers = [DetectorPredictor(model).predict(shown, SIDE) for model in models]
    for model, answer in zip(models, answers, strict=True):
        assert differs(answer, DetectorPredictor(model, way=IN_TORCH).predict(shown, SIDE)) < 1e-4
    assert differs(answers[0], answers[1]) > 1e-3


def test_predictor_is_a_copy_that_training_does_not_change() -> None:
    model, shown = detector(2), images(1, 1)
    for way in (PLAIN, IN_TORCH):
        predictor = DetectorPredictor(model, way=way)
        before = predictor.predict(shown, SIDE)
        changed = clone(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.5)
        assert differs(before, predictor.predict(shown, SIDE)) == 0.0
        assert predictor.source is model
        model.load_state_dict(changed.state_dict())


def test_images_pass_in_batches_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []

    class Counted(module.OnnxForward):
        def __call__(self, images: NDArray[np.uint8]) -> BoxCandidates:
            passed.append(len(images))
            return super().__call__(images)

    monkeypatch.setattr(module, "OnnxForward", Counted)
    model, shown = detector(3), images(7, 2)
    one_by_one, in_batches = (
        DetectorPredictor(model, way=way) for way in (PLAIN, replace(PLAIN, images_a_pass=3))
    )
    passed.clear()
    alone, together = one_by_one.predict(shown, 64), in_batches.predict(shown, 64)
    assert passed == [1] * 7 + [3, 3, 1]
    assert differs(alone, together) < 1e-5
    none = in_batches.predict(shown[:0], 64)
    assert [len(array) for array in (none.boxes, none.scores, none.outputs)] == [0, 0, 0]


def test_images_are_resized_to_the_resolution() -> None:
    predictor, shown = DetectorPredictor(detector(4)), images(1, 3)
    small = cv2.resize(shown[0], (64, 64))[None]
    assert differs(predictor.predict(shown, 64), predictor.predict(small, 64)) == 0.0
    mirrored = shown[:, :, ::-1]  # not contiguous, as a slice of a frame is
    assert differs(predictor.predict(mirrored, SIDE), predictor.predict(mirrored.copy(), SIDE)) == 0.0


def test_failed_export_falls_back_to_torch_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise TypeError("no such exporter\nin this version")

    monkeypatch.setattr(torch.onnx, "export", failing)
    with caplog.at_level(logging.WARNING):
        predictors = [DetectorPredictor(detector(seed, classes=7)) for seed in range(2)]
    assert {one.way.engine for one in predictors} == {TORCH}
    (warned,) = [record.getMessage() for record in caplog.records]
    assert "runs in torch" in warned
    assert "TypeError: no such exporter" in warned
    assert predictors[0].predict(images(1, 0), SIDE).scores.shape == (1, 36)


def test_engine_with_wrong_answers_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(module.OnnxForward):
        def __call__(self, image: NDArray[np.uint8]) -> BoxCandidates:
            answer = super().__call__(image)
            return replace(answer, boxes=answer.boxes + np.float32(0.01))

    monkeypatch.setattr(module, "OnnxForward", Wrong)
    with caplog.at_level(logging.WARNING):
        assert DetectorPredictor(detector(5)).way.engine == TORCH
    assert "off by 0.01" in caplog.text


def test_weights_that_are_no_numbers_find_nothing() -> None:
    model = detector(5)
    with torch.no_grad():
        model.head.box[0].weight.fill_(torch.nan)
        model.blocks[4].join[0].weight.fill_(torch.inf)
    found = found_in(DetectorPredictor(model).predict(images(2, 0), SIDE), np.arange(3))
    assert [len(of.boxes) for of in found] == [0, 0]


@pytest.mark.parametrize("own_heads", [False, True])
def test_detectors_of_several_cameras_pass_what_they_share_once(own_heads: bool) -> None:
    models = [detector(8) for _ in range(3)]
    if own_heads:
        for place, model in enumerate(models):
            with torch.no_grad():
                model.head.objectness[0].weight.mul_(2 + place)
    call = MultiModelPredictor("cpu", replace(IN_TORCH, images_a_pass=16))
    predictors = [call.predictors.predictor_for(model) for model in models]
    passed: list[tuple[str, int]] = []
    heads = {id(one.model.head): one.model.head for one in predictors}
    for name, part in [("stem", predictors[0].model.blocks[0]), *(("head", head) for head in heads.values())]:
        part.register_forward_hook(lambda _part, given, _out, name=name: passed.append((name, len(given[0]))))
    shown = [images(1 + place, place) for place in range(3)]
    answers = call.predict([Request(*of, SIDE) for of in zip(predictors, shown, strict=True)])
    assert passed == [("stem", 6), *([("head", 1), ("head", 2), ("head", 3)] if own_heads else [("head", 6)])]
    for model, of, answer in zip(models, shown, answers, strict=True):
        expected = DetectorPredictor(model, way=IN_TORCH).predict(of, SIDE)
        assert answer.boxes.shape == expected.boxes.shape
        assert differs(answer, expected) < 1e-5


def test_requests_to_detectors_and_classifiers_are_answered_in_order(fresh_model: EdgeModel) -> None:
    call = MultiModelPredictor("cpu", replace(PLAIN, grouped=True))
    models = [detector(6), fresh_model, detector(7), clone(fresh_model)]
    predictors = [call.predictors.predictor_for(model) for model in models]
    for place, predictor in enumerate(predictors):
        call.add_owner(place, predictor)
    shown = [images(1 + place % 2, place, 32) for place in range(4)]
    requests = [Request(one, of, 32) for one, of in zip(predictors, shown, strict=True)]
    requests.append(Request(predictors[0], images(0, 0), 32))
    answers = call.predict(requests)
    for place in (0, 2):
        assert isinstance(predictors[place], DetectorPredictor)
        assert differs(answers[place], DetectorPredictor(models[place]).predict(shown[place], 32)) == 0.0
    for place in (1, 3):
        assert isinstance(predictors[place], Predictor)
        classes, _ = answers[place]
        np.testing.assert_array_equal(classes, Predictor(models[place]).predict(shown[place], 32)[0])
    assert len(answers[4].boxes) == 0


def test_detectors_share_equal_blocks() -> None:
    first = detector(8)
    second = clone(first)
    with torch.no_grad():
        second.head.objectness[0].weight.mul_(2)
    predictors = Predictors()
    one, other = predictors.predictor_for(first), predictors.predictor_for(second)
    assert all(a is b for a, b in zip(one.model.blocks, other.model.blocks, strict=True))
    shown = images(1, 4)
    assert differs(other.predict(shown, SIDE), DetectorPredictor(second).predict(shown, SIDE)) == 0.0
    assert differs(other.predict(shown, SIDE), one.predict(shown, SIDE)) > 0.0


def test_ways_of_classifiers_refuse_detectors() -> None:
    model = detector(9)
    with pytest.raises(ValueError, match="fastestdet detects"):
        Predictor(model)
    with pytest.raises(ValueError, match="detectors are not joined"):
        BatchedPredictor([model, model])
    with pytest.raises(ValueError, match="only classifiers share"):
        SharedTrunk.from_crops(model, 0, images(1, 0), SIDE)


def test_self_test_of_a_detector_reports_its_engine_and_the_batch_it_tried() -> None:
    found = choose_way(FASTESTDET, "cpu", (64, SIDE))
    assert found.way.engine == ONNXRUNTIME
    assert [str(tried.way) for tried in found.tried] == ["onnxruntime", "onnxruntime, 4 images a pass"]
    assert [len(tried.times) for tried in found.tried] == [1, 2]
    assert 0 < found.chosen_ms < found.plain_ms
