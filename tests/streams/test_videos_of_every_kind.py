"""Video files of kinds that are easily misread: which picture is meant, and when it was taken."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
from av.stream import Disposition

from ekya.core.errors import UserError
from ekya.streams.datasets.sample_list import SampleListSpec
from ekya.streams.ingest.decoding import VideoInput
from ekya.streams.ingest.video import VideoSpec

SIZE = (96, 64)
MS = Fraction(1, 1000)
PLAIN_MS = tuple(range(0, 1200, 40))
EVEN: dict[str, object] = {"tick": Fraction(1, 25)}
SLOWER_MS = (*range(0, 400, 40), *range(400, 2400, 200))
"""A telephone's in the dark: 25 frames a second, and then 5."""


def picture(number: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Brighter by 8 for each number, and dark at the left."""
    image = np.full((size[1], size[0], 3), 8 * number % 200 + 40, np.uint8)
    image[:, : size[0] // 4] = 16
    return image


def write_video(
    path: Path,
    *tracks: Sequence[int],
    sizes: Sequence[tuple[int, int]] = (SIZE,),
    codec: str = "mpeg4",
    pixels: str = "yuv420p",
    ratio: Fraction | None = None,
    turned: int = 0,
    stills: Sequence[int] = (),
    tick: Fraction = MS,
    rate: int = 25,
    options: Mapping[str, str] | None = None,
    coding: Mapping[str, str] | None = None,
) -> Path:
    """Writes tracks of pictures at these ticks; those in ``stills`` are covers."""
    with av.open(str(path), "w", options=dict(options or {})) as file:
        streams = []
        for at, size in zip(range(len(tracks)), sizes, strict=True):
            stream = file.add_stream(
                "mjpeg" if at in stills else codec, rate=rate, options=dict(coding or {})
            )
            stream.width, stream.height = size
            stream.pix_fmt = "yuvj420p" if "mjpeg" in {codec, stream.codec_context.name} else pixels
            stream.codec_context.time_base = tick
            stream.codec_context.gop_size = 12
            if ratio is not None:
                stream.codec_context.sample_aspect_ratio = ratio
            if turned:
                stream.set_display_rotation(turned)
            if at in stills:
                stream.disposition = Disposition.attached_pic
            streams.append(stream)
        for at, (stream, ticks) in enumerate(zip(streams, tracks, strict=True)):
            for number, when in enumerate(ticks):
                frame = av.VideoFrame.from_ndarray(
                    picture(number if at + 1 == len(tracks) else 0, sizes[at]), "bgr24"
                )
                frame.pts, frame.time_base = when, tick
                file.mux(stream.encode(frame))
            file.mux(stream.encode())
    return path


def joined(path: Path, *parts: Path) -> Path:
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def cut(path: Path, part: float) -> Path:
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    return path


def two_tracks(ending: str) -> Callable[[Path], Path]:
    return lambda folder: write_video(
        folder / f"two{ending}", PLAIN_MS, PLAIN_MS, sizes=((64, 48), SIZE), tick=MS
    )


def of_one(name: str, ticks: Sequence[int] = PLAIN_MS, **how: object) -> Callable[[Path], Path]:
    return lambda folder: write_video(folder / name, ticks, **how)


def joined_transport_streams(*sizes: tuple[int, int]) -> Callable[[Path], Path]:
    return lambda folder: joined(
        folder / "joined.ts",
        *(
            write_video(folder / f"{at}.ts", range(30), sizes=(size,), **EVEN)
            for at, size in enumerate(sizes)
        ),
    )


@dataclass(frozen=True)
class Kind:
    """How a file is made, and what has to come of it.

    Attributes:
        make: writes it into a folder.
        times_ms: of its frames.
        sizes: of its pictures, in order of their first.
        said: patterns of what is logged, in order.
        fps: frames a second.
        parts: number of files of pictures from the first on that were joined.
        is_cut: whether only about the first half of the times is there.
    """

    make: Callable[[Path], Path]
    times_ms: Sequence[int] = PLAIN_MS
    sizes: Sequence[tuple[int, int]] = (SIZE,)
    said: Sequence[str] = ()
    fps: float = 25.0
    parts: int = 1
    is_cut: bool = False


TWICE_MS = (*PLAIN_MS, *(1200 + at for at in PLAIN_MS))
TWO = ("has several video tracks \\(64x48, 96x64\\); the largest is taken",)
JOINED = ("its time stamps go back or leap 1 times",)

KINDS = {
    "two tracks, mkv": Kind(two_tracks(".mkv"), said=TWO),
    "two tracks, mp4": Kind(two_tracks(".mp4"), said=TWO),
    "cover, mp4": Kind(
        lambda folder: write_video(folder / "a.mp4", (0,), PLAIN_MS, sizes=((256, 256), SIZE), stills=(0,))
    ),
    "wide pixels, mp4": Kind(of_one("a.mp4", ratio=Fraction(4, 3)), sizes=[(128, 64)]),
    "wide pixels, mkv": Kind(of_one("a.mkv", ratio=Fraction(4, 3)), sizes=[(128, 64)]),
    "high pixels": Kind(of_one("a.mp4", ratio=Fraction(1, 2)), sizes=[(96, 128)]),
    "pixels that cannot be": Kind(of_one("a.mkv", ratio=Fraction(1, 60))),
    "turned": Kind(of_one("a.mp4", turned=90), sizes=[(64, 96)]),
    "wide pixels, turned": Kind(of_one("a.mp4", ratio=Fraction(4, 3), turned=270), sizes=[(64, 128)]),
    "16:9 midway": Kind(
        joined_transport_streams(SIZE, (128, 72)), TWICE_MS, sizes=[SIZE, (128, 72)], said=JOINED, parts=2
    ),
    "same pixels, wider midway": Kind(
        lambda folder: joined(
            folder / "joined.ts",
            write_video(folder / "0.ts", range(30), **EVEN, ratio=Fraction(1)),
            write_video(folder / "1.ts", range(30), **EVEN, ratio=Fraction(4, 3)),
        ),
        TWICE_MS,
        sizes=[SIZE, (128, 64)],
        said=JOINED,
        parts=2,
    ),
    "ten bit": Kind(of_one("a.mkv", codec="ffv1", pixels="yuv420p10le")),
    "grey": Kind(of_one("a.mkv", codec="ffv1", pixels="gray")),
    "interlaced": Kind(
        of_one("a.mp4", range(30), **EVEN, codec="mpeg2video", coding={"flags": "+ildct+ilme"})
    ),
    "half an mp4": Kind(
        lambda folder: cut(of_one("a.mp4", options={"movflags": "faststart"})(folder), 0.6),
        said=(r"1\d of the 30 frames that its header promises came; copy",),
        is_cut=True,
    ),
    "half an mkv": Kind(
        lambda folder: cut(of_one("a.mkv")(folder), 0.5),
        said=(r"1\d of the [23]\d frames that its header promises came",),
        is_cut=True,
    ),
    "half an avi": Kind(
        lambda folder: cut(of_one("a.avi", range(30), codec="mjpeg", tick=Fraction(1, 25))(folder), 0.5),
        said=(r"1\d of the 30 frames that its header promises came",),
        is_cut=True,
    ),
    "varying, mp4": Kind(of_one("a.mp4", SLOWER_MS), SLOWER_MS, fps=20 / 2.2),
    "varying, mkv": Kind(of_one("a.mkv", SLOWER_MS), SLOWER_MS),
    "begins late, mp4": Kind(of_one("a.mp4", [7000 + at for at in PLAIN_MS])),
    "begins late, mkv": Kind(of_one("a.mkv", [3_600_000 + at for at in PLAIN_MS])),
    "begins late, ts": Kind(of_one("a.ts", range(90_000, 90_030), **EVEN)),
    "joined": Kind(joined_transport_streams(SIZE, SIZE), TWICE_MS, said=JOINED, parts=2),
    "leaps by an hour": Kind(
        of_one("a.mkv", (*PLAIN_MS, *(3_600_000 + at for at in PLAIN_MS))), TWICE_MS, said=JOINED
    ),
    "a gap of five seconds": Kind(
        of_one("a.mkv", (*PLAIN_MS, *(6200 + at for at in PLAIN_MS))),
        (*PLAIN_MS, *(6200 + at for at in PLAIN_MS)),
    ),
    "1000 frames a second": Kind(
        of_one("a.avi", range(30), codec="mjpeg", tick=MS, rate=1000),
        said=("gives no usable frame rate \\(1000.*\\); 25 is assumed",),
    ),
    "shown in another order, avi": Kind(
        of_one("a.avi", range(30), **EVEN, coding={"bf": "2", "b_strategy": "0"})
    ),
    "without stamps": Kind(of_one("a.m4v", rate=25)),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_video_of_a_kind_has_the_pictures_and_times_that_are_meant(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = kind.make(tmp_path)
    source = VideoSpec(files=(file,)).open(())
    frames = [frame for frame, _ in source.frames()]
    assert len(frames) == len(kind.times_ms) or (kind.is_cut and 9 < len(frames) < 20)
    assert list(dict.fromkeys(frame.size for frame in frames)) == list(kind.sizes)
    assert [frame.t_us / 1000 for frame in frames] == pytest.approx(kind.times_ms[: len(frames)], abs=1)
    assert all(before.t_us < after.t_us for before, after in pairwise(frames))
    assert source.fps == pytest.approx(kind.fps, rel=0.05)
    said = [message for message in caplog.messages if "cannot be decoded" not in message]
    assert len(said) == len(kind.said)
    assert all(
        message.startswith(str(file)) and re.search(pattern, message)
        for message, pattern in zip(said, kind.said, strict=True)
    )
    # The last before a cut is half a picture.
    for at, frame in enumerate(frames[:-1] if kind.is_cut else frames):
        number = at % (len(frames) // kind.parts)
        assert int(frame.image.max()) == pytest.approx(int(picture(number).max()), abs=12), (
            "it is this very frame"
        )
        assert int(frame.image.min()) == pytest.approx(16, abs=12)


def without_pictures(folder: Path) -> Path:
    with av.open(str(folder / "a.mp4"), "w") as file:
        stream = file.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        sound.rate = 8000
        file.mux(stream.encode(sound))
        file.mux(stream.encode())
    return folder / "a.mp4"


REFUSED: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "sound alone": (without_pictures, "has no video"),
    "cover alone": (of_one("a.mp4", (0,), stills=(0,)), "has no video; a cover picture is none"),
    "head alone": (lambda folder: cut(of_one("a.mp4")(folder), 0.01), "cannot be decoded as video"),
}


@pytest.mark.parametrize(("make", "why"), REFUSED.values(), ids=REFUSED)
def test_video_without_a_picture_is_refused_in_one_sentence(
    make: Callable[[Path], Path], why: str, tmp_path: Path
) -> None:
    file = make(tmp_path)
    with pytest.raises(UserError, match=f"^{file}: {why}.*, named by the key 'files'; convert it "):
        VideoSpec(files=(file,)).open(())


def test_video_as_stored_has_pixels_that_are_not_square(tmp_path: Path) -> None:
    file = write_video(tmp_path / "a.mp4", PLAIN_MS, ratio=Fraction(4, 3))
    frame, _ = next(VideoSpec(files=(file,), square_pixels=False).open(()).frames())
    assert frame.size == SIZE


def test_video_whose_second_file_begins_late_goes_on_where_the_first_ends(tmp_path: Path) -> None:
    first = write_video(tmp_path / "a.mp4", PLAIN_MS)
    second = write_video(tmp_path / "b.mkv", [3_600_000 + at for at in SLOWER_MS])
    times_ms = [frame.t_us / 1000 for frame, _ in VideoSpec(files=(first, second)).open(()).frames()]
    assert times_ms == pytest.approx([*PLAIN_MS, *(1200 + at for at in SLOWER_MS)], abs=1)


def test_sample_list_of_a_varying_video_numbers_its_frames_and_keeps_their_times(tmp_path: Path) -> None:
    file = write_video(tmp_path / "a.mp4", SLOWER_MS, ratio=Fraction(4, 3))
    listed = (2, 5, 12, 19)
    rows = "".join(f"{number},person,8,8,48,40\n" for number in listed)
    (tmp_path / "a.csv").write_text(f"idx,class,x0,y0,x1,y1\n0,person,0,0,1,1\n{rows}")
    spec = SampleListSpec(samples=tmp_path / "a.csv", video=file)
    for source in (spec.open(("person",)), spec.make_checked_source(spec.list_frames()[1], {"person": 0})):
        shown = [(frame, truth) for frame, truth in source.frames() if len(truth.boxes)][-len(listed) :]
        assert [frame.t_us / 1000 for frame, _ in shown] == pytest.approx(
            [SLOWER_MS[at] for at in listed], abs=1
        )
        for (frame, truth), number in zip(shown, listed, strict=True):
            assert frame.size == SIZE, "the list's boxes are in stored pixels"
            assert truth.boxes[-1].tolist() == [8, 8, 48, 40]
            assert int(frame.image.max()) == pytest.approx(int(picture(number).max()), abs=12)


def test_video_of_a_device_without_a_frame_yet_is_waited_for_and_no_damage(tmp_path: Path) -> None:
    def says_not_yet():
        raise av.error.BlockingIOError(11, "not yet")
        yield

    video = VideoInput(f"file:{write_video(tmp_path / 'a.mp4', PLAIN_MS)}", timeout_s=60.0)
    video._packets = says_not_yet()
    assert video.next_frame().pts == 0
    assert video.damaged == 0


def test_recording_whose_stamps_are_those_of_other_frames_takes_those_of_decoding(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = VideoSpec(files=(data_dir / "videos" / "bgslib_video03_highway.avi",)).open(())
    times_us = [frame.t_us for frame, _ in source.frames()]
    assert len(times_us) == 1699
    assert np.diff(times_us) == pytest.approx(1e6 / 60, abs=1)
    assert source.fps == pytest.approx(60, rel=1e-3)
    assert not caplog.messages
