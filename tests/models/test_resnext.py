import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ekya.core.errors import UserError
from ekya.models.golden.resnext import ARCHITECTURE, build_resnext29, load_resnext29

CLASSES = ("car", "bus", "person")


def _write(path: Path, classes: int = 3, metadata: dict[str, str] | None = None) -> torch.nn.Module:
    torch.manual_seed(1)
    model = build_resnext29(classes)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    told = {"architecture": ARCHITECTURE, "classes": json.dumps(CLASSES), "seed": "1"}
    save_file(tensors, path, metadata=told if metadata is None else metadata)
    return model.eval()


def test_resnext29_has_expected_shape_and_size() -> None:
    model = build_resnext29(6).eval()
    with torch.inference_mode():
        assert model(torch.rand(5, 3, 32, 32)).shape == (5, 6)
    assert 4 * sum(parameter.numel() for parameter in model.parameters()) < 12e6


def test_resnext29_round_trip_is_identical(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    written, (read, _) = _write(path), load_resnext29(path, CLASSES)
    crops = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(written(crops), read(crops))
    assert not read.training


def test_resnext29_missing_or_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    with pytest.raises(UserError, match=r"golden\.safetensors.*ekya golden train"):
        load_resnext29(path, CLASSES)
    _write(path)
    for length in (0, 5, 100, path.stat().st_size - 1):
        cut = tmp_path / f"cut-{length}.safetensors"
        cut.write_bytes(path.read_bytes()[:length])
        with pytest.raises(UserError, match=rf"cut-{length}\.safetensors.*ekya golden train"):
            load_resnext29(cut, CLASSES)


def test_resnext29_other_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    _write(path)
    for classes in (("bus", "car", "person"), ("car", "bus")):
        with pytest.raises(UserError, match=r"golden\.safetensors.*change classes"):
            load_resnext29(path, classes)


def test_resnext29_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "golden.safetensors"
    _write(path, classes=4)
    with pytest.raises(UserError, match=r"'head\..*shape"):
        load_resnext29(path, CLASSES)
    save_file({"x": torch.zeros(1)}, path, {"architecture": ARCHITECTURE, "classes": json.dumps(CLASSES)})
    with pytest.raises(UserError, match="shape none"):
        load_resnext29(path, CLASSES)
    for metadata in ({}, {"architecture": "resnet18"}):
        _write(path, metadata=metadata)
        with pytest.raises(UserError, match="instead of 'resnext29'"):
            load_resnext29(path, CLASSES)
    _write(path, metadata={"architecture": ARCHITECTURE, "classes": "[car"})
    with pytest.raises(UserError, match="change classes"):
        load_resnext29(path, CLASSES)
