"""Decoding by hardware, which is proven on the first frames or left to software."""

import logging
import re
from contextlib import closing
from itertools import accumulate, cycle
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from ekya.streams.ingest import hardware as hardware_module
from ekya.streams.ingest.decoding import VideoInput
from ekya.streams.ingest.hardware import HardwareDecoder, probe_hardware
from ekya.streams.ingest.process import SourceProcess
from ekya.streams.ingest.video import VideoSpec

FRAMES, SIZE = 40, (96, 64)
CHEAP, DEAR = (0.0, 0.005, 0.001), (0.0, 0.001, 0.005)
"""Seconds of a core between the clock's readings: outside, by software, by hardware."""


@pytest.fixture
def video(tmp_path):
    """H.264 whose pictures are decoded in another order than they are shown."""
    noise = np.random.default_rng(0).integers(0, 255, (*SIZE[::-1], 3)).astype(np.uint8)
    with av.open(str(tmp_path / "yard.mp4"), "w") as file:
        track = file.add_stream("libx264", rate=10, options={"bf": "2", "g": "12"})
        (track.width, track.height), track.pix_fmt = SIZE, "yuv420p"
        for number in range(FRAMES):
            image = np.roll(noise // 2, 2 * number, axis=1)
            file.mux(track.encode(av.VideoFrame.from_ndarray(image, "bgr24")))
        file.mux(track.encode())
    return tmp_path / "yard.mp4"


class FakeHardware:
    """Decodes as software does, with chroma interleaved as hardware gives it."""

    is_hwaccel = True

    def __init__(self, codec, late=0, fails_at=None, brighter=0, silent_from=None):
        self._software, self._pixels = av.CodecContext.create(codec, "r"), VideoReformatter()
        self._late, self._fails_at, self._brighter = late, fails_at, brighter
        self._silent_from, self._packets, self._held = silent_from, 0, []
        self.sample_aspect_ratio = None

    @property
    def extradata(self):
        return self._software.extradata

    @extradata.setter
    def extradata(self, value):
        self._software.extradata = value

    def decode(self, packet):
        self._packets += 1
        if self._packets == self._fails_at:
            raise av.error.ExternalError(1, "the decoder is lost")
        if self._silent_from is not None and self._packets >= self._silent_from:
            return []
        self._held += [self._interleaved(frame) for frame in self._software.decode(packet)]
        ready = len(self._held) if not packet.size else max(len(self._held) - self._late, 0)
        given, self._held = self._held[:ready], self._held[ready:]
        return given

    def _interleaved(self, frame):
        made = self._pixels.reformat(frame, format="nv12")
        if self._brighter:
            luma = np.frombuffer(made.planes[0], np.uint8) // 2 + self._brighter
            made.planes[0].update(luma.tobytes())
        made.pts, made.dts, made.time_base = frame.pts, frame.dts, frame.time_base
        return made


@pytest.fixture
def fake(monkeypatch):
    """Has the build offer CUDA that behaves as it is said."""

    def offer(**behaviour):
        opened = []

        class Context:
            @staticmethod
            def create(codec, _mode, hwaccel):
                opened.append(hwaccel)
                return FakeHardware(codec, **behaviour)

        monkeypatch.setattr(hardware_module, "hwdevices_available", lambda: ["cuda"])
        monkeypatch.setattr(hardware_module, "CodecContext", Context)
        return opened

    return offer


def clock(steps):
    return accumulate(cycle(steps)).__next__


def read(video, hardware=None):
    with closing(VideoInput(f"file:{video}", hardware=hardware)) as opened:
        return [(stamp, opened.picture_of(frame).copy()) for stamp, frame in opened.frames()]


def require_alike(pictures, others):
    assert [stamp for stamp, _ in pictures] == [stamp for stamp, _ in others]
    for (_, picture), (_, other) in zip(pictures, others, strict=True):
        np.testing.assert_array_equal(picture, other)


@pytest.mark.parametrize("late", [0, 3])
def test_proven_hardware_goes_on_alone_with_every_picture_once(video, fake, caplog, late):
    opened, hardware = fake(late=late), HardwareDecoder("auto", clock(CHEAP))
    require_alike(read(video, hardware), read(video))
    assert hardware.proven
    assert not opened[0].allow_software_fallback
    # It is not tried again: a clock that says otherwise is not read.
    hardware.cpu_s = None
    require_alike(read(video, hardware), read(video))
    assert not caplog.records


@pytest.mark.parametrize(
    ("behaviour", "steps", "why"),
    [
        ({}, DEAR, r"it takes 5 ms of a core a frame, and software 1 ms$"),
        ({"brighter": 90}, CHEAP, r"its pictures differ from those of software by \d+ of 255 levels$"),
        ({"fails_at": 3}, CHEAP, r"it fails \(the decoder is lost\)$"),
        ({"silent_from": 1}, CHEAP, r"it gives no pictures$"),
    ],
)
def test_hardware_that_is_not_proven_leaves_every_picture_to_software(
    video, fake, caplog, behaviour, steps, why
):
    fake(**behaviour)
    hardware = HardwareDecoder("cuda", clock(steps))
    pictures = read(video, hardware)
    require_alike(pictures, read(video))
    require_alike(read(video, hardware), read(video))
    assert not hardware.proven
    (said,) = caplog.messages
    assert said.startswith("video is decoded by the CPU, not by hardware: ")
    assert re.search(why, said)


def test_proven_hardware_that_falls_silent_is_replaced_by_software(video, fake, caplog):
    fake()
    hardware = HardwareDecoder("cuda", clock(CHEAP))
    read(video, hardware)
    fake(silent_from=1)
    for _ in range(6):
        pictures = read(video, hardware)
    require_alike(pictures, read(video))
    assert caplog.messages == ["video is decoded by the CPU, not by hardware: it gives no more pictures"]


@pytest.mark.parametrize("decoder", ["cuda", "auto"])
def test_source_without_a_device_is_decoded_by_the_cpu_with_one_warning(video, monkeypatch, caplog, decoder):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of the source's process, on a machine with a GPU too
    monkeypatch.setattr(logging.getLogger("ekya"), "propagate", True)
    with SourceProcess(VideoSpec(files=(video,), decoder=decoder), ()) as process:
        pictures = [frame.image for frame, _ in process.frames()]
    assert len(pictures) == FRAMES
    for picture, (_, other) in zip(pictures, read(video), strict=True):
        np.testing.assert_array_equal(picture, other)
    if decoder == "cuda":
        (said,) = caplog.messages
        assert said.startswith("video is decoded by the CPU, not by hardware: cuda: ")


def test_decoder_is_no_mps_client(monkeypatch, video):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")
    with SourceProcess(VideoSpec(files=(video,)), ()) as process:
        process.wait_open()
        assert b"CUDA_MPS" not in Path(f"/proc/{process.pid}/environ").read_bytes()


def test_probe_says_of_each_kind_why_it_is_missing(monkeypatch):
    monkeypatch.setattr(hardware_module, "hwdevices_available", lambda: ["vaapi"])
    opened = []

    class Context:
        @staticmethod
        def create(codec, _mode, hwaccel):
            opened.append(codec)
            raise av.error.PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(hardware_module, "CodecContext", Context)
    assert probe_hardware() == {
        "cuda": "cuda: this build of PyAV has none",
        "vaapi": "vaapi: driver or device does not open (Operation not permitted)",
    }
    assert opened == ["h264"]
