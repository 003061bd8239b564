"""Tests of generated folders in the layout of the Waymo Open Dataset, through Ekya's own reader."""

from pathlib import Path

import numpy as np
import pytest
import waymo_sample
from generators import DATASETS, contents, refusal, run_generator

from ekya.streams.datasets.waymo import WaymoSpec
from ekya.streams.datasets.waymo.shots import CLASSES
from ekya.streams.sources import DATASETS as READERS

ASKED = ("--segments", 3, "--frames", 6, "--cameras", 2, "--width", 240, "--seed", 2)


@pytest.fixture(scope="module")
def roots(tmp_path_factory) -> dict[int, Path]:
    """The same segments in both versions; not to be changed."""
    made = {version: tmp_path_factory.mktemp("segments") / f"v{version}" for version in (1, 2)}
    for version, root in made.items():
        assert run_generator("waymo", "--out", root, *ASKED, "--version", version) == 0
    return made


def rows(truth):
    """Class, track-free box of each object, in one order."""
    return sorted(zip(truth.classes.tolist(), map(tuple, truth.boxes.round(3).tolist()), strict=True))


def test_generated_segments_are_the_same_in_both_versions(roots):
    survey = READERS["waymo"].survey(roots[2])
    assert survey.missing == ()
    names = [
        f"location_{place}-{camera}" for place in ("other", "phx", "sf") for camera in ("front", "front_left")
    ]
    assert sorted(survey.frames) == sorted(READERS["waymo"].survey(roots[1]).frames) == names
    objects = 0
    for place in ("location_sf", "location_phx", "location_other"):
        of_version = [WaymoSpec(root=root, location=place).open(CLASSES).frames() for root in roots.values()]
        for (one, truth), (other, other_truth) in zip(*map(list, of_version), strict=True):
            assert np.array_equal(one.image, other.image)
            assert (one.t_us, rows(truth)) == (other.t_us, rows(other_truth))
            objects += len(truth.classes)
    assert objects > 30


def test_generated_segment_tracks_objects_that_move(roots):
    frames = list(WaymoSpec(root=roots[2], location="location_sf").open(CLASSES).frames())
    (first, truth), (last, later) = frames[0], frames[-1]
    assert not np.array_equal(first.image, last.image)
    boxes = [
        dict(zip(of.tracks.tolist(), map(tuple, of.boxes.tolist()), strict=True)) for of in (truth, later)
    ]
    both = boxes[0].keys() & boxes[1].keys()
    assert both and any(boxes[0][track] != boxes[1][track] for track in both)


def test_generated_segments_are_completed_after_an_interruption(roots, tmp_path, monkeypatch, capsys):
    written = []
    plain = waymo_sample.write_v2

    def interrupted(root, segment):
        written.append(segment)
        if len(written) == 2:
            raise KeyboardInterrupt
        return plain(root, segment)

    monkeypatch.setattr(waymo_sample, "write_v2", interrupted)
    out = tmp_path / "v2"
    assert run_generator("waymo", "--out", out, *ASKED) == 130
    assert len(contents(out)) == 4
    monkeypatch.undo()
    capsys.readouterr()
    assert run_generator("waymo", "--out", out, *ASKED) == 0
    assert capsys.readouterr().out == (
        f"{out}: 3 segments of 6 frames, version 2; next: ekya prepare waymo --root {out}\n"
    )
    drawn = contents(roots[2])
    assert contents(out) == drawn and len(drawn) == 10


def test_generator_draws_the_sample_of_waymo(tmp_path):
    plain = ("--plain", "--version", 1, "--segments", 2, "--frames", 3, "--width", 96)
    assert run_generator("waymo", "--out", tmp_path / "v1", *plain) == 0
    drawn = contents(tmp_path / "v1")
    del drawn["generated.json"]
    assert drawn == contents(DATASETS / "waymo/sample/v1")


def test_generator_of_segments_refuses_in_one_sentence(roots, capsys):
    assert "made with other options" in refusal(capsys, "waymo", "--out", roots[1], "--version", 1)
    assert "no whole number of 1 to 5" in refusal(capsys, "waymo", "--out", roots[1], "--cameras", 6)
