"""Fleets of detectors: their classes, the model that they start with, and its teacher."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import FASTESTDET
from ekya.models.edge.checkpoints import save_model
from ekya.models.edge.model import build_edge_model
from ekya.models.golden.detections import Detections
from ekya.models.golden.label_file import LabelHead, LabelTable
from ekya.models.proposer import NoProposals
from ekya.pipeline.base_model import base_model, teacher_warnings
from ekya.pipeline.discover_classes import with_classes
from ekya.pipeline.setup import proposer_for, stream_setup
from ekya.streams.ingest.frame import Frame

KNOWN = ("person", "car", "kite")
CAMERA = StreamId("cam-1")
GOLDEN = ("FastestDet", "deimv2_hgnetv2_femto_coco")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a small detector of Ekya's."""
    path = tmp_path_factory.mktemp("own") / "student.safetensors"
    save_model(build_edge_model(KNOWN, 0, 5, FASTESTDET), path)
    return path


def fleet_of(
    folder: Path, weights: Path | None, golden: dict[str, object] | None = None, **changes: object
) -> FleetConfig:
    """Returns a fleet of detectors on one video."""
    video = folder / "a.mp4"
    video.touch()
    raw = {
        "golden": golden or {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"},
        "edge": {"task": "detect", "weights": weights},
        "streams": [{"id": CAMERA, "source": {"kind": "video", "files": [video]}}],
    }
    return parse_fleet(raw | changes, "fleet.yaml", (folder,))


def label_file(folder: Path, finds: bool, *classes: int) -> dict[str, object]:
    """Writes labels of one frame; returns the golden model that reads them."""
    boxes = np.tile(np.array([[1, 1, 9, 9]], np.float32), (len(classes), 1))
    scores = np.linspace(0.39, 0.5, len(classes)).astype(np.float32)
    head = LabelHead(names=("person", "truck", "kite"), finds=finds)
    table = LabelTable(head)
    table.frames[CAMERA] = {0: Detections(boxes, np.array(classes, np.int64), scores)}
    table.finish_stream(CAMERA, 1)
    table.save_table(folder / "labels.parquet")
    return {"model": "file", "weights": folder / "labels.parquet"}


def test_base_model_of_a_detect_fleet_is_its_detector(tmp_path, own):
    model = base_model(fleet_of(tmp_path, own, classes=["car", "person"]), seed=0)
    assert (model.architecture, model.classes) == (FASTESTDET, KNOWN)


def test_base_model_without_weights_is_the_shipped_detector(tmp_path):
    model = base_model(fleet_of(tmp_path, None, classes=["car"]), seed=0)
    assert (model.architecture, "car" in model.classes) == (FASTESTDET, True)


def test_base_model_that_lacks_a_class_is_refused(tmp_path, own):
    with pytest.raises(UserError, match=r"student\.safetensors: this detector does not find 'bus'"):
        base_model(fleet_of(tmp_path, own, classes=["bus"]), seed=0)


def test_base_model_of_another_file_than_its_card_is_refused(tmp_path, own):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(own.read_bytes())
    copy.with_suffix(".md").write_text(f"sha256: {'0' * 64}\n")
    with pytest.raises(UserError, match=r"its sha256 is .* and copy\.md says"):
        base_model(fleet_of(tmp_path, copy, classes=["car"]), seed=0)


def test_base_model_of_published_weights_maps_classes(tmp_path, data_dir):
    weights = data_dir / "weights" / "FastestDet_coco.safetensors"
    own_map = tmp_path / "map.yaml"
    own_map.write_text("person: [human]\n")
    golden = {"model": "onnx", "weights": data_dir / "weights" / "FastestDet.onnx", "class_map": own_map}
    for mapped in ({}, {"golden": golden}):
        model = base_model(fleet_of(tmp_path, weights, classes=["vehicle", "person"], **mapped), seed=0)
        assert [model.classes.index(name) for name in ("person", "vehicle")] == [0, 2]
        assert model.classes.count("vehicle") == 4


def test_classes_of_a_detect_fleet_have_no_background(tmp_path, own):
    fleet = fleet_of(tmp_path, own, classes=["person"])
    assert with_classes(fleet).classes == ("person",)
    golden = label_file(tmp_path, True, 0, 0)
    assert with_classes(fleet_of(tmp_path, own, golden, classes=["person"])).classes == ("person",)


def test_classes_that_occur_are_those_that_the_detector_knows(tmp_path, own, caplog):
    """The kite is found at 0.5, the truck at 0.445, the person at 0.39."""
    fleet = fleet_of(tmp_path, own, label_file(tmp_path, True, 0, 1, 2))
    assert with_classes(fleet).classes == ("kite",)
    assert "truck occur, but the detector of 'edge.weights' does not know them" in caplog.text


def test_classes_unknown_to_the_detector_are_refused(tmp_path, own):
    fleet = fleet_of(tmp_path, own, label_file(tmp_path, True, 1, 1))
    with pytest.raises(UserError, match=r"^key 'classes': of what the golden model finds \(truck\)"):
        with_classes(fleet)


def test_labels_of_given_boxes_teach_no_detector(tmp_path, own):
    fleet = fleet_of(tmp_path, own, label_file(tmp_path, False, 0, 1))
    with pytest.raises(UserError, match=r"labels\.parquet: its objects were given and only named"):
        with_classes(fleet)


def test_proposer_of_a_detect_fleet_finds_nothing_for_free(tmp_path, own):
    fleet = fleet_of(tmp_path, own, label_file(tmp_path, True, 0))
    proposer = proposer_for(fleet, fleet.stream(CAMERA))
    assert isinstance(proposer, NoProposals)
    boxes = np.array([[0, 0, 5, 5]], np.float32)
    found = proposer.propose_boxes(Frame(0, 0, np.zeros((8, 8, 3), np.uint8), boxes))
    assert found.boxes.shape == (0, 4)
    assert (proposer.free, proposer.operations((8, 8, 3)), found.count_operations()) == (True, 0, 0)


def test_settings_of_a_detect_fleet_hold_its_task(tmp_path, own):
    golden = {"model": "fasterrcnn_mobilenet_v3_large_320_fpn", "frames_per_window": 12}
    settings = stream_setup(fleet_of(tmp_path, own, golden, classes=["car"]), 0, 25.0, 0).settings
    assert (settings.task, settings.side, settings.frames_per_window) == ("detect", 352, 12)


def test_the_shipped_base_is_warned_of(tmp_path):
    golden = {"model": "fasterrcnn_mobilenet_v3_large_320_fpn"}
    (warning,) = teacher_warnings(fleet_of(tmp_path, None, golden))
    assert "knows rendered frames only" in warning
    assert "--student" in warning


@pytest.mark.parametrize("student", ["FastestDet.onnx", "FastestDet_coco.safetensors"])
def test_a_golden_model_that_is_the_student_is_doubted(tmp_path, data_dir, student):
    weights = data_dir / "weights"
    own, other = ({"model": "onnx", "weights": weights / f"{name}.onnx"} for name in GOLDEN)
    warnings = list(teacher_warnings(fleet_of(tmp_path, weights / student, own)))
    assert len(warnings) == 1
    assert "FastestDet.onnx is the network that edge.weights starts with" in warnings[0]
    assert not list(teacher_warnings(fleet_of(tmp_path, weights / student, other)))


def test_a_golden_model_of_the_same_shape_is_not_doubted(tmp_path, data_dir):
    trained = load_file(data_dir / "weights" / "FastestDet_coco.safetensors")
    name = next(name for name, tensor in trained.items() if tensor.ndim == 4)
    trained[name] = trained[name] * 1.1
    save_file(trained, tmp_path / "adapted.safetensors")
    golden = {"model": "onnx", "weights": data_dir / "weights" / "FastestDet.onnx"}
    assert not list(teacher_warnings(fleet_of(tmp_path, tmp_path / "adapted.safetensors", golden)))
