"""Tests of recordings that are played faster or in a loop."""

import pytest
from draw_samples import draw_video

from ekya.streams.ingest.playing import PlayConfig, PlayedSpec
from ekya.streams.ingest.video import VideoSpec
from ekya.streams.synthetic import CitySpec

CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")


def video(folder):
    return VideoSpec(files=(draw_video(folder / "video.avi", 16),))


def city():
    return CitySpec(seed=3, fps=10, duration_s=1.0)


def first(spec, count):
    taken = []
    for frame in spec.open(CLASSES).frames():
        taken.append(frame)
        if len(taken) == count:
            break
    return taken


def test_played_double_speed_halves_times(tmp_path):
    plain = video(tmp_path)
    fast = PlayedSpec(source=plain, play=PlayConfig(speed=2.0))
    assert fast.open(()).fps == 2 * plain.open(()).fps
    before, after = list(plain.open(()).frames()), list(fast.open(()).frames())
    assert [frame.t_us for frame, _ in after] == [frame.t_us // 2 for frame, _ in before]
    assert [frame.index for frame, _ in after] == [frame.index for frame, _ in before]


def test_played_loop_continues_without_truth():
    plain = city()
    once = list(plain.open(CLASSES).frames())
    looped = first(PlayedSpec(source=plain, play=PlayConfig(loop=True)), 2 * len(once) + 1)
    assert [frame.index for frame, _ in looped] == list(range(2 * len(once) + 1))
    assert [frame.t_us for frame, _ in looped] == [100_000 * index for index in range(2 * len(once) + 1)]
    for (again, truth), (frame, _) in zip(looped[len(once) :], once, strict=False):
        assert truth is None
        assert (again.image == frame.image).all()
        assert (again.boxes == frame.boxes).all()
    assert all(truth is not None for _, truth in looped[: len(once)])


@pytest.mark.parametrize("damage", [b"", b"RIFF"])
def test_played_loop_without_frames_ends(tmp_path, damage):
    spec = video(tmp_path)
    source = PlayedSpec(source=spec, play=PlayConfig(loop=True)).open(())
    for file in spec.files:
        file.write_bytes(damage)
    assert list(source.frames()) == []
