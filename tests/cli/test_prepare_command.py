import json
from dataclasses import replace

import pytest
import yaml

from ekya import cli
from ekya.config.fleet_reading import load_fleet
from ekya.streams.datasets.cityscapes import CITYSCAPES, PAPER_CLASSES
from ekya.streams.sources import DATASETS


def prepare(*more):
    return cli.main(["prepare", "cityscapes", "--root", "data", *more])


def test_prepare_writes_a_fleet_file_that_opens_from_its_index(place, capfd):
    assert prepare("--json", "-") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["streams"]["aachen"]["frames"] == 3
    assert report["streams"]["aachen"]["problems"] == report["missing"] == []
    fleet = load_fleet(place / "cityscapes.yaml")
    assert fleet.classes == PAPER_CLASSES
    assert [stream.id for stream in fleet.streams] == ["aachen", "ulm"]
    source = fleet.streams[0].source
    assert source.index == place / "cityscapes.index" / "aachen.jsonl"
    (place / "data" / "gtFine").rename(place / "data" / "elsewhere")
    assert len(list(source.open(PAPER_CLASSES).frames())) == 3, "labels are in the index"
    text = (place / "cityscapes.yaml").read_text()
    assert "# Cityscapes, fine annotations. Streams: 2, frames: 5, missing or damaged: 0." in text


def test_prepare_with_options_writes_them_to_the_fleet_file(place):
    assert prepare("--out", "two.yaml", "--streams", "ulm", "--classes", "car,bus", "--window", "40") == 0
    raw = yaml.safe_load((place / "two.yaml").read_text())
    assert (raw["name"], raw["classes"], raw["window_s"]) == ("two", ["car", "bus"], 40.0)
    assert [stream["id"] for stream in raw["streams"]] == ["ulm"]
    assert (place / "two.index" / "ulm.jsonl").is_file()


def test_prepare_with_damage_reports_it_and_exits_with_1(place, capfd):
    next((place / "data/gtFine/train/ulm").iterdir()).unlink()
    (place / "data/gtFine/val").rmdir()
    assert prepare() == 1
    said = capfd.readouterr().out
    assert "ulm: 1 frames in 3.6 s, 1 missing or damaged" in said
    assert f"missing: {place}/data/gtFine/val: there are no labels of this split" in said
    assert "It is had from the Cityscapes site" in said
    assert f"left out: {place}/data/gtFine/train/ulm/ulm_000" in said
    assert load_fleet(place / "cityscapes.yaml").streams


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cityscape", "--root", "data"], "cityscape: there is no such data set; use one of cityscapes, "),
        (["cityscapes", "--root", "nowhere"], "nowhere: there is no such folder"),
        (["cityscapes", "--root", "empty"], "it is had from the Cityscapes site, cityscapes-dataset.com"),
        (["cityscapes", "--root", "empty"], "non-commercial use"),
        (["cityscapes", "--root", "data", "--streams", "bonn"], "no such stream; choose from: aachen, ulm"),
        (["cityscapes", "--root", "data", "--out", "no/fleet.yaml"], "no; make it, or name another file"),
        (["cityscapes", "--root", "data", "--classes", "car,car"], "a value stands there twice"),
    ],
)
def test_prepare_with_invalid_options_prints_one_line(place, capfd, arguments, says):
    (place / "empty").mkdir()
    assert cli.main(["prepare", *arguments]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("ekya: ")
    assert says in line
    assert not (place / "cityscapes.yaml").exists()


def test_prepare_replaces_a_result_with_overwrite_only(place, capfd):
    assert prepare() == 0
    before = (place / "cityscapes.yaml").read_text()
    assert prepare("--window", "60") == 2
    assert "cityscapes.yaml: is there already; add --overwrite" in capfd.readouterr().err
    assert (place / "cityscapes.yaml").read_text() == before
    assert prepare("--window", "60", "--overwrite") == 0
    assert load_fleet(place / "cityscapes.yaml").window_s == 60


def test_prepare_with_resume_continues_after_the_last_stream(place, capfd, caplog, monkeypatch):
    examined = []

    def interrupted(root, stream, *more):
        if stream == "ulm" and not examined.count("ulm"):
            examined.append("ulm")
            raise KeyboardInterrupt
        examined.append(stream)
        return CITYSCAPES.examine(root, stream, *more)

    monkeypatch.setitem(DATASETS, "cityscapes", replace(CITYSCAPES, examine=interrupted))
    assert prepare() == 130
    assert "--resume goes on" in caplog.text
    assert not (place / "cityscapes.yaml").exists()
    assert prepare() == 2
    assert "go on with it by --resume" in capfd.readouterr().err
    assert prepare("--resume", "--classes", "car") == 2
    assert "of another root, data set or classes" in capfd.readouterr().err
    assert prepare("--resume") == 0
    assert examined == ["aachen", "ulm", "ulm"]
    assert not (place / "cityscapes.index.partial").exists()
    assert [stream.id for stream in load_fleet(place / "cityscapes.yaml").streams] == ["aachen", "ulm"]


def test_prepare_without_a_usable_frame_writes_no_fleet_file(place, capfd):
    for picture in (place / "data/leftImg8bit").rglob("*.png"):
        picture.write_bytes(b"")
    assert prepare() == 2
    assert "no frame can be used, the first since" in capfd.readouterr().err
    assert not (place / "cityscapes.yaml").exists()
