"""A real ``ekya serve`` that ``chaos.py`` drives: its processes by kind, its API, its end."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import yaml

from ekya.config.shipped import shipped_path
from ekya.core import requests
from ekya.core.errors import UserError
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.segmented_journal import list_segments
from ekya.service.leftovers import FOLDER, ray_folder
from ekya.system.processes import arguments_of, environment_of, own_processes, send_signal, still_runs

NAME = "chaos"
SINK = "answers"
_ROOT = Path(__file__).resolve().parents[1]
_EKYA = (sys.executable, "-m", "ekya")
_ASKED_S = 20.0
_CHANGED_S = 90.0
_ACTORS = {
    "ray::RetrainingActor": "retraining",
    "ray::PreparationActor": "micro-profiler",
    "ray::SchedulerActor": "scheduler",
}
KINDS = (
    "service",
    "inference",
    "spare",
    "retraining",
    "micro-profiler",
    "scheduler",
    "decoder",
    "raylet",
    "gcs_server",
)
"""Kinds of processes that die or hang; the supervisor is not among them."""

_REQUESTS = {kind.__name__ for kind in get_args(requests.Request)}


class UnansweredError(Exception):
    """The service does not answer."""


@dataclass(slots=True, eq=False)
class Service:
    """A service in a folder of its own.

    Attributes:
        folder: with the fleet file, the runs, the answers and what the service says.
        window_s: length of a window.
        capacity: in GPUs; one core stands for one.
        port: of its page and API; 0 for a free one.
        environment: further variables of its processes.
    """

    folder: Path
    window_s: float = 12.0
    capacity: float = 1.0
    port: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    cameras: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def prepare(
        self,
        streams: int,
        others: Sequence[Mapping[str, Any]] = (),
        sinks: Sequence[Mapping[str, Any]] = (),
        detector: Path | None = None,
    ) -> None:
        """Writes the fleet file, over the first rendered cameras of the shipped fleet.

        Args:
            streams: number of rendered cameras.
            others: further streams.
            sinks: of answers, besides the file.
            detector: golden model where others are video, in which objects must be found; FastestDet's file.
        """
        shipped = shipped_fleet()
        self.cameras = {stream["id"]: stream for stream in (*shipped["streams"], *others)}
        fleet = {key: value for key, value in shipped.items() if key not in ("name", "windows")}
        fleet |= {
            "gpus": self.capacity,
            "window_s": self.window_s,
            "http": {"port": self.port},
            "answers": [{"kind": "jsonl", "name": SINK, "folder": str(self.folder)}, *sinks],
            "streams": [*shipped["streams"][:streams], *others],
        }
        if detector is not None:
            fleet["golden"] = {"model": "fastestdet", "weights": str(detector)}
            fleet["classes"] = [*shipped["classes"], "background"]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))

    @property
    def runs(self) -> RunFolder:
        """Folder of the service."""
        return RunFolder(self.folder / "runs" / NAME)

    @property
    def answers(self) -> Path:
        """File of the answers."""
        return self.folder / f"{SINK}.jsonl"

    @property
    def said(self) -> Path:
        """File of what the service says."""
        return self.folder / "said.log"

    @property
    def ray(self) -> Path:
        """Folder of its Ray, whether it is there or not."""
        path = ray_folder(self.runs.path)
        with suppress(OSError):
            path.rmdir()  # It was made just now.
        return path

    @property
    def ray_logs(self) -> Path:
        """Folder of the logs of its Ray, by a name that does not end with the session."""
        return self.ray / "ray" / "session_latest" / "logs"

    def start(self) -> None:
        """Starts the supervisor."""
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        with self.said.open("a") as log:
            self.process = subprocess.Popen(
                [*_EKYA, "serve", "fleet.yaml", "--name", NAME],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, **self.environment},
                cwd=self.folder,
                start_new_session=True,
            )

    def stop(self, within_s: float = 60.0) -> int | None:
        """Stops it in order and returns the exit code; None if that takes too long."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kills what is left, whatever it is."""
        for process in self.processes():
            send_signal(process, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def cut_power(self) -> None:
        """Kills all processes at once: stopped first, so that none sees another's end."""
        found = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                send_signal(process, number)
        if self.process is not None:
            self.process.wait()
        psutil.wait_procs(found, timeout=10)

    def ask(self, path: str) -> Any:
        """Returns the JSON of a page of the API.

        Raises:
            UnansweredError: there is no answer.
        """
        return json.loads(self._request("GET", f"/api/v1/{path}", None, _ASKED_S))

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Asks for a change.

        Raises:
            UserError: the service refuses.
            UnansweredError: there is no answer, so it is not known whether the change holds.
        """
        self._request(method, f"/api/v1/{path}", body, _CHANGED_S)

    def status(self) -> Mapping[str, Any] | None:
        """Returns what the service says of itself; None if it does not answer."""
        try:
            told: Mapping[str, Any] = self.ask("status")
        except UnansweredError:
            return None
        return told

    def pid(self) -> int | None:
        """Returns the pid of the service process; None without one."""
        if self.process is None or self.process.poll() is not None:
            return None
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if "serve" in arguments_of(child):
                    return child.pid
        return None

    def restarts(self) -> int:
        """Returns how often supervisors have started the service again, also on a full disk."""
        return self.said.read_text(errors="replace").count("; it is started again in ")

    def processes(self) -> list[psutil.Process]:
        """Returns all its processes: those below the supervisor, and those that have its folder."""
        found = {}
        if self.process is not None and self.process.poll() is None:
            with suppress(psutil.Error):
                top = psutil.Process(self.process.pid)
                found = {one.pid: one for one in (top, *top.children(recursive=True)) if still_runs(one)}
        name = str(self.runs.path.resolve())
        for process in own_processes():
            if process.pid not in found and environment_of(process).get(FOLDER) == name:
                found[process.pid] = process
        return list(found.values())

    def by_kind(self) -> dict[str, list[psutil.Process]]:
        """Returns its processes by kind; an inference process without a camera is the spare one."""
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in KINDS}
        processes = self.processes()
        parents = set()
        for process in processes:
            if any("process_child" in part for part in arguments_of(process)):
                found["decoder"].append(process)
                with suppress(psutil.Error):
                    parents.add(process.ppid())
        service = self.pid()
        for process in processes:
            title = (arguments_of(process) or [""])[0]
            kind = next((kind for actor, kind in _ACTORS.items() if title.startswith(actor)), None)
            if process.pid == service:
                kind = "service"
            elif title.startswith(("ray::InferenceActor", "ray::SpareInference")):
                kind = "inference" if process.pid in parents else "spare"
            elif Path(title).name in ("raylet", "gcs_server"):
                kind = Path(title).name
            if kind is not None:
                found[kind].append(process)
        return found

    def pss_bytes(self) -> int:
        """Returns the memory of all its processes; what they share counts once."""
        total = 0
        for process in self.processes():
            with suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float) -> bytes:
        try:
            place = json.loads((self.runs.path / "service.json").read_text())
            token = (self.runs.path / "token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            data = None if method == "GET" else json.dumps(body or {}).encode() if body else b""
            url = f"http://127.0.0.1:{place['port']}{path}"
            with urlopen(Request(url, data, headers, method=method), timeout=within_s) as answer:
                told: bytes = answer.read()
                return told
        except HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code in (400, 404):
                raise UserError(f"{method} {path}: {error.code} {said}") from error
            raise UnansweredError(f"{method} {path}: {error.code} {said}") from error
        except (OSError, ValueError) as error:
            raise UnansweredError(f"{method} {path}: {error}") from error


def shipped_fleet() -> Mapping[str, Any]:
    """Returns the fleet of rendered cameras that Ekya brings along."""
    fleet: Mapping[str, Any] = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    return fleet


def tear(service: Service, chance: random.Random) -> str:
    """Cuts off what a power cut may take from the disk, and returns what that was.

    Of the newest journal segment these are bytes after the last step with commands or a request, which is
    synced. Of the newest part of answers of a camera it is more than a file system should lose, since parts
    are synced: a disk that reports too much.
    """
    said = []
    if numbers := list_segments(service.runs):
        path = service.runs.journal_segment(numbers[-1])
        lines = path.read_bytes().splitlines(keepends=True)
        synced = _last_synced(lines)
        loose = sum(map(len, lines[synced + 1 :]))
        cut = chance.randint(0, loose)
        os.truncate(path, path.stat().st_size - cut)
        said.append(f"{cut} of {loose} bytes of {path.name}")
    parts = sorted(_parts(service), key=lambda part: part.stat().st_mtime)
    if parts:
        size = parts[-1].stat().st_size
        cut = chance.randint(1, size)
        os.truncate(parts[-1], size - cut)
        said.append(f"{cut} of {size} bytes of a part of {parts[-1].parent.parent.name}")
    return ", ".join(said)


def _last_synced(lines: Sequence[bytes]) -> int:
    """Returns the place of the last line of a journal that is certainly on disk."""
    last = 0
    for at, line in enumerate(lines):
        with suppress(ValueError):
            record = json.loads(line)
            if record.get("commands"):
                last = at
            elif any(one["kind"] in _REQUESTS for one in record.get("events", ())):
                last = at + 1  # its step ends with the decision
    return last


def _parts(service: Service) -> Iterator[Path]:
    return (service.runs.path / "predictions").glob("*/*.parts/*.parquet")


def until(condition: Callable[[], bool], within_s: float, every_s: float = 0.5) -> float | None:
    """Waits for a condition and returns the seconds that took; None if it did not come true in time."""
    began_s = time.monotonic()
    while True:
        if condition():
            return time.monotonic() - began_s
        if time.monotonic() - began_s > within_s:
            return None
        time.sleep(every_s)
