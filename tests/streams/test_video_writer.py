"""Tests of videos that grow during a recording: rate, sizes and a full disk."""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from ekya.core.errors import UserError
from ekya.streams.ingest.video import VideoFile, VideoSpec

FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from ekya.core.errors import UserError
from ekya.streams.ingest.video import VideoFile

resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
video = VideoFile(Path(sys.argv[1]), image, 20.0)
try:
    for _ in range(5000):
        video.write_picture(image)
except UserError as error:
    print(error)
print(video.close())
"""


def gradient(width=64, height=48):
    row = np.linspace(0, 255, width, dtype=np.uint8)
    return np.repeat(np.repeat(row[None], height, axis=0)[:, :, None], 3, axis=2)


def frames_of(path):
    source = VideoSpec(files=(path,)).open(())
    return source, [frame for frame, _ in source.frames()]


@pytest.mark.parametrize("fps", [0.33, 7.5, 14.99, 25.0])
def test_video_file_keeps_pictures_rate_and_times(tmp_path, fps):
    path = tmp_path / "a.avi"
    video = VideoFile(path, gradient(), fps)
    for _ in range(12):
        video.write_picture(gradient())
    assert video.close() == 12
    source, frames = frames_of(path)
    assert source.fps == pytest.approx(fps, rel=1e-6)
    assert [frame.t_us for frame in frames] == [round(index * 1e6 / fps) for index in range(12)]
    assert np.abs(frames[-1].image.astype(int) - gradient()).mean() < 3


def test_video_file_other_size_is_scaled(tmp_path):
    path = tmp_path / "a.avi"
    video = VideoFile(path, gradient(), 10.0)
    for size in ((64, 48), (128, 72), (33, 65)):
        video.write_picture(gradient(*size))
    assert video.close() == 3
    assert {frame.image.shape for frame in frames_of(path)[1]} == {(48, 64, 3)}


def test_video_file_dark_pictures_are_no_full_disk(tmp_path):
    path = tmp_path / "a.avi"
    dark = np.zeros((32, 32, 3), np.uint8)
    video = VideoFile(path, dark, 25.0)
    for _ in range(3000):
        video.write_picture(dark)
    assert video.close() == 3000


def test_video_file_at_size_limit_stays_readable(tmp_path):
    path = tmp_path / "a.avi"
    told = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert told[0].startswith(f"{tmp_path}: the video cannot be written any further; check ")
    _, frames = frames_of(path)
    assert len(frames) == int(told[1]) > 20


def test_video_file_full_disk_leaves_room_for_index(tmp_path, monkeypatch):
    video = VideoFile(tmp_path / "a.avi", gradient(), 20.0)
    for _ in range(40):
        video.write_picture(gradient())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(UserError, match="the disk is full; free some space"):
        for _ in range(40):
            video.write_picture(gradient())
    assert video.close() == len(frames_of(tmp_path / "a.avi")[1]) >= 40


def test_video_file_missing_folder_is_user_error(tmp_path):
    with pytest.raises(UserError, match="no video can be written there; check permissions"):
        VideoFile(tmp_path / "a.avi" / "b.avi", gradient(), 10.0)
