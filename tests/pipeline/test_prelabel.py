import json
from pathlib import Path

import numpy as np
import pytest

from ekya.cli import main
from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import load_fleet
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.models.golden.class_map import coco_names
from ekya.models.golden.detections import FramePlace
from ekya.models.golden.label_file import LabelTable, read_labels
from ekya.pipeline.discover_classes import with_classes
from ekya.pipeline.prelabel import label_ahead
from ekya.streams.ingest.process import SourceSpec

CITY = """\
gpus: 2
window_s: 4
windows: {windows}
classes: [person, car, truck, bus, bicycle, motorcycle]
golden: {{{golden}}}
streams:
  - id: north
    source: {{kind: synthetic_city, seed: 3, fps: 2, duration_s: 6}}
"""


def fleet_file(folder: Path, golden: str = "model: resnext29", windows: object = "null") -> Path:
    path = folder / "fleet.yaml"
    path.write_text(CITY.format(golden=golden, windows=windows), encoding="utf-8")
    return path


class Here:
    """Source in this process, since a separate process takes seconds to start."""

    died = None

    def __init__(self, spec: SourceSpec, classes: tuple[str, ...]) -> None:
        self.source = spec.open(classes)

    def wait_open(self) -> float:
        return self.source.fps

    def frames(self):
        return self.source.frames()

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ekya.pipeline.prelabel.SourceProcess", Here)


class Watched:
    """Progress that counts frames and is interrupted after ``stop_at``."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.done, self.expected, self.stop_at = 0, [], stop_at

    def expect(self, stream: StreamId, frames: int | None) -> None:
        self.expected.append((stream, frames))

    def labelled(self, frames: int) -> None:
        self.done += frames
        if self.done == self.stop_at:
            raise KeyboardInterrupt


def labelled(fleet: FleetConfig, to: Path, from_truth: bool = True, resume: bool = False, **watched: int):
    before = read_labels(to) if resume else None
    progress = Watched(**watched)
    try:
        return label_ahead(fleet, (), from_truth, before, lambda table: table.save_table(to), progress)[
            "north"
        ]
    except KeyboardInterrupt:
        return progress


@pytest.mark.usefixtures("here")
def test_prelabel_from_truth_writes_labels_that_a_fleet_runs_on(tmp_path: Path) -> None:
    fleet, to = load_fleet(fleet_file(tmp_path)), tmp_path / "labels.parquet"
    counts = labelled(fleet, to)
    assert (counts.labelled, counts.known) == (12, 0)
    labels = read_labels(to)
    assert (labels.head.by, labels.head.frames, labels.head.finds) == ("truth", {"north": 12}, False)
    spec = fleet.stream(StreamId("north")).source
    objects = 0
    for frame, truth in spec.open(fleet.classes).frames():
        seen = labels.labels_at_frame(FramePlace(StreamId("north"), frame.index))
        assert (seen.boxes == truth.boxes).all()
        assert (seen.classes == truth.classes).all()
        objects += len(truth.boxes)
    assert counts.objects == objects > 0
    on_file = load_fleet(fleet_file(tmp_path, "model: file, weights: labels.parquet"))
    assert with_classes(on_file).classes == fleet.classes, "boxes were given, so nothing is background"


@pytest.mark.usefixtures("here")
def test_prelabel_classifier_labels_boxes_with_confidence(tmp_path: Path) -> None:
    fleet, to = load_fleet(fleet_file(tmp_path, windows=1)), tmp_path / "labels.csv"
    counts = labelled(fleet, to, from_truth=False)
    assert counts.labelled == 8, "one window of four seconds"
    labels = read_labels(to)
    assert labels.head.frames == {}, "the stream goes on"
    truth = tmp_path / "truth.parquet"
    labelled(fleet, truth)
    said, true = labels.streams["north"].found, read_labels(truth).streams["north"].found
    assert np.mean(said.classes == true.classes) > 0.9
    assert ((said.scores > 1 / 6) & (said.scores <= 1)).all()


@pytest.mark.usefixtures("here")
def test_prelabel_resume_skips_known_frames_after_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, to = load_fleet(fleet_file(tmp_path)), tmp_path / "labels.parquet"
    stopped = labelled(fleet, to, stop_at=5)
    assert isinstance(stopped, Watched), "it came"
    assert len(read_labels(to).streams["north"].frames) == 5
    added = []
    monkeypatch.setattr(
        LabelTable, "finish_stream", lambda self, stream, frames: added.append(frames), raising=True
    )
    counts = labelled(fleet, to, resume=True)
    assert (counts.labelled, counts.known, added) == (7, 5, [12])
    monkeypatch.undo()
    assert labelled(fleet, to, resume=True).labelled == 0
    assert read_labels(to).head.frames == {"north": 12}
    progress = Watched()
    label_ahead(fleet, (), True, read_labels(to), lambda _: None, progress)
    assert (progress.expected, progress.done) == ([("north", 12)], 12), "not even opened again"


@pytest.mark.usefixtures("here")
def test_prelabel_impossible_request_is_refused(tmp_path: Path) -> None:
    fleet, to = load_fleet(fleet_file(tmp_path)), tmp_path / "labels.parquet"

    def refused(fleet: FleetConfig, words: str, streams: tuple[str, ...] = (), truth: bool = True) -> None:
        before = read_labels(to) if to.exists() else None
        with pytest.raises(UserError, match=words):
            label_ahead(fleet, streams, truth, before, lambda _: None, Watched())

    refused(fleet, "no 'south'.*north", ("south",))
    labelled(fleet, to)
    refused(fleet, r"labels\.parquet was made by truth", truth=False)
    refused(load_fleet(fleet_file(tmp_path, f"model: file, weights: {to}")), "in a file already", truth=False)
    other = load_fleet(fleet_file(tmp_path, f"model: file, weights: {to}"))
    south = other.streams[0].model_copy(update={"id": StreamId("south")})
    with pytest.raises(UserError, match=r"labels\.parquet: holds no labels of south"):
        with_classes(other.model_copy(update={"streams": (south,)}))


def test_prelabel_command_writes_and_counts_labels(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fleet, to = str(fleet_file(tmp_path)), str(tmp_path / "labels.parquet")
    assert main(["golden", "label", fleet, "--from-truth", "--out", to, "--json", "-"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["file"] == to
    assert said["streams"]["north"]["labelled"] == 12
    assert main(["golden", "label", fleet, "--from-truth", "--out", to]) == 2
    assert "--resume" in capfd.readouterr().err
    assert main(["golden", "label", fleet, "--out", str(tmp_path / "labels.txt")]) == 2
    assert ".parquet or .csv" in capfd.readouterr().err
    assert main(["golden", "label", fleet, "--from-truth", "--out", to, "--resume"]) == 0
    assert "12 were labelled before" in " ".join(capfd.readouterr().out.split())


def test_prelabel_command_takes_a_detr_export_as_golden(
    here: None, data_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    golden = data_dir / "weights" / "deimv2_hgnetv2_femto_coco.onnx"
    video, to = data_dir / "videos" / "degirum_Traffic.mp4", tmp_path / "labels.parquet"
    named = ["--video", str(video), "--golden", str(golden), "--classes", "car,truck"]
    asked = ["golden", "label", *named, "--window", "0.2", "--windows", "1", "--out", str(to), "--json", "-"]
    assert main(asked) == 0
    counts = json.loads(capfd.readouterr().out)["streams"]["cam-1"]
    assert counts["labelled"] == 6
    assert counts["objects"] >= 6
    labels = read_labels(to)
    assert labels.head.names == coco_names()
