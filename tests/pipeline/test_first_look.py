"""The look at the first frames of a fleet's streams before a run."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx_networks import frame_size, write

from ekya.config.fleet_file import FleetConfig
from ekya.config.fleet_reading import parse_fleet
from ekya.core.errors import UserError
from ekya.models.golden.detections import Detections
from ekya.models.golden.label_file import LabelHead, LabelTable
from ekya.pipeline.first_look import look_at_fleet, sentences_of, streams_to_look_at, warn_before_run

pytestmark = [pytest.mark.live, pytest.mark.virtual]

COUNT = 120


def box_at(frame: int) -> list[float]:
    x = 20 + abs((frame * 20) % 1120 - 560)
    return [x, 30, x + 40, 70]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """A bright car that goes to and fro over a dark ground."""
    path = tmp_path / "yard.avi"
    ground = cv2.blur(np.random.default_rng(0).integers(0, 90, (120, 640, 3)).astype(np.uint8), (5, 5))
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, (640, 120))
    for frame in range(COUNT):
        x0, y0, x1, y1 = map(round, box_at(frame))
        image = ground.copy()
        image[y0:y1, x0:x1] = 230
        writer.write(image)
    writer.release()
    return path


def fleet_of(video: Path, golden: dict[str, object], **changes: object) -> FleetConfig:
    raw = {
        "classes": ["car", "background"],
        "golden": golden,
        "streams": [{"id": "yard", "source": {"kind": "video", "files": [str(video)]}}],
    }
    return parse_fleet(raw | changes, "fleet.yaml", (video.parent,))


def labelled(video: Path, every: int = 1, counted_by: int = 1, origin: int = 0) -> FleetConfig:
    """Returns a fleet with labels of every n-th frame of the video."""
    boxes = {
        frame // counted_by + origin: Detections(
            np.array([box_at(frame)], np.float32), np.zeros(1, np.int64), np.ones(1, np.float32)
        )
        for frame in range(0, COUNT, every)
    }
    path = video.parent / "labels.csv"
    LabelTable(LabelHead(names=("car",)), {"yard": boxes}).save_table(path)
    return fleet_of(video, {"model": "file", "weights": str(path)})


def detector(folder: Path, score: float) -> dict[str, object]:
    """A detector that finds a car in every picture with this score."""
    found = {
        "labels": np.array([[0]]),
        "boxes": np.array([[[0.2, 0.2, 0.6, 0.6]]], np.float32),
        "scores": np.array([[score]], np.float32),
    }
    file = write(folder / "golden.onnx", named=found, sizes=frame_size(), names="{0: 'car'}")
    return {"model": "onnx", "weights": str(file)}


def test_labels_of_the_video_are_shown_where_they_have_most(video, caplog):
    fleet = labelled(video)
    (look,) = look_at_fleet(fleet, fleet.streams)
    assert (look.odd, look.refused) == ((), False)
    assert look.shown is not None
    assert look.objects.boxes.tolist() == [box_at(look.shown.index)]
    warn_before_run(fleet)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"origin": 1}, r"^yard: .*labels\.csv: it has labels of frames 1 to 120, and its video 120 from 0"),
        ({"every": 5, "counted_by": 5}, r"^yard: .*labels\.csv: it has a box for .* multiply it by 5$"),
    ],
)
def test_labels_of_other_frames_are_refused_before_a_run(video, labels, words):
    with pytest.raises(UserError, match=words):
        warn_before_run(labelled(video, **labels))


def test_the_number_of_frames_of_several_files_is_not_held_against_labels(video, caplog):
    fleet = labelled(video)
    (stream,) = fleet.streams
    other = video.with_name("other.avi")
    slow = cv2.VideoWriter(str(other), cv2.VideoWriter.fourcc(*"MJPG"), 1.0, (640, 120))
    for shade in range(0, 200, 20):
        slow.write(np.full((120, 640, 3), shade, np.uint8))
    slow.release()
    # By the first file's rate there are fewer frames than labels.
    source = stream.source.model_copy(update={"files": (other, video)})
    warn_before_run(fleet.model_copy(update={"streams": (stream.model_copy(update={"source": source}),)}))
    assert "labels of frames" not in caplog.text


def test_of_data_with_their_own_labels_one_stream_is_looked_at(tmp_path):
    path, classes = tmp_path / "labels.parquet", ("car", "bus")
    source = {"kind": "synthetic_city", "seed": 1, "fps": 5, "duration_s": 2, "width": 320, "height": 240}
    streams = [{"id": name, "source": source} for name in ("a", "b", "c")]
    for by, looked_at in (("truth", 1), ("hand", 3)):
        LabelTable(LabelHead(by=by, names=classes)).save_table(path)
        golden = {"model": "file", "weights": str(path)}
        fleet = fleet_of(path, golden, streams=streams, classes=classes)
        assert len(streams_to_look_at(fleet)) == looked_at


def test_a_golden_model_that_finds_nothing_in_what_moves_is_warned_of(video, tmp_path, caplog):
    warn_before_run(fleet_of(video, detector(tmp_path, 0.9)))
    assert caplog.text == ""
    warn_before_run(fleet_of(video, detector(tmp_path, 0.1)))
    assert (
        "yard: something moves in its first pictures, and the golden model finds none of car" in caplog.text
    )


def test_rendered_streams_are_looked_at_on_request_only(tmp_path):
    source = {"kind": "synthetic_city", "seed": 1, "fps": 5, "duration_s": 2, "width": 320, "height": 240}
    fleet = fleet_of(tmp_path / "none", {"model": "resnext29"}, streams=[{"id": "a", "source": source}])
    fleet = fleet.model_copy(update={"classes": ("person", "car", "truck", "bus", "bicycle", "motorcycle")})
    assert streams_to_look_at(fleet) == []
    (look,) = look_at_fleet(fleet, fleet.streams)
    assert (look.odd, sentences_of([look])) == ((), ())
    assert len(look.objects.boxes), "the classifier names the boxes of the source"
