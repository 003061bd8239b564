"""Tests of preparing Waymo data: missing parts, examination of every frame, and the index."""

import os
import re
import threading
from contextlib import closing

import numpy as np
import pytest
import waymo_sample
from waymo_sample import Segment

from ekya.core.errors import UserError
from ekya.results.storage.run_folder import check_stream_name
from ekya.streams.datasets.waymo import WaymoSpec, catalogue, dataset
from ekya.streams.datasets.waymo.catalogue import find_segments, segment_reader
from ekya.streams.datasets.waymo.dataset import read_ahead
from ekya.streams.datasets.waymo.shots import CLASSES, WaymoCamera
from ekya.streams.sources import DATASETS

WAYMO = DATASETS["waymo"]
SEGMENTS = (
    Segment("1000_0", first_us=2_000_000_000, frames=3),
    Segment("2000_0", first_us=1_000_000_000, frames=4, cameras=(WaymoCamera.FRONT,)),
    Segment("3000_0", location="Phoenix, AZ", frames=2),
)


@pytest.fixture(params=["v1", "v2"])
def written(request, tmp_path):
    write = {"v1": waymo_sample.write_v1, "v2": waymo_sample.write_v2}[request.param]
    root = tmp_path / "root"
    return root, [write(root, segment) for segment in SEGMENTS]


def examine(root, stream, classes=CLASSES):
    index = root.parent / f"{stream}.jsonl"
    on_frame = []
    findings = WAYMO.examine(root, stream, classes, index, on_frame.append)
    assert len(on_frame) >= findings.frames
    return findings, index


def test_waymo_survey_lists_cameras_at_locations(written):
    root, _ = written
    survey = WAYMO.survey(root)
    assert survey.missing == ()
    names = ["Phoenix_AZ-front", "Phoenix_AZ-side_left", "location_sf-front", "location_sf-side_left"]
    assert list(survey.frames) == names
    for name in names:
        check_stream_name(name)


def test_waymo_survey_reads_only_segments_that_are_new_or_changed(written, tmp_path, monkeypatch):
    root, _ = written
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read = []

    class Reader:
        def __init__(self, of):
            self.of, self.reader = of, segment_reader(of)

        def read_facts(self):
            read.append(self.of.name)
            return self.reader.read_facts()

    monkeypatch.setattr(catalogue, "segment_reader", Reader)
    first = WAYMO.survey(root)
    assert read == [segment.name for segment in SEGMENTS]
    read.clear()
    assert WAYMO.survey(root) == first
    assert read == []
    segment = find_segments(root)["2000_0"]
    changed = segment.stats or segment.images
    os.utime(changed, (1, 1))
    assert WAYMO.survey(root) == first
    assert read == ["2000_0"]
    changed.write_bytes(b"")
    damaged = WAYMO.survey(root)
    assert str(changed) in damaged.missing[0]
    assert WAYMO.survey(root) == damaged
    (tmp_path / "cache" / "ekya" / "waymo-segments.json").write_text("[")
    assert WAYMO.survey(root) == damaged


def test_waymo_index_opens_to_same_frames(written, monkeypatch):
    root, _ = written
    findings, index = examine(root, "location_sf-front")
    assert (findings.frames, findings.duration_s, findings.problems) == (7, 0.7, ())
    assert findings.objects == dict.fromkeys(sorted(CLASSES), 7)

    whole = WaymoSpec(root=root, location="location_sf").open(CLASSES)
    spec = WAYMO.make_indexed_spec(root, "location_sf-front", index)
    with monkeypatch.context() as nothing_is_looked_into:
        nothing_is_looked_into.setattr(dataset, "find_segments", None)
        nothing_is_looked_into.setattr(dataset, "describe_segments", None)
        nothing_is_looked_into.setattr(dataset, "segment_reader", None)
        indexed = spec.open(CLASSES)
    for (one, truth), (other, other_truth) in zip(indexed.frames(), whole.frames(), strict=True):
        assert (one.index, one.t_us) == (other.index, other.t_us)
        assert np.array_equal(one.image, other.image)
        assert np.array_equal(truth.boxes, other_truth.boxes)


@pytest.mark.parametrize("write", [waymo_sample.write_v1, waymo_sample.write_v2])
def test_waymo_drift_orders_segments_by_light_or_weather(tmp_path, write):
    root = tmp_path / "root"
    for name, time_of_day, weather in (
        ("1", "Night", "sunny"),
        ("2", "Day", "rain"),
        ("3", "Dawn/Dusk", "sunny"),
        ("4", "Day", "sunny"),
        ("5", "", ""),
    ):
        write(
            root,
            Segment(
                name, time_of_day=time_of_day, weather=weather, first_us=int(name) * 1_000_000_000, frames=2
            ),
        )
    orders = {"day-night": "24315", "night-day": "13245", "sun-rain": "13425"}
    assert orders.keys() == WAYMO.drifts.keys()
    for drift, order in orders.items():
        drifting, index = WAYMO.in_drift(drift), tmp_path / f"{drift}.jsonl"
        found = drifting.examine(root, "location_sf-front", CLASSES, index, lambda objects: None)
        spec = drifting.make_indexed_spec(root, "location_sf-front", index)
        for one in (spec, spec.model_copy(update={"index": None})):
            shown = [str(frame.frame.place) for frame in one.open(CLASSES).show()]
            assert "".join(shown[::2]) == order
        if drift == "day-night":
            said = "0.4 s day, then 0.2 s dawn/dusk, then 0.2 s night, then 0.2 s not known"
            assert found.drift_in_words == said


def test_waymo_examine_counts_the_fleets_classes(written):
    findings, _ = examine(written[0], "location_sf-front", ("person", "background"))
    assert findings.objects == {"person": 7}


def test_waymo_examine_names_segments_without_the_camera(written):
    root, files = written
    findings, index = examine(root, "location_sf-side_left")
    assert findings.frames == 3
    assert findings.problems == (
        f"{files[1]}: has no images of camera SIDE_LEFT; choose another or leave it out.",
    )
    assert len(index.read_text().splitlines()) == 2


def test_waymo_survey_names_missing_parts(tmp_path):
    assert WAYMO.survey(tmp_path).frames == {}
    assert "has neither camera_image" in WAYMO.survey(tmp_path).missing[0]
    for segment in SEGMENTS:
        waymo_sample.write_v2(tmp_path, segment)
    boxes = tmp_path / "training" / "camera_box" / "1000_0.parquet"
    stats = tmp_path / "training" / "stats" / "3000_0.parquet"
    images = tmp_path / "training" / "camera_image" / "2000_0.parquet"
    boxes.unlink()
    stats.unlink()
    images.write_bytes(b"PAR1")
    survey = WAYMO.survey(tmp_path)
    assert list(survey.frames) == ["location_sf-front", "location_sf-side_left"]
    assert survey.missing == (
        f"{boxes}: is not there, and says what its pictures show",
        f"{stats}: is not there, and says where it was driven",
    )
    with pytest.raises(
        UserError, match=r"no segment of location_sf-front can be used; the first: .*camera_image"
    ):
        examine(tmp_path, "location_sf-front")


def test_waymo_examine_unknown_stream_is_user_error(written):
    with pytest.raises(UserError, match="has no stream 'none' any more"):
        examine(written[0], "none")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: "", "this is no index of waymo"),
        (lambda text: text.replace('"dataset": "waymo"', '"dataset": "other"'), "this is no index of waymo"),
        (lambda text: text[:-20], ":3: this line is damaged; make it again with ekya prepare waymo"),
        (lambda text: text.replace("location_sf", "location_x"), "does not have every segment"),
        (lambda text: text.replace("2000_0", "9000_0"), "is not there any more, and"),
    ],
)
def test_waymo_wrong_index_is_user_error(written, change, says):
    root, _ = written
    _, index = examine(root, "location_sf-front")
    index.write_text(change(index.read_text()))
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        WaymoSpec(root=root, location="location_sf", index=index).open(CLASSES)
    assert str(index) in str(caught.value)


def test_waymo_index_opens_named_segments(written):
    root, _ = written
    _, index = examine(root, "location_sf-front")
    one = WaymoSpec(root=root, segments=("1000_0",), index=index).open(CLASSES)
    assert len(list(one.frames())) == 3


class Made:
    """Numbers that record how many were made and whether their generator was closed."""

    def __init__(self, count, fails_at=None):
        self.made = 0
        self.closed = False
        self._count, self._fails_at = count, fails_at

    def numbers(self):
        try:
            for number in range(self._count):
                if number == self._fails_at:
                    raise ValueError(f"no {number}")
                self.made += 1
                yield number
        finally:
            self.closed = True


@pytest.mark.parametrize("count", [1, 3, 100])
def test_read_ahead_any_count_keeps_order(count):
    assert list(read_ahead(Made(10).numbers(), count)) == list(range(10))
    assert list(read_ahead(Made(0).numbers(), count)) == []


def test_read_ahead_makes_at_most_count_in_advance():
    made = Made(100)
    with closing(read_ahead(made.numbers(), 5)) as items:
        assert [next(items), next(items)] == [0, 1]
        assert made.made <= 2 + 5


def test_read_ahead_error_is_raised_in_its_place():
    items = read_ahead(Made(10, fails_at=3).numbers(), 4)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no 3"):
        next(items)


def test_read_ahead_closed_early_leaves_no_thread():
    before = threading.active_count()
    made = Made(100)
    items = read_ahead(made.numbers(), 4)
    next(items)
    items.close()
    assert made.closed
    assert threading.active_count() == before
