"""The sample that comes with the card is what its script draws, and opens as the card says."""

from pathlib import Path

import pytest
import waymo_sample

from ekya.streams.waymo import WaymoSpec

SAMPLE = Path(waymo_sample.__file__).with_name("sample")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("location", ["location_sf", "location_phx"])
def test_the_sample_opens_in_both_versions(version, location):
    source = WaymoSpec(root=SAMPLE / version, location=location).open(("vehicle", "pedestrian"))
    assert [sorted(truth.classes) for _, truth in source.frames()] == [[0, 1]] * 3
    assert source.damaged == 0


def test_the_sample_is_what_its_script_draws(tmp_path):
    for segment in waymo_sample.sample_segments(2, 3, (96, 64)):
        drawn = waymo_sample.write_v1(tmp_path, segment)
        assert drawn.read_bytes() == (SAMPLE / "v1" / drawn.relative_to(tmp_path)).read_bytes()


def test_the_sample_is_small():
    assert sum(file.stat().st_size for file in SAMPLE.rglob("*") if file.is_file()) < 100_000
