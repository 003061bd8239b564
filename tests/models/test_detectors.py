import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from onnx_networks import write
from safetensors.torch import save_file
from torchvision.models import get_model, get_model_weights

from ekya.core.errors import UserError
from ekya.models.golden.class_map import COCO_CATEGORIES, coco_names
from ekya.models.golden.golden_model import open_detector
from ekya.models.golden.onnx_detector import in_range, stretched
from ekya.models.golden.spec import DETECTORS
from ekya.models.golden.torchvision_models import load_weights
from ekya.models.weights import read_state

SSDLITE = "ssdlite320_mobilenet_v3_large"


def test_coco_names_are_80_without_gaps() -> None:
    names = coco_names()
    assert len(names) == len(set(names)) == 80
    assert names[:4] == ("person", "bicycle", "car", "motorcycle")


def test_fastestdet_decode_follows_the_formula(tmp_path: Path) -> None:
    grid = np.zeros((85, 22, 22), dtype=np.float32)
    grid[3:5] = -2.0
    row, column = 5, 17
    grid[0, row, column] = 0.9
    grid[5 + 7, row, column] = 0.8
    grid[1:5, row, column] = [0.3, -0.2, -1.0, -1.5]
    path = write(tmp_path / "grid.onnx", grid[None], taken=(1, 3, 352, 352), names=None)
    image = np.zeros((360, 640, 3), np.uint8)
    found = open_detector("fastestdet", path, 0.6).detect_objects(image)
    assert found.classes.tolist() == [7]
    assert found.scores[0] == pytest.approx(0.9**0.6 * 0.8**0.4)
    centre = np.array([(column + np.tanh(0.3)) / 22 * 640, (row + np.tanh(-0.2)) / 22 * 360])
    half = np.array([640, 360]) / (1 + np.exp([1.0, 1.5])) / 2
    np.testing.assert_allclose(found.boxes[0], [*(centre - half), *(centre + half)], rtol=1e-5)
    assert open_detector("fastestdet", path, 0.9).detect_objects(image).boxes.shape == (0, 4)


def test_fastestdet_picture_is_bgr_and_out_of_proportion() -> None:
    image = np.zeros((50, 100, 3), np.uint8)
    image[:, :, 0] = 255  # blue
    picture, scale, border = stretched(image, 32, 64)
    picture = in_range(picture, {"range": "0..1", "colours": "bgr"})
    assert picture.shape == (3, 32, 64)
    assert [plane.max() for plane in picture] == [1.0, 0.0, 0.0]
    assert (scale, border) == ((0.64, 0.64), (0.0, 0.0))
    assert stretched(image, 32, 32)[1] == (0.32, 0.64)


@pytest.mark.parametrize("content", [None, b"", b"no network" * 50])
def test_detector_broken_onnx_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "net.onnx"
    if content is not None:
        path.write_bytes(content)
    for name in ("fastestdet", "onnx"):
        with pytest.raises(UserError, match=r"net\.onnx.*'weights'"):
            open_detector(name, path)


def test_open_detector_without_file_or_name_says_the_remedy() -> None:
    with pytest.raises(UserError, match="'weights'"):
        open_detector("fastestdet", None)
    with pytest.raises(UserError, match=r"'yolo'.*fastestdet"):
        open_detector("yolo", None)


def test_fastestdet_real_network_finds_cars(data_dir: Path) -> None:
    detector = open_detector("fastestdet", data_dir / "weights" / "FastestDet.onnx")
    assert detector.names == coco_names(), "motorbike and motorcycle are one class"
    capture = cv2.VideoCapture(str(data_dir / "videos" / "bgslib_video03_highway.avi"))
    for _ in range(200):
        capture.grab()
    _, image = capture.read()
    found = detector.detect_objects(image)
    assert {detector.names[c] for c in found.classes} == {"car"}
    assert 2 <= len(found.boxes) <= 5
    assert (found.scores > 0.6).all()
    assert (np.diff(found.scores) <= 0).all()
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, 2:] <= [image.shape[1], image.shape[0]]).all()
    assert 1e8 < detector.operations_per_frame(image.shape) < 1e9


def test_fastestdet_truncated_file_is_named(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    whole = (data_dir / "weights" / "FastestDet.onnx").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"half\.onnx.*'weights'"):
        open_detector("fastestdet", path)


def test_fastestdet_other_class_list_is_refused(data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes((data_dir / "weights" / "FastestDet.onnx").read_bytes())
    (tmp_path / "coco.names").write_text("cat\ndog\n")
    with pytest.raises(UserError, match=r"net\.onnx.*known for 2 classes"):
        open_detector("fastestdet", path)


@pytest.fixture(scope="module")
def ssdlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = get_model(SSDLITE, weights=None, weights_backbone=None)
    path = tmp_path_factory.mktemp("weights") / "ssdlite.safetensors"
    save_file(model.state_dict(), path)
    return path


def test_torchvision_detector_runs_from_a_local_file(ssdlite: Path) -> None:
    # An untrained detector is unsure of everything, so all scores are accepted.
    detector = open_detector(SSDLITE, ssdlite, min_score=0.0)
    image = np.random.default_rng(0).integers(0, 255, (120, 160, 3), dtype=np.uint8)
    found = detector.detect_objects(image)
    assert detector.names == coco_names()
    assert len(found.boxes) == len(found.classes) == len(found.scores) > 0
    assert found.boxes.dtype == np.float32
    assert ((found.classes >= 0) & (found.classes < 80)).all(), "places that are no class are left out"
    assert (np.diff(found.scores) <= 0).all()
    assert len(DETECTORS) == 6
    assert detector.operations_per_frame(image.shape) > 1e8


def test_torchvision_weights_that_do_not_fit_are_named(ssdlite: Path, tmp_path: Path) -> None:
    model = get_model(SSDLITE, weights=None, weights_backbone=None)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    key = next(iter(state))
    wrong, half, pickled, foreign = (
        tmp_path / name for name in ("wrong.safetensors", "half.safetensors", "half.pt", "foreign.pt")
    )
    save_file({**state, key: torch.zeros(1, 2, 3)}, wrong)
    half.write_bytes(ssdlite.read_bytes()[:100_000])
    torch.save(state, pickled)
    load_weights(model, SSDLITE, pickled)
    pickled.write_bytes(pickled.read_bytes()[:100_000])
    torch.save({"epoch": 3}, foreign)
    for path, words in (
        (wrong, f"{key}.*\\(1, 2, 3\\)"),
        (half, "truncated"),
        (pickled, "truncated"),
        (foreign, "state_dict"),
        (tmp_path / "none.pt", "no such file"),
    ):
        with pytest.raises(UserError, match=f"{path.name}.*({words})"):
            load_weights(model, SSDLITE, path)


class Bomb:
    """Pickle that executes code when it is loaded unsafely."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_read_state_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("bomb.pt", "bomb.pth", "bomb.bin"):
        path = tmp_path / name
        torch.save({"weight": torch.zeros(1), "extra": Bomb(mark)}, path)
        with pytest.raises(UserError, match=f"{name}.*'weights'.*safetensors"):
            read_state(path)
        path.write_bytes(pickle.dumps(Bomb(mark), protocol=2))
        with pytest.raises(UserError, match=f"{name}.*'weights'"):
            read_state(path)
    assert not mark.exists()
    pickle.loads((tmp_path / "bomb.pt").read_bytes())
    assert mark.exists(), "it was a real one"


def test_torchvision_weights_without_network_name_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise UserError("no route")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("ekya.models.catalogue.download_file", unreachable)
    with pytest.raises(
        UserError, match=r"ssdlite.*cannot be fetched \(no route\).*SHA-256 a79551df\.\.\.\).*--from"
    ):
        open_detector(SSDLITE, None)


@pytest.mark.parametrize("name", [name for name in DETECTORS if name not in ("fastestdet", "onnx")])
def test_coco_categories_are_in_torchvisions_order(name: str) -> None:
    assert tuple(get_model_weights(name).DEFAULT.meta["categories"]) == COCO_CATEGORIES
    assert len(coco_names()) == 80
