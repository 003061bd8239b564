import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

from ekya.core.errors import UserError
from ekya.models.edge.checkpoints import from_bytes, load_model, save_model, to_bytes
from ekya.models.edge.model import EdgeModel, adapt
from ekya.models.weights import read_safetensors


@pytest.fixture
def stored(tmp_path: Path, fresh_model: EdgeModel) -> Path:
    path = tmp_path / "cam.safetensors"
    save_model(fresh_model, path, {"made_by": "a test"})
    return path


def test_checkpoint_round_trip_is_bit_identical(stored: Path, fresh_model: EdgeModel) -> None:
    back = load_model(stored)
    assert (back.architecture, back.classes, back.head_width) == ("resnet18", fresh_model.classes, 0)
    expected = fresh_model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in back.state_dict().items())
    assert read_safetensors(stored.read_bytes())[1]["made_by"] == "a test"
    assert [path.name for path in stored.parent.iterdir()] == [stored.name]


def test_checkpoint_holds_heads_of_other_widths(fresh_model: EdgeModel) -> None:
    wide = adapt(fresh_model, fresh_model.classes, 16, seed=1)
    back = from_bytes(to_bytes(wide))
    expected = wide.state_dict()
    assert set(back.kept_heads) == {"0"}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in back.state_dict().items())


def test_checkpoint_half_precision_loads_as_32_bits(fresh_model: EdgeModel) -> None:
    half = to_bytes(fresh_model, half=True)
    assert len(half) < 0.51 * len(to_bytes(fresh_model))
    back = from_bytes(half)
    assert all(weight.dtype == torch.float32 for weight in back.parameters())
    torch.testing.assert_close(
        back.blocks[0][0].weight, fresh_model.blocks[0][0].weight, atol=1e-3, rtol=1e-3
    )


def test_checkpoint_truncated_file_is_named(stored: Path) -> None:
    for length in (0, 5, 1000, stored.stat().st_size - 1):
        stored_part = stored.with_name("part.safetensors")
        stored_part.write_bytes(stored.read_bytes()[:length])
        with pytest.raises(UserError, match=r"part\.safetensors.*again"):
            load_model(stored_part)


def test_checkpoint_foreign_file_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(save({"x": torch.zeros(1)}))
    with pytest.raises(UserError, match=r"foreign\.safetensors: not an edge model"):
        load_model(foreign)
    foreign.write_bytes(b"GIF89a and much more that is no model at all")
    with pytest.raises(UserError, match=r"foreign\.safetensors"):
        load_model(foreign)


def test_checkpoint_wrong_shape_is_named(fresh_model: EdgeModel) -> None:
    state = load(to_bytes(fresh_model))
    state["head.weight"] = torch.zeros(3, 99)
    metadata = {
        "format": "ekya-edge-model",
        "version": "1",
        "architecture": "resnet18",
        "classes": '["person", "car", "truck"]',
        "head_width": "0",
    }
    with pytest.raises(UserError, match=r"head\.weight.*\(3, 99\)"):
        from_bytes(save(state, metadata))
    with pytest.raises(UserError, match="resnet99"):
        from_bytes(save(state, {**metadata, "architecture": "resnet99"}))
    with pytest.raises(UserError, match="head_width"):
        from_bytes(save(state, {**metadata, "head_width": "wide"}))


def test_checkpoint_missing_file_or_folder_is_named(tmp_path: Path, fresh_model: EdgeModel) -> None:
    with pytest.raises(UserError, match=r"gone\.safetensors: cannot read"):
        load_model(tmp_path / "gone.safetensors")
    with pytest.raises(UserError, match=r"x\.safetensors: the folder does not exist"):
        save_model(fresh_model, tmp_path / "nowhere" / "x.safetensors")


def test_checkpoint_full_disk_keeps_the_old_file(
    stored: Path, fresh_model: EdgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stored.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="disk is full"):
        save_model(fresh_model, stored)
    assert stored.read_bytes() == before
    assert [path.name for path in stored.parent.iterdir()] == [stored.name]
