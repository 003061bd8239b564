"""Tests of videos that grow during a recording: rate, sizes and a full disk."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from draw_samples import draw_video
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.ingest.video import SpreadVideoSpec, VideoFile, VideoSpec


def test_video_files_play_in_sequence(tmp_path: Path) -> None:
    first = draw_video(tmp_path / "a.avi", 10, fps=10)
    second = draw_video(tmp_path / "b.avi", 6, fps=20, size=(160, 80))
    source = VideoSpec(files=(first, second), max_side=80).open(())
    frames = [frame for frame, truth in source.frames() if truth is None]
    assert source.fps == pytest.approx(10)
    assert [f.index for f in frames] == list(range(16))
    assert [f.t_us for f in frames] == [i * 100_000 for i in range(10)] + [
        1_000_000 + i * 50_000 for i in range(6)
    ]
    assert frames[0].image.shape == (48, 64, 3)
    assert frames[-1].image.shape == (40, 80, 3)
    assert all(f.boxes is None for f in frames)
    assert abs(int(frames[5].image.mean()) - 40) <= 3
    assert len(list(source.frames())) == 16, "a second pass reads the same frames again"


def test_video_spread_runs_are_from_all_over_the_files_and_the_first_of_them_too(tmp_path: Path) -> None:
    first = draw_video(tmp_path / "a.avi", 12, fps=10)
    second = draw_video(tmp_path / "b.avi", 12, fps=20)
    video = VideoSpec(files=(first, second))
    frames = [frame for frame, _ in SpreadVideoSpec(video=video, runs=4, run_frames=3).open(()).frames()]
    assert [frame.index for frame in frames] == [2, 3, 4, 14, 15, 16, 8, 9, 10, 20, 21, 22]
    assert all(abs(int(frame.image.mean()) - 8 * (frame.index % 12)) <= 3 for frame in frames)
    assert [frame.index for frame, _ in SpreadVideoSpec(video=video, runs=9, run_frames=50).open(()).frames()]


@pytest.mark.parametrize("content", [None, b"", b"this is no video at all" * 100])
def test_video_missing_or_other_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.mp4.*'files'.*[.;]"):
        VideoSpec(files=(path,)).open(())


def test_video_spec_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError):
        VideoSpec.model_validate({"kind": "video", "files": ["a.mp4"], "filez": 1})


@pytest.mark.parametrize("lost", [(), (2, 3, 5), tuple(range(1, 50))])
def test_video_damaged_frames_are_counted_and_take_time(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, lost: tuple[int, ...]
) -> None:
    path = draw_video(tmp_path / "flaky.avi", 52, fps=10)
    content = path.read_bytes()
    begins = [at.start() for at in re.finditer(rb"00dc....\xff\xd8\xff", content, re.DOTALL)]
    for number in lost:
        begin, end = begins[number] + 8, begins[number + 1]
        content = content[:begin] + bytes(end - begin) + content[end:]
    path.write_bytes(content)
    good = [number for number in range(52) if number not in lost]
    source = VideoSpec(files=(path,)).open(())
    frames = [frame for frame, _ in source.frames()]
    assert [f.index for f in frames] == list(range(len(good)))
    assert [f.t_us for f in frames] == [i * 100_000 for i in good]
    assert source.damaged == len(lost)
    said = [message for message in caplog.messages if "cannot be decoded" in message]
    assert said == ([f"{path}: {len(lost)} frames cannot be decoded"] if lost else [])


def test_video_damaged_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = draw_video(tmp_path / "hurt.avi", 40, fps=10)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 600] = b"\x00" * 600
    path.write_bytes(data)
    source = VideoSpec(files=(path,)).open(())
    values = [float(frame.image.mean()) for frame, _ in source.frames()]
    assert 30 <= len(values) <= 40
    assert values[-1] == pytest.approx(39 * 8 % 256, abs=4), "the last frame is reached"


def test_video_wrong_header_rate_is_corrected(tmp_path: Path) -> None:
    """In an AVI the rate is one number of the header; the frames of an MKV carry their own time."""
    path = tmp_path / "slow.mkv"
    writer = cv2.VideoWriter(str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    if not writer.isOpened():
        pytest.skip("this OpenCV writes no Matroska")
    for _ in range(12):
        writer.write(np.zeros((48, 64, 3), np.uint8))
    writer.release()
    content = bytearray(path.read_bytes())
    # DefaultDuration in nanoseconds, from which readers derive the rate.
    at = content.index(b"\x23\xe3\x83\x84") + 4
    content[at : at + 4] = (10_000_000).to_bytes(4, "big")
    path.write_bytes(content)
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS) != pytest.approx(10, rel=0.1)
    source = VideoSpec(files=(path,)).open(())
    assert source.fps == pytest.approx(10, rel=0.01)


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
    frames = frames_of(path)[1]
    assert {frame.image.shape for frame in frames} == {(48, 64, 3)}
    # The last is half as wide as high, and so it stays.
    columns = frames[-1].image.mean(axis=(0, 2))
    assert (columns[:18] < 12).all() and (columns[-18:] < 12).all() and columns[40] > 60
    assert (frames[1].image.mean(axis=(1, 2))[[0, 47]] < 12).all(), "16:9 in 4:3"


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
