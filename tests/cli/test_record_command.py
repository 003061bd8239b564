"""Tests of ``ekya record``: output files, errors, the result after Ctrl-C, and losses in the fleet file."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from mjpeg_camera import MjpegCamera

from ekya import cli
from ekya.cli.recording import find_losses, recorded_fleet_text
from ekya.config.fleet_reading import load_fleet, parse_fleet
from ekya.core.units import StreamId
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.playing import PlayConfig, event_during
from ekya.streams.ingest.recorder import Gap, Recording
from ekya.streams.ingest.video import VideoSpec

SECRET = "tops3cret"


@pytest.fixture
def camera():
    with MjpegCamera(fps=20.0, login=f"me:{SECRET}") as camera:
        yield camera


@pytest.fixture
def fleet_file(camera, tmp_path):
    return written(tmp_path, camera)


def written(folder, camera, **changes):
    """Writes a fleet file with a recording, a camera, and a camera that does not answer."""
    url = camera.url.replace("//", f"//me:{SECRET}@")
    raw = {
        "name": "crossing",
        "classes": ["person", "car"],
        "gpus": 1,
        "window_s": 9,
        "windows": 2,
        "preparation": {"share_milli": 600},
        "golden": {},
        "streams": [
            {"id": "city", "source": {"kind": "synthetic_city", "seed": 3}, "play": {"speed": 2}},
            {"id": "gate", "weight": 2, "source": {"kind": "camera", "url": url, "fps": 20, "max_side": 320}},
            {"id": "gone", "source": {"kind": "camera", "url": "http://127.0.0.1:9/video", "fps": 20}},
        ],
    }
    path = folder / "cameras.yaml"
    path.write_text(yaml.safe_dump(raw | changes))
    return path


def record(fleet_file, *more):
    return cli.main(["record", str(fleet_file), "--out", str(fleet_file.parent / "out"), *more])


def test_record_replaces_a_camera_by_its_video(fleet_file, tmp_path, capfd, caplog):
    assert record(fleet_file, "--for", "1", "--json", "-") == 1
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["left_out"] == {"gone": "no connection: Connection refused"}
    gate = report["streams"]["gate"]
    assert (gate["frames"], gate["seconds"], gate["fps"], gate["lost"]) == (20, 1.0, 20.0, [])
    assert "gone: left out; no connection: Connection refused" in err
    assert "1 s hold fewer than 2 windows of 9 s" in caplog.text
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["fleet.yaml", "gate.avi"]
    before, after = load_fleet(fleet_file), load_fleet(tmp_path / "out" / "fleet.yaml")
    assert [stream.id for stream in after.streams] == ["city", "gate"]
    assert after.stream("city") == before.stream("city")
    assert after.stream("gate").source == VideoSpec(files=(tmp_path / "out" / "gate.avi",), max_side=320)
    assert after.stream("gate").weight == 2
    assert after.model_copy(update={"streams": before.streams}) == before


def test_record_writes_portable_files_without_passwords(fleet_file, tmp_path, capfd, caplog):
    record(fleet_file, "--for", "0.5")
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert load_fleet(moved / "fleet.yaml").stream("gate").source.files == (moved / "gate.avi",)
    assert all(SECRET.encode() not in file.read_bytes() for file in moved.iterdir())
    assert SECRET not in "".join([*capfd.readouterr(), caplog.text])


def test_record_replaces_a_recording_with_overwrite_only(fleet_file, tmp_path, capfd):
    record(fleet_file, "--for", "0.5")
    assert record(fleet_file, "--for", "0.5") == 2
    assert "gate.avi is there already; name another folder, or add --overwrite" in capfd.readouterr().err
    before = (tmp_path / "out" / "gate.avi").stat().st_size
    assert record(fleet_file, "--for", "1.5", "--overwrite") == 1
    assert (tmp_path / "out" / "gate.avi").stat().st_size > before


def test_record_after_ctrl_c_keeps_its_frames(fleet_file, tmp_path, capfd):
    def interrupt():
        while not list((tmp_path / "out").glob(".gate*")):
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt, daemon=True)
    interrupting.start()
    assert record(fleet_file, "--json", "-") == 130
    interrupting.join()
    frames = json.loads(capfd.readouterr().out)["streams"]["gate"]["frames"]
    source = load_fleet(tmp_path / "out" / "fleet.yaml").stream("gate").source.open(())
    assert 0 < frames == len(list(source.frames())) < 180


def test_record_without_a_responding_camera_writes_nothing(tmp_path, camera, capfd):
    fleet_file = written(tmp_path, camera)
    camera.stop()
    assert record(fleet_file, "--for", "600") == 2
    said = capfd.readouterr().err
    assert "no camera gives a picture: gate: no connection: Connection refused; gone: no connection" in said
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "more", "said"),
    [
        ({"windows": None}, [], "--for: the fleet file does not say how many windows to run"),
        ({}, ["--for", "0"], "--for 0: this is no time to record; give seconds above 0"),
        ({}, ["--for", "inf"], "--for inf: this is no time to record"),
    ],
)
def test_record_without_a_finite_duration_is_refused(tmp_path, camera, capfd, changes, more, said):
    assert record(written(tmp_path, camera, **changes), *more) == 2
    assert said in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_record_that_cannot_work_is_refused_at_once(tmp_path, camera, monkeypatch, capfd):
    fleet_file = written(tmp_path, camera)
    (tmp_path / "out").write_text("")
    assert record(fleet_file) == 2
    assert "there is a file of this name; choose another folder" in capfd.readouterr().err
    assert cli.main(["record", "--out", str(tmp_path / "new")]) == 2
    assert "the shipped fleet: it has no live camera to record" in capfd.readouterr().err
    fleet_file.write_text(fleet_file.read_text().replace(f"me:{SECRET}", "${NOBODY_SET_THIS}"))
    monkeypatch.delenv("NOBODY_SET_THIS", raising=False)
    assert cli.main(["record", str(fleet_file), "--out", str(tmp_path / "new")]) == 2
    assert "the environment variable NOBODY_SET_THIS is not set" in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


def test_record_with_camera_option_records_it(camera, tmp_path, monkeypatch):
    monkeypatch.setenv("CAM_LOGIN", f"me:{SECRET}")
    weights = tmp_path / "FastestDet.onnx"
    weights.write_bytes(b"")
    url = camera.url.replace("//", "//${CAM_LOGIN}@")
    arguments = ["--camera", url, "--golden", str(weights), "--for", "0.5", "--out", str(tmp_path / "out")]
    assert cli.main(["record", *arguments]) == 0
    after = load_fleet(tmp_path / "out" / "fleet.yaml")
    (stream,) = after.streams
    assert isinstance(stream.source, VideoSpec)
    assert not isinstance(stream.source, CameraSpec)
    assert after.golden.weights == weights


def recording(gaps, fps=25.0, file=Path("gate.avi")):
    return Recording(
        file=file,
        fps=fps,
        frames=1000,
        repeated=0,
        width=640,
        height=352,
        size_bytes=1_000_000,
        gaps=tuple(gaps),
        problem=None,
    )


@given(
    st.lists(st.integers(1, 200), min_size=2, max_size=9),
    st.integers(10, 24000).map(lambda hundredths: hundredths / 100),
)
def test_losses_of_gaps_drop_exactly_their_frames(lengths, fps):
    """Frame times are computed as by the video source."""
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    gaps = [Gap(begin, end, "so") for begin, end in zip(bounds[::2], bounds[1::2], strict=False)]
    script = PlayConfig(script=find_losses(recording(gaps, fps))).script
    away = [
        frame
        for frame in range(bounds[-1] + 9)
        if event_during(script, round(frame * 1_000_000 / fps)) is not None
    ]
    assert away == [frame for gap in gaps for frame in range(gap.begin, gap.end)]


@pytest.mark.parametrize(("model", "in_script"), [("fastestdet", True), ("file", False)])
def test_recorded_fleet_with_labels_from_a_file_only_logs_losses(tmp_path, caplog, model, in_script):
    for name in ("gate.avi", "weights"):
        (tmp_path / name).write_bytes(b"")
    raw = {
        "gpus": 1,
        "window_s": 20,
        "windows": 3,
        "preparation": {"share_milli": 600},
        "golden": {"model": model, "weights": "weights"},
        "streams": [{"id": "gate", "source": {"kind": "camera", "url": "rtsp://cam/live"}}],
    }
    fleet = parse_fleet(raw, "a test", (tmp_path,))
    gate = StreamId("gate")
    one = recording([Gap(10, 60, "so")], file=tmp_path / "gate.avi")
    text = recorded_fleet_text(fleet, {gate: one}, {}, tmp_path / "fleet.yaml")
    assert ("event: lost" in text) == in_script
    assert ("gate was lost at 0.4 s for 2.0 s" in caplog.text) != in_script
    assert "cam/live" not in text
