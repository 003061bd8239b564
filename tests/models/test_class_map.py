from pathlib import Path

import pytest

from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.models.golden.class_map import class_of_each, coco_names
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.spec import GoldenSpec

NAMES = ("person", "car", "bus", "kite")


def mapped(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "map.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_class_map_maps_members_and_equal_names(tmp_path: Path) -> None:
    file = mapped(tmp_path, "vehicle: [car, bus]\nanimal: [kite]\n")
    assert class_of_each(("vehicle", "person"), NAMES, file, "it").tolist() == [1, 0, 0, -1]
    assert class_of_each(("bus", "person"), NAMES, None, "it").tolist() == [1, -1, 0, -1]


@pytest.mark.parametrize(
    ("text", "classes", "words"),
    [
        ("vehicle: [car]", ("tram",), r"knows no 'tram'.*golden\.class_map"),
        ("vehicle: []", ("vehicle",), "knows no 'vehicle'"),
        ("vehicle: car", ("vehicle",), "knows no 'vehicle'"),
        ("vehicle: [car, tram]", ("vehicle",), "'tram' is no class of it"),
        ("vehicle: [car, bus]", ("bus", "vehicle"), "'bus' counts for 'bus' already"),
        ("- car", ("car",), "no keys at its top"),
        ("a: [", ("car",), "YAML"),
    ],
)
def test_class_map_mistake_names_file_key_and_remedy(
    text: str, classes: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"map\.yaml.*{words}"):
        class_of_each(classes, NAMES, mapped(tmp_path, text), "it")
    with pytest.raises(UserError, match="'tram'"):
        class_of_each(("tram",), NAMES, None, "it")


def test_class_map_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.yaml"):
        class_of_each(("car",), NAMES, tmp_path / "gone.yaml", "it")


def test_class_map_shipped_for_coco_fits_coco() -> None:
    file, names = shipped_path("golden_models/coco_to_fleet.yaml"), coco_names()
    for name in ("pedestrian", "vehicle", "cyclist", "sign", "two-wheeler", "animal", "bag", "person"):
        assert (class_of_each((name,), names, file, "COCO") == 0).any()
    paper = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
    assert sorted(class_of_each(paper, names, file, "COCO").tolist())[-6:] == [0, 1, 2, 3, 4, 5]


def test_class_map_of_user_regroups_classes_of_shipped_model(tmp_path: Path) -> None:
    file = mapped(tmp_path, "vehicle: [car, truck, bus]\ntwo-wheeler: [bicycle, motorcycle]\n")
    golden = open_golden(GoldenSpec(class_map=file), ("vehicle", "person", "two-wheeler"))
    assert golden.classes == ("vehicle", "person", "two-wheeler")
    with pytest.raises(UserError, match=r"map\.yaml.*'tram'"):
        open_golden(GoldenSpec(class_map=file), ("vehicle", "tram"))


def test_class_map_of_user_applies_to_a_detector(data_dir: Path, tmp_path: Path) -> None:
    spec = GoldenSpec(model="onnx", weights=data_dir / "weights" / "FastestDet.onnx")
    assert open_golden(spec, ("vehicle", "pedestrian", "background")).background == 2
    own = spec.model_copy(update={"class_map": mapped(tmp_path, "tram: [train]\n")})
    assert open_golden(own, ("tram", "car", "background")).background == 2
    with pytest.raises(UserError, match=r"map\.yaml.*'vehicle'"):
        open_golden(own, ("vehicle", "background"))
