"""Tests that hold for every source. A new one is added to ``SOURCES``."""

import gc
from collections.abc import Callable, Mapping
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import waymo_sample
from draw_samples import draw_cityscapes, draw_image_folder, draw_sample_list, draw_video
from mjpeg_camera import MjpegCamera

from ekya.core.objects import BACKGROUND
from ekya.streams.datasets.cityscapes import CityscapesSpec
from ekya.streams.datasets.image_folder import ImageFolderSpec
from ekya.streams.datasets.sample_list import SampleListSpec
from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.process import SourceProcess, SourceSpec
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec, StreetScene

CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")
WAYMO_CLASSES = ("person", "car", "bicycle")
OPENS = 1000


def city(_: Path) -> CitySpec:
    later = StreetScene(
        at_s=1, mix={"bus": 1.0, "truck": 1.0}, view="front", lighting="night", livery="south"
    )
    return CitySpec(seed=3, fps=10, duration_s=2.0, scenes=(StreetScene(), later))


def video(folder: Path) -> VideoSpec:
    files = []
    for name in ("first.avi", "second.avi"):
        files.append(draw_video(folder / name, 8))
    return VideoSpec(files=tuple(files))


def waymo_v1(folder: Path) -> WaymoSpec:
    for segment in waymo_sample.sample_segments(3, 4, (96, 64)):
        waymo_sample.write_v1(folder, segment)
    return WaymoSpec(root=folder, location="location_sf", max_side=64)


def waymo_v2(folder: Path) -> WaymoSpec:
    segments = waymo_sample.sample_segments(3, 4, (96, 64))
    for segment in segments:
        waymo_sample.write_v2(folder, segment)
    return WaymoSpec(root=folder, segments=[one.name for one in segments], camera="SIDE_LEFT")


def cityscapes(folder: Path) -> CityscapesSpec:
    draw_cityscapes(folder / "city", {"aachen": 5})
    return CityscapesSpec(root=folder / "city", city="aachen")


def cityscapes_by_instances(folder: Path) -> CityscapesSpec:
    draw_cityscapes(folder / "city", {"ulm": 3}, split="val", instances=True)
    return CityscapesSpec(root=folder / "city", city="ulm")


def list_of_pictures(folder: Path) -> SampleListSpec:
    draw_sample_list(folder, "north", 4)
    return SampleListSpec(samples=folder / "north.csv", frames=folder / "north")


def list_of_a_video(folder: Path) -> SampleListSpec:
    draw_sample_list(folder, "south", 6, video=True)
    return SampleListSpec(samples=folder / "south.csv", video=folder / "south.mp4")


def image_folder(folder: Path) -> ImageFolderSpec:
    draw_image_folder(folder / "crops", 1)
    return ImageFolderSpec(root=folder / "crops")


SOURCES: Mapping[str, Callable[[Path], SourceSpec]] = {
    "synthetic_city": city,
    "video": video,
    "waymo v1": waymo_v1,
    "waymo v2": waymo_v2,
    "cityscapes": cityscapes,
    "cityscapes by instances": cityscapes_by_instances,
    "sample_list": list_of_pictures,
    "sample_list of a video": list_of_a_video,
    "image_folder": image_folder,
}
"""For each ``kind`` of a fleet file, a function that creates a small source in a folder."""


def classes_of(spec: SourceSpec) -> tuple[str, ...]:
    """Returns the fleet's classes; a data set refuses a class that it does not have."""
    return WAYMO_CLASSES if isinstance(spec, WaymoSpec) else CLASSES


@pytest.fixture(scope="module", params=SOURCES)
def spec(request, tmp_path_factory):
    """Specification of a source whose files are made once; tests only read them."""
    return SOURCES[request.param](tmp_path_factory.mktemp("source"))


def test_source_spec_survives_json(spec):
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


def test_source_frames_are_numbered_and_time_rises(spec):
    frames = [frame for frame, _ in spec.open(classes_of(spec)).frames()]
    assert len(frames) > 1
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert frames[0].t_us >= 0
    assert all(before.t_us < after.t_us for before, after in pairwise(frames))
    assert all(frame.image.dtype == np.uint8 and frame.image.ndim == 3 for frame in frames)


def test_source_rate_matches_its_frames(spec):
    source = spec.open(classes_of(spec))
    times = [frame.t_us for frame, _ in source.frames()]
    assert 1e6 * (len(times) - 1) / (times[-1] - times[0]) == pytest.approx(source.fps, rel=0.2)


def test_source_second_pass_gives_same_frames(spec):
    source = spec.open(classes_of(spec))
    first, second = list(source.frames()), list(source.frames())
    assert len(first) == len(second)
    for (one, truth), (other, its_truth) in zip(first, second, strict=True):
        assert (one.index, one.t_us) == (other.index, other.t_us)
        assert np.array_equal(one.image, other.image)
        assert (truth is None) == (its_truth is None)
        if truth is not None:
            assert np.array_equal(truth.boxes, its_truth.boxes)
            assert np.array_equal(truth.tracks, its_truth.tracks)


def test_source_truth_and_boxes_match_gives_truth(spec):
    for frame, truth in spec.open(classes_of(spec)).frames():
        assert (truth is not None) == (frame.boxes is not None) == spec.gives_truth
        if truth is None:
            continue
        height, width = frame.image.shape[:2]
        assert truth.boxes.dtype == np.float32
        assert truth.boxes.shape == (len(truth.classes), 4)
        assert len(truth.tracks) == len(set(truth.tracks.tolist())) == len(truth.classes)
        assert np.array_equal(frame.boxes, truth.boxes)
        assert np.all((truth.classes >= 0) & (truth.classes < len(classes_of(spec))))
        assert np.all(truth.boxes[:, :2] < truth.boxes[:, 2:])
        assert np.all(truth.boxes >= 0) and np.all(truth.boxes[:, 2:] <= [width, height])


def test_source_background_is_no_class_of_objects(spec):
    classes = (*classes_of(spec), BACKGROUND)
    for frame, truth in spec.open(classes).frames():
        assert (truth is not None) == (frame.boxes is not None) == spec.gives_truth
        assert truth is None or np.all(truth.classes < len(classes) - 1)


def test_source_stopped_pass_leaves_nothing_open(spec):
    _read_one(spec)
    before = _open_files()
    for _ in range(20):
        _read_one(spec)
    assert _open_files() <= before


@pytest.mark.live
@pytest.mark.long
def test_source_thousand_opens_leave_nothing_open(spec):
    _read_one(spec)
    before = _open_files()
    for number in range(OPENS):
        if number % 10:
            spec.open(classes_of(spec))
        else:
            _read_one(spec)
    gc.collect()
    assert _open_files() <= before


def test_source_in_a_process_gives_same_frames(spec):
    own = [(frame.index, frame.t_us, frame.image) for frame, _ in spec.open(classes_of(spec)).frames()]
    with SourceProcess(spec, classes_of(spec)) as process:
        elsewhere = [(frame.index, frame.t_us, frame.image) for frame, _ in process.frames()]
        assert (process.died, process.damaged) == (None, 0)
    assert [one[:2] for one in elsewhere] == [one[:2] for one in own]
    assert all(np.array_equal(one[2], other[2]) for one, other in zip(elsewhere, own, strict=True))


@pytest.fixture
def live_spec():
    with MjpegCamera(fps=50.0) as camera:
        yield CameraSpec(url=camera.url, fps=50.0)


def test_live_source_watch_leaves_nothing_open(live_spec):
    assert live_spec.live and type(live_spec).model_validate_json(live_spec.model_dump_json()) == live_spec
    source = live_spec.open(CLASSES)
    assert source.fps == 50.0
    seen = list(islice(source.watch_pictures(), 10))
    assert all(before.arrived_ns < after.arrived_ns for before, after in pairwise(seen))
    assert all(one.image.dtype == np.uint8 and one.image.ndim == 3 for one in seen)


@pytest.mark.live
@pytest.mark.long
def test_live_source_many_opens_leave_nothing_open(live_spec):
    for number in range(OPENS + 2):
        watching = live_spec.open(CLASSES).watch_pictures()
        next(watching)
        watching.close()
        if number == 1:
            before = _open_files()
    gc.collect()
    assert _open_files() <= before + 1  # the server may not have closed the last connection yet


def _read_one(spec):
    frames = spec.open(classes_of(spec)).frames()
    next(frames)
    frames.close()


def _open_files():
    return len(list(Path("/proc/self/fd").iterdir()))
