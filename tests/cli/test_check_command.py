"""`ekya check`: every problem of a fleet file at once. `ekya schema`: what editors check and explain.

`ekya doctor`: what is wrong with the machine.
"""

import json
import os

import cv2
import jsonschema
import pytest
import yaml
from commands import gpu
from draw_samples import draw_video

from ekya import cli
from ekya.cli import main
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.fleet_reading import load_fleet
from ekya.config.shipped import shipped_path
from ekya.config.sizing import resolutions_to_measure
from ekya.gpu.mps.service import MpsFound
from ekya.gpu.nvml import GpuInventory
from ekya.models.edge.forward import ForwardWay, SelfTest
from ekya.pipeline.kept_measurements import SELF_TESTS, self_test_key
from ekya.runtime.driver.machine_report import examination_as_json, examine_machine

SHIPPED = "datasets/synthetic_city/fleet.yaml"


@pytest.fixture
def written(tmp_path):
    """Writes the shipped fleet with changes."""

    def write(**changes):
        raw = yaml.safe_load(shipped_path(SHIPPED).read_text())
        path = tmp_path / "fleet.yaml"
        path.write_text(yaml.safe_dump({**raw, **changes}))
        return path

    return write


def test_check_of_a_good_fleet_says_so(written, capfd):
    path = written()
    assert main(["check", str(path)]) == 0
    assert capfd.readouterr().out == f"{path}: 4 streams, windows of 21 s; no problem found\n"


@pytest.mark.live
@pytest.mark.virtual
def test_check_look_writes_a_picture_of_each_stream(written, tmp_path, capfd):
    said, folder = tmp_path / "said.json", tmp_path / "seen"
    path = written(classes=["person", "car", "truck", "bus", "bicycle", "motorcycle"])
    assert main(["check", "--look", str(path), "--pictures", str(folder), "--json", str(said)]) == 0
    looks = json.loads(said.read_text())["looks"]
    assert [look["stream"] for look in looks] == ["cam-1", "cam-2", "cam-3", "cam-4"]
    for look in looks:
        picture = cv2.imread(look["picture"])
        assert picture.shape == (360, 480, 3)
        assert look["picture"] == str(folder / f"{look['stream']}.jpg")
        assert look["objects"]
        assert look["problems"] == []
    out = capfd.readouterr().out
    assert "cam-1: 320x240, 10 frames a second, " in out
    assert out.endswith("4 streams, windows of 21 s; no problem found\n")


@pytest.mark.live
@pytest.mark.virtual
def test_check_look_refuses_labels_of_other_frames(written, tmp_path, capfd):
    draw_video(tmp_path / "yard.avi", 20)
    labels = "".join(f"yard,{frame},5,5,20,20,car,1\n" for frame in range(1, 21))
    (tmp_path / "l.csv").write_text(f"stream,frame,x0,y0,x1,y1,class,confidence\n{labels}")
    yard = {"id": "yard", "source": {"kind": "video", "files": [str(tmp_path / "yard.avi")]}}
    path = written(
        streams=[yard], classes=["car"], golden={"model": "file", "weights": str(tmp_path / "l.csv")}
    )
    assert main(["check", "--look", str(path), "--pictures", str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert (
        "l.csv: it has labels of frames 1 to 20, and its video 20 from 0: its column 'frame' counts from 1"
        in out
    )
    assert "a run refuses labels that are not of their video" in err
    assert (tmp_path / "yard.jpg").is_file()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("coco.json", '{"images": [], "annotations": []}', "coco.json: is no file of labels"),
        ("yolo.txt", "0 0.5 0.5 0.1 0.1", "yolo.txt: is no file of labels"),
        ("mot.csv", "1,1,5,5,20,20,1,-1,-1,-1", "mot.csv: is no file of labels"),
        ("cut.parquet", "PAR1", "cut.parquet: is no file of labels"),
        (
            "of-another.csv",
            "stream,frame,x0,y0,x1,y1,class,confidence\nroad,0,5,5,20,20,car,1",
            "no labels of yard",
        ),
    ],
)
def test_check_reads_a_file_of_labels(written, tmp_path, capfd, name, text, words):
    (tmp_path / name).write_text(text)
    (tmp_path / "yard.avi").write_bytes(b"")
    yard = {"id": "yard", "source": {"kind": "video", "files": [str(tmp_path / "yard.avi")]}}
    path = written(streams=[yard], classes=["car"], golden={"model": "file", "weights": str(tmp_path / name)})
    assert main(["check", str(path), "--json", "-"]) == 2
    out, err = capfd.readouterr()
    (problem,) = json.loads(out)["problems"]
    assert words in problem
    assert words in err


def test_check_and_schema_take_pipes(written, capfd):
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as into:
        into.write(written().read_bytes())
    assert main(["check", f"/dev/fd/{reading}"]) == 0
    assert "no problem found" in capfd.readouterr().out
    assert main(["schema", "--out", "/dev/stdout"]) == 0
    assert json.loads(capfd.readouterr().out)["type"] == "object"
    assert main(["check", str(written()), "--json", "/dev/stdout"]) == 0
    assert json.loads(capfd.readouterr().out)["problems"] == []


def test_check_names_every_problem_and_ends_with_code_2(written, capfd):
    path = written(window_s=-1, min_accuracy=2, labels=3)
    assert main(["check", str(path), "--json", "-"]) == 2
    out, err = capfd.readouterr()
    problems = json.loads(out)["problems"]
    assert [one.split(": ")[1] for one in problems] == ["labels", "window_s", "min_accuracy"]
    assert all(one in err for one in problems)
    assert f"{path}: 3 problems; correct them" in err


def test_check_of_one_problem_says_it_as_a_run_would(written, capfd):
    path = written(edge={"model": "resnet18", "weights": "nowhere.safetensors", "resolution": 32})
    assert main(["check", str(path)]) == 2
    checked = capfd.readouterr().err
    assert "edge.weights: nowhere.safetensors does not exist" in checked
    assert main(["run", str(path)]) == 2
    assert capfd.readouterr().err == checked


def test_check_of_no_file_is_refused(tmp_path, capfd):
    assert main(["check", str(tmp_path / "no.yaml")]) == 2
    assert "there is no such file" in capfd.readouterr().err


def test_check_of_a_wrong_stream_does_not_say_that_there_is_none(written, capfd):
    path = written(streams=[{"id": "gate", "source": {"kind": "rtsp"}}])
    assert main(["check", str(path)]) == 2
    said = capfd.readouterr().err
    assert "streams.gate.source: there is no kind 'rtsp'" in said
    assert "the list is empty" not in said


FLEETS = [
    path
    for path in sorted(shipped_path("datasets/synthetic_city/fleet.yaml").parent.glob("*.yaml"))
    if "streams" in yaml.safe_load(path.read_text())
]


@pytest.fixture
def schema(tmp_path):
    assert main(["schema", "--out", str(tmp_path / "schema.json")]) == 0
    return json.loads((tmp_path / "schema.json").read_text())


def test_schema_without_a_file_is_printed(schema, capfd):
    assert main(["schema"]) == 0
    assert json.loads(capfd.readouterr().out) == schema


@pytest.mark.parametrize("fleet", FLEETS, ids=lambda path: path.stem)
def test_schema_accepts_shipped_fleets(schema, fleet):
    jsonschema.validate(yaml.safe_load(fleet.read_text()), schema)


def test_schema_accepts_a_word_in_place_of_classes(schema):
    jsonschema.validate({**yaml.safe_load(FLEETS[0].read_text()), "classes": "auto"}, schema)


@pytest.mark.parametrize("changes", [{"classes": "all"}, {"window_s": -1}, {"labels": 3}, {"streams": []}])
def test_schema_refuses_what_a_run_refuses(schema, changes):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(FLEETS[0].read_text()), **changes}, schema)


def test_schema_explains_keys(schema):
    assert "a_MIN" in schema["properties"]["min_accuracy"]["description"]
    drift = schema["$defs"]["DriftConfig"]["properties"]
    assert "other labels of the same scene" in drift["pool"]["description"]
    assert "Attributes" not in json.dumps(schema)


NO_GPU = GpuInventory((), None, "no NVIDIA driver answers")


def test_doctor_without_gpu_reports_every_check_and_the_cpu_backend(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    examination = examine_machine(tmp_path / "runs", NO_GPU, lambda inventory: MpsFound(False, inventory.why))
    assert (examination.shares, examination.device) == ("cpu", "cpu")
    assert "not mps: no NVIDIA driver answers" in examination.reasons
    found = examination_as_json(examination)["findings"]
    what = ("CPU", "Memory", "Shared memory", "Disk", "GPU", "MPS", "Ray", "torch", "OpenCV", "Shipped fleet")
    assert {*what, "Models of video", "Forward passes", "Decoders", "Golden models"} == set(found)
    taken = "student fastestdet (BSD-3-Clause); golden deimv2-femto (Apache-2.0); in the cache: none yet"
    assert found["Models of video"] == {"found": taken, "fine": True}
    assert "has seen a rendered city only; `ekya edge train FLEET" in found["Shipped fleet"]["found"]
    assert examination_as_json(examination)["measured"] == {}
    assert examination_as_json(examination)["cameras"] is None
    assert json.loads(json.dumps(examination_as_json(examination)))["gpus"] == examination.gpus


def test_doctor_with_a_kept_self_test_reports_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def forward():
        examination = examine_machine(tmp_path, NO_GPU, lambda inventory: MpsFound(False, inventory.why))
        return examination_as_json(examination)["findings"]["Forward passes"]

    assert forward()["found"].startswith("not tested yet")
    fleet = load_fleet(shipped_path(DEFAULT_FLEET))
    key = self_test_key("cpu", fleet.edge.model, resolutions_to_measure(fleet))
    SELF_TESTS.save(
        key,
        SelfTest(way=ForwardWay(channels_last=True), plain_ms=8.0, chosen_ms=4.0, tried=(), took_s=0.5),
    )
    report = "channels last: 4.0 ms for a typical frame of a resnet18, plain 8.0 ms"
    assert forward() == {"found": report, "fine": True}


@pytest.mark.live
@pytest.mark.virtual
def test_doctor_with_measure_times_the_shipped_fleet(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = tmp_path / "doctor.json"
    assert cli.main(["doctor", "--runs", str(tmp_path), "--measure", "--json", str(report)]) == 0
    report = json.loads(report.read_text())
    assert report["measured"]["forward"]["way"] in report["findings"]["Forward passes"]["found"]
    assert report["findings"]["Measured"]["found"].startswith("a frame ")
    assert report["cameras"]["by_cores"] >= 1
    assert (report["cameras"]["by_gpu"] is None) == (report["device"] == "cpu")


def test_doctor_with_mps_reports_it(tmp_path):
    gpus = GpuInventory((gpu(0),), "600.1", "1 NVIDIA GPU")
    found = MpsFound(True, "/usr/bin/nvidia-cuda-mps-control can serve each GPU")
    examination = examine_machine(tmp_path / "runs", gpus, lambda _inventory: found)
    assert examination_as_json(examination)["findings"]["MPS"] == {"found": found.why, "fine": True}
    assert any(found.why in reason for reason in examination.reasons)
    assert examination.device == "cuda"
