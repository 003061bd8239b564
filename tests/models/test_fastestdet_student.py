"""FastestDet as an edge model: published weights, decoding, loss and training."""

from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import pytest
import torch
from drawn_scenes import FLEET, scenes

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.detection.detector import Targets
from ekya.models.edge.detection.read_objects import BoxCandidates, fleet_outputs, found_in
from ekya.models.edge.detection.weights import open_detector_weights
from ekya.models.edge.model import EdgeModel, build_edge_model, to_input
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.frames import split_by_time
from ekya.models.training.trainer import Retraining, RetrainingData

GAMMA = RetrainConfig(epochs=12, batch_size=4, head_width=0, trainable_blocks=1, data_fraction=1.0)


@pytest.fixture(scope="module")
def model() -> EdgeModel:
    return build_edge_model(("person", "kite", "car"), 0, 3, FASTESTDET)


def test_published_weights_answer_as_the_onnx_file(data_dir: Path) -> None:
    weights = data_dir / "weights"
    capture = cv2.VideoCapture(str(data_dir / "videos/degirum_Traffic.mp4"))
    _, frame = capture.read()
    given = cv2.dnn.blobFromImage(frame, 1 / 255, (352, 352))
    (theirs,) = onnxruntime.InferenceSession(weights / "FastestDet.onnx").run(None, {"input.1": given})
    image = to_input(cv2.resize(frame, (352, 352))[None, :, :, ::-1], "cpu")
    for name in ("FastestDet_coco.safetensors", "FastestDet.onnx"):
        loaded = open_detector_weights(weights / name, FASTESTDET, ("car", "bus"))
        with torch.inference_mode():
            raw = loaded(image)
        ours = torch.cat([raw[:, :1].sigmoid(), raw[:, 1:5], raw[:, 5:].softmax(dim=1)], dim=1)
        assert np.abs(ours.numpy() - theirs).max() < 1e-4, name
        assert loaded.classes[:3] == ("person", "bicycle", "car")


def test_outputs_of_mapped_classes_have_the_fleets_names(data_dir: Path, tmp_path: Path) -> None:
    class_map = tmp_path / "map.yaml"
    class_map.write_text("vehicle: [car, bus]\nbird: [kite]\n")
    weights = data_dir / "weights/FastestDet_coco.safetensors"
    classes = open_detector_weights(weights, FASTESTDET, ("vehicle", "bird"), class_map).classes
    assert (classes[2], classes[5], classes[14], classes[33]) == ("vehicle", "vehicle", "other bird", "bird")
    assert fleet_outputs(classes, ("vehicle", "bird"))[[2, 5, 14, 33, 0]].tolist() == [0, 0, -1, 1, -1]


@pytest.mark.parametrize(
    ("name", "classes", "says"),
    [
        ("deimv2_hgnetv2_femto_coco.onnx", ("car",), "49 convolutions instead of 70"),
        ("FastestDet.onnx", ("forklift",), "knows no 'forklift'"),
        ("coco.names", ("car",), "cannot be read as weights"),
        ("none.onnx", ("car",), "no such file"),
        ("none.safetensors", ("car",), "No such file"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    data_dir: Path, name: str, classes: tuple[str, ...], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        open_detector_weights(data_dir / "weights" / name, FASTESTDET, classes)


def test_decoded_boxes_follow_cell_offset_and_size(model: EdgeModel) -> None:
    outputs = torch.full((1, 8, 4, 4), -20.0)
    outputs[0, :, 2, 1] = torch.tensor([20.0, 0.0, np.arctanh(0.5), 0.0, 0.0, -20.0, -20.0, 20.0])
    (found,) = found_in(
        BoxCandidates.of(model.detector.decode_outputs(outputs)), fleet_outputs(model.classes, FLEET)
    )
    assert found.classes.tolist() == [0], "the third output is a car, the first class of the fleet"
    assert found.confidence[0] == pytest.approx(1.0)
    assert found.boxes[0] == pytest.approx([0.0, 0.375, 0.5, 0.875], abs=1e-6)


def test_loss_has_no_gradient_for_doubtful_regions(model: EdgeModel) -> None:
    outputs = torch.zeros(1, 8, 4, 4, requires_grad=True)
    nowhere = Targets(*(torch.zeros(0, *more) for more in ((), (4,), (3,), (), (4,))))
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    free = Targets(
        nowhere.image.long(), nowhere.boxes, nowhere.outputs.bool(), nowhere.image.long(), nowhere.boxes
    )
    model.detector.loss(outputs, free).backward()
    assert (outputs.grad[0, 0] > 0).all(), "every cell of an empty frame learns to find nothing"
    outputs.grad = None
    doubtful = Targets(free.image, free.boxes, free.outputs, torch.zeros(1, dtype=torch.int64), whole)
    boxes = model.detector.decode_outputs(outputs).boxes.reshape(4, 4, 4)
    model.detector.loss(outputs, doubtful).backward()
    area = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
    assert (outputs.grad[0, 0] > 0).all() == bool((area < 0.5).any())


def test_training_lowers_the_loss_and_raises_accuracy(data_dir: Path) -> None:
    base = open_detector_weights(data_dir / "weights/FastestDet.onnx", FASTESTDET, FLEET)
    training, validation = split_by_time(scenes(30, 1), 0.2)
    run = Retraining(base, GAMMA, RetrainingData(training, validation, base.classes, seed=1))
    before = run.prepare_training()
    epochs = [run.run_epoch() for _ in range(GAMMA.epochs)]
    assert epochs[-1].training_loss < epochs[0].training_loss / 2
    assert before < 0.2
    assert epochs[-1].validation_accuracy > 0.7
    assert run.model().classes == base.classes
    told = run.answered()
    hits, objects, found = (
        int(rows.sum()) for rows in (told.labels == told.answers, told.labels >= 0, told.answers >= 0)
    )
    f1 = 2 * hits / (objects + found)
    assert f1 == pytest.approx(epochs[-1].validation_accuracy, abs=0.02), "the same answers, object by object"


def test_training_of_heads_leaves_all_blocks_unchanged(model: EdgeModel) -> None:
    config = RetrainConfig(1, 4, 0, 0, 1.0)
    frames = scenes(6, 2)
    run = Retraining(model, config, RetrainingData(frames, frames.select_rows(np.arange(0)), model.classes))
    run.prepare_training()
    run.run_epoch()
    before, after = model.state_dict(), run.model().state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head"}


def test_exemplars_are_frames_of_every_class_and_never_twice(model: EdgeModel) -> None:
    memory = ExemplarMemory(6).update_exemplars(scenes(12, 3))
    kept = memory.exemplars()
    assert len(kept) == len(set(kept.t_us.tolist())) <= 6
    assert {index for of in kept.objects for index in of.classes.tolist()} == {0, 1}
