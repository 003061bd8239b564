"""Surroundings of the service of ``chaos.py`` that can fail: its disk, its clock, its broker, its cameras."""

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from chaos_service import shipped_fleet
from mosquitto import Broker, Consumer
from numpy.typing import NDArray

from ekya.core.errors import UserError
from ekya.streams.synthetic.source import CitySpec

SERVER = Path(__file__).resolve().parent / "rtsp_server.py"
SYSTEM_PYTHON = "/usr/bin/python3"
"""Debian's packages of GStreamer belong to Debian's own Python."""

PACKAGES = "gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-good python3-gi"
SHOWS = ("plain", "size", "codec")
"""What a camera can show; all are the same street."""

_PICTURES = 120
_SMALLER = 0.8

_DISK = "1500m"
_CLOCK = Path(__file__).resolve().with_name("chaos_clock.c")


@dataclass(slots=True, eq=False)
class Disk:
    """A disk of its own in memory for a folder, which can be made full; root alone may make one.

    Attributes:
        folder: where it is mounted; made.
    """

    folder: Path

    def mount(self) -> None:
        """Mounts it.

        Raises:
            UserError: that is not allowed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "ekya-chaos", str(self.folder))

    def fill(self) -> None:
        """Takes all free room away: the disk becomes as small as what is on it."""
        told = os.statvfs(self.folder)
        used = (told.f_blocks - told.f_bfree) * told.f_frsize
        self._run("mount", "-o", f"remount,size={used}", str(self.folder))

    def free(self) -> None:
        """Gives the room back."""
        self._run("mount", "-o", f"remount,size={_DISK}", str(self.folder))

    def close(self) -> None:
        """Unmounts it and leaves its files in the folder."""
        kept = self.folder.with_name(self.folder.name + ".kept")
        shutil.copytree(self.folder, kept, symlinks=True)
        self._run("umount", "--lazy", str(self.folder))
        shutil.rmtree(self.folder)
        kept.rename(self.folder)

    @staticmethod
    def _run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"a disk cannot be made: {done.stderr.strip()}; root may mount a tmpfs")


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock of the service's own processes, which a library that they preload sets off.

    Attributes:
        file: that says by how much.
        library: of ``chaos_clock.c``.
    """

    file: Path
    library: Path

    @classmethod
    def of(cls, folder: Path) -> "Clock":
        """Returns a clock that is right; makes its files in a folder, and the folder.

        Raises:
            UserError: there is no C compiler.
        """
        folder.mkdir(parents=True)
        clock = cls(folder / "off_s", folder / "chaos_clock.so")
        compiler = shutil.which("cc")
        if compiler is None:
            raise UserError("there is no C compiler; apt-get install gcc")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", str(clock.library), str(_CLOCK), "-ldl"], check=True
        )
        clock.file.write_bytes(bytes(8))
        return clock

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of the processes that have this clock."""
        return {"LD_PRELOAD": str(self.library), "CHAOS_CLOCK": str(self.file)}

    def set_off(self, by_s: int) -> None:
        """Sets the clock off by seconds from the machine's."""
        with self.file.open("r+b") as file:  # in place, since it is mapped
            file.write(struct.pack("=q", by_s))


@dataclass(slots=True, eq=False)
class Camera:
    """An RTSP server that keeps its port.

    Attributes:
        id: of its stream.
        videos: what it can show, by name in ``SHOWS``.
        port: 0 before its first start.
        shows: what it shows.
    """

    id: str
    videos: Mapping[str, Path]
    port: int = 0
    shows: str = "plain"
    _process: subprocess.Popen[str] | None = None

    @property
    def stream(self) -> Mapping[str, Any]:
        """Its stream in a fleet file."""
        source = {"kind": "camera", "url": f"rtsp://127.0.0.1:{self.port}/live"}
        return {"id": self.id, "source": source}

    def start(self, shows: str = "plain") -> None:
        """Starts the server; returns when it answers.

        Raises:
            UserError: it does not start.
        """
        command = [SYSTEM_PYTHON, str(SERVER), str(self.videos[shows]), "--port", str(self.port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        url = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not url:
            raise UserError(f"{SERVER.name}: it does not start")
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])
        self.shows = shows

    def kill(self) -> None:
        """Kills the server, as a power cut would. May be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def flood(self, on: bool) -> None:
        """Sends ten times as many pictures a second, or as many as it should."""
        self._signal(signal.SIGUSR1 if on else signal.SIGUSR2)

    def stall(self, on: bool) -> None:
        """Sends nothing, with the connection open, or goes on."""
        self._signal(signal.SIGSTOP if on else signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def why_no_cameras() -> str:
    """Returns why there can be no RTSP cameras here; empty if there can."""
    code = "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer"
    try:
        done = subprocess.run([SYSTEM_PYTHON, "-c", code], check=False, capture_output=True)
    except FileNotFoundError:
        return f"there is no {SYSTEM_PYTHON}"
    return f"apt-get install {PACKAGES}" if done.returncode else ""


def write_videos(source: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Renders some seconds of a street, and returns its video for each name in ``SHOWS``.

    Args:
        source: of a rendered camera, as in a fleet file.
        folder: for the videos; made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = CitySpec.model_validate(source)
    classes = tuple(spec.scenes[0].mix)
    frames = islice(spec.open(classes).frames(), _PICTURES)
    pictures = [frame.image for frame, _ in frames]
    smaller = [cv2.resize(one, None, fx=_SMALLER, fy=_SMALLER) for one in pictures]
    return {
        "plain": _written(folder / "plain.avi", "MJPG", pictures, spec.fps),
        "size": _written(folder / "size.avi", "MJPG", smaller, spec.fps),
        "codec": _written(folder / "codec.mp4", "mp4v", pictures, spec.fps),
    }


def _written(path: Path, codec: str, pictures: list[NDArray[np.uint8]], fps: float) -> Path:
    height, width = pictures[0].shape[:2]
    # JPEG over RTP has the standard Huffman tables, and FFmpeg's writer takes others.
    by = cv2.CAP_OPENCV_MJPEG if codec == "MJPG" else cv2.CAP_FFMPEG
    writer = cv2.VideoWriter(str(path), by, cv2.VideoWriter.fourcc(*codec), fps, (width, height))
    for picture in pictures:
        writer.write(picture)
    writer.release()
    return path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What surrounds the service and can fail; None for what is not there.

    Attributes:
        disk: of the service's folder.
        clock: of its processes.
        broker: that its answers go to.
        consumer: of these answers.
        cameras: RTSP cameras that it watches.
    """

    disk: Disk | None = None
    clock: Clock | None = None
    broker: Broker | None = None
    consumer: Consumer | None = None
    cameras: tuple[Camera, ...] = ()

    @property
    def sinks(self) -> list[Mapping[str, Any]]:
        """Sinks of answers in a fleet file."""
        if self.broker is None:
            return []
        place = {"host": "127.0.0.1", "port": self.broker.port, "discovery": None}
        return [{"kind": "mqtt", "name": "broker", **place}]


def opened(
    place: Path,
    wanted: Collection[str] | None,
    detector: Path,
    stack: ExitStack,
    say: Callable[[str], None],
) -> tuple[Surroundings, set[str]]:
    """Opens what surrounds a service.

    Args:
        place: folder of the service.
        wanted: faults that are wanted, as in ``Fault.what``; None for all that are possible here.
        detector: that cameras need.
        stack: closes it.
        say: for what is left out.

    Returns:
        the surroundings, and the faults that are left out.

    Raises:
        UserError: what a wanted fault needs is missing.
    """
    makers: Mapping[str, Callable[[], Any]] = {
        "full": lambda: _disk(place / "runs", stack),
        "clock": lambda: Clock.of(place / "clock"),
        "broker": lambda: _broker(place / "broker", stack),
        "camera": lambda: _camera(place / "videos", detector, stack),
    }
    made = {}
    for what, make in makers.items():
        if wanted is not None and what not in wanted:
            continue
        try:
            made[what] = make()
        except UserError as error:
            if wanted is not None:
                raise
            say(f"Without {what}: {error}")
    cameras = (made["camera"],) if "camera" in made else ()
    broker, consumer = made.get("broker", (None, None))
    around = Surroundings(made.get("full"), made.get("clock"), broker, consumer, cameras)
    return around, set(makers) - set(made)


def _disk(folder: Path, stack: ExitStack) -> Disk:
    disk = Disk(folder)
    disk.mount()
    stack.callback(disk.close)
    return disk


def _broker(folder: Path, stack: ExitStack) -> tuple[Broker, Consumer]:
    broker = Broker(folder)
    broker.start()
    stack.callback(broker.kill)
    consumer = Consumer(broker.port)
    stack.callback(consumer.close)
    return broker, consumer


def _camera(folder: Path, detector: Path, stack: ExitStack) -> Camera:
    if why := why_no_cameras():
        raise UserError(f"there is no RTSP server; {why}")
    if not detector.is_file():
        raise UserError(f"{detector}: there is no such file; name FastestDet's with --golden")
    camera = Camera("rtsp", write_videos(shipped_fleet()["streams"][-1]["source"], folder))
    stack.callback(camera.kill)
    camera.start()
    return camera


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
