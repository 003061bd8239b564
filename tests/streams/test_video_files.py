from pathlib import Path

import cv2
import numpy as np
import pytest
from draw_samples import draw_video
from pydantic import ValidationError

from ekya.core.errors import UserError
from ekya.streams.ingest import video
from ekya.streams.ingest.video import VideoSpec


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


class Flaky:
    """Fake decoder that fails at some positions, as real ones do, and never reports its end."""

    script = ""

    def __init__(self, *_: object) -> None:
        self.position = 0
        self.isOpened = lambda: True

    def get(self, _: int) -> float:
        return 90_000.0

    def release(self) -> None:
        pass

    def read(self) -> tuple[bool, np.ndarray | None]:
        at, self.position = self.position, self.position + 1
        step = self.script[at] if at < len(self.script) else "x"
        if step == "!":
            raise cv2.error("damaged")
        return step == ".", np.zeros((8, 8, 3), np.uint8) if step == "." else None


@pytest.mark.parametrize(
    ("script", "good", "damaged"),
    [("....", [0, 1, 2, 3], 0), ("..xx.!..", [0, 1, 4, 6, 7], 3), ("." + "x" * 49 + ".", [0, 50], 49)],
)
def test_video_damaged_frames_are_counted_and_take_time(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    script: str,
    good: list[int],
    damaged: int,
) -> None:
    path = tmp_path / "flaky.mp4"
    path.write_bytes(b"x")
    monkeypatch.setattr(Flaky, "script", script)
    monkeypatch.setattr(video.cv2, "VideoCapture", Flaky)
    source = VideoSpec(files=(path,)).open(())
    frames = [frame for frame, _ in source.frames()]
    assert source.fps == 25.0, "90000 frames a second are the container's clock, not a rate"
    assert [f.index for f in frames] == list(range(len(good)))
    assert [f.t_us for f in frames] == [i * 40_000 for i in good]
    assert source.damaged == damaged
    said = [message for message in caplog.messages if "cannot be decoded" in message]
    assert said == ([f"{path}: {damaged} frames cannot be decoded"] if damaged else [])


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
