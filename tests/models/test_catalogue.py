"""The catalogue: entries that fit each other and torchvision's, and a cache that is filled from a folder."""

import shutil

import pytest
from torchvision.models import get_model_weights

from ekya.core.errors import UserError
from ekya.models.catalogue import (
    CATALOGUE,
    DEFAULT_GOLDEN,
    GOLDEN,
    STUDENT,
    Role,
    fetch_model,
    find_in_folder,
    find_model,
    import_model,
    licence_of,
)
from ekya.models.edge.architecture_table import CUTS
from ekya.models.golden.checksum import sha256_of, verified
from ekya.models.golden.spec import CLASSIFIERS, DETECTORS


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_names_differ_and_every_entry_is_pinned():
    assert len({model.name for model in CATALOGUE}) == len(CATALOGUE)
    for model in CATALOGUE:
        assert model.file.sha256 or model.file.git_blob
        assert model.file.url.startswith("https://")
        assert model.licence
        assert find_model(model.name) is model
    assert find_model("none") is None
    assert [model.average_precision for model in GOLDEN] == sorted(
        (model.average_precision for model in GOLDEN), reverse=True
    )


def test_models_of_torchvision_are_those_that_it_names():
    for name in [*CLASSIFIERS, *DETECTORS, *CUTS]:
        model = find_model(name)
        if model is None or model.role is Role.STUDENT:
            continue
        assert model.file.url == get_model_weights(name).DEFAULT.url
        assert model.file.url.removesuffix(".pth").endswith(model.file.sha256)
    assert sum("pytorch" in model.file.url for model in CATALOGUE) == 11


def test_a_folder_fills_the_cache_by_content(tmp_path, data_dir):
    stick = tmp_path / "stick"
    stick.mkdir()
    shutil.copyfile(data_dir / "weights" / "deimv2_hgnetv2_femto_coco.onnx", stick / "some name")
    (stick / "other.onnx").write_bytes(b"other")
    assert find_in_folder(STUDENT, stick) is None
    with pytest.raises(UserError, match=r"--from .*: no file there is fastestdet .*31cb14c0"):
        import_model(STUDENT, stick)
    path = import_model(DEFAULT_GOLDEN, stick)
    assert sha256_of(path) == DEFAULT_GOLDEN.file.sha256
    assert licence_of(path) == "Apache-2.0"
    assert verified(path) == path
    assert fetch_model(DEFAULT_GOLDEN, offline=True) == path


def test_a_damaged_file_of_the_cache_is_not_taken(data_dir):
    path = import_model(DEFAULT_GOLDEN, data_dir / "weights")
    path.write_bytes(b"damaged")
    with pytest.raises(UserError, match="is not in the cache"):
        fetch_model(DEFAULT_GOLDEN, offline=True)


def test_what_is_not_there_is_refused_with_everything_that_helps():
    with pytest.raises(UserError) as refused:
        fetch_model(STUDENT, offline=True)
    for needed in (STUDENT.file.url, STUDENT.file.sha256, str(STUDENT.cached_path), "--from FOLDER"):
        assert needed in str(refused.value)
    assert not STUDENT.is_cached


def test_weights_without_a_card_have_no_known_licence(tmp_path):
    assert licence_of(tmp_path / "own.onnx") is None


def test_a_card_of_another_content_is_written_anew(data_dir):
    path = import_model(DEFAULT_GOLDEN, data_dir / "weights")
    path.with_suffix(".md").write_text(f"- sha256: {'0' * 64}\n")
    assert fetch_model(DEFAULT_GOLDEN, offline=True) == path
    assert verified(path) == path
