"""Surroundings of the service of ``chaos.py`` that can fail: its disk, its clock, its broker, its cameras."""

import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos_cameras import Camera, why_no_cameras, write_videos
from chaos_service import shipped_fleet
from mosquitto import Broker, Consumer

from ekya.core.errors import UserError

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
    """Returns a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
