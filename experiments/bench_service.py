"""Times of a service: first start, restart after kill -9, a camera that is added, page and metrics, memory.

    python experiments/bench_service.py
    python experiments/bench_service.py --cameras 10 --settle 120 --json -

`ekya serve` is started in a separate process, as by a user, with rendered cameras, and asked over its API.

- Start: from the call of the command to the first answer of every camera.
- Added: from the request that adds a camera to the camera's first answer over the API.
- Latency: 95th percentile of `/`, `/metrics`, `/api/v1/status` and pictures, asked in turn for `--settle`
  seconds.
- Back: from `kill -9` of the service process to a new answer of every camera.
- Stop: from SIGTERM to the end of the command; what it leaves behind is counted.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
import yaml
from recipe import RESULTS, Json, Out, publish_rows, run

from ekya.cli.command import open_output
from ekya.config.fleet_file import DEFAULT_FLEET
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.service.http.access import read_token
from ekya.service.http.place import read_place
from ekya.system.files import write_text_atomic

_PATHS = ("/", "/metrics", "/api/v1/status", "/api/v1/cameras/{camera}/picture.jpg")
_WITHIN_S = 180.0


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    Attributes:
        cameras: number of cameras at the start.
        start_s, added_s, back_s, stop_s: as above, in seconds.
        latency_ms: 95th percentile by path, in the order of the paths.
        processes, pss_mib: of the whole tree, after it has settled.
        left: processes that are left after the end.
        load: load average of the machine meanwhile.
    """

    cameras: int
    start_s: float
    added_s: float
    latency_ms: dict[str, float]
    back_s: float
    stop_s: float
    processes: int
    pss_mib: int
    left: int
    load: float


class Service:
    """A service in a folder, started by ``start``."""

    def __init__(self, folder: Path, cameras: int) -> None:
        shipped = yaml.safe_load(shipped_path(DEFAULT_FLEET).read_text(encoding="utf-8"))
        self.streams: list[dict[str, Any]] = [
            {**shipped["streams"][number % len(shipped["streams"])], "id": f"cam-{number + 1:02d}"}
            for number in range(cameras + 1)
        ]
        for number, stream in enumerate(self.streams):
            stream["source"] = {**stream["source"], "seed": 1000 + number}
        fleet = {key: value for key, value in shipped.items() if key not in ("windows", "name")}
        for key in ("gpus", "window_s", "preparation"):
            fleet.pop(key, None)  # chosen for the machine and the cameras
        fleet |= {"http": {"port": 0}, "streams": self.streams[:cameras]}
        write_text_atomic(folder / "fleet.yaml", yaml.safe_dump(fleet))
        self._folder, self._runs = folder, folder / "runs" / "bench"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and returns when it is healthy."""
        with (self._folder / "said.log").open("ab") as log:
            words = [sys.executable, "-m", "ekya", "serve", "fleet.yaml", "--name", "bench"]
            self.process = subprocess.Popen(words, stdout=log, stderr=log, cwd=self._folder)
        self.until(self.answers)

    def ask(self, path: str, method: str = "GET", values: dict[str, Any] | None = None) -> bytes:
        """Returns the body of an answer."""
        place = read_place(self._runs)
        if place is None:
            raise OSError("it does not run yet")
        headers = {"Authorization": f"Bearer {read_token(self._runs)}", "Content-Type": "application/json"}
        connection = HTTPConnection(place.host, place.port, timeout=60)
        try:
            connection.request(method, path, None if values is None else json.dumps(values), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise OSError(f"{method} {path}: {content.decode(errors='replace')}")
        return content

    def answers(self) -> bool:
        """Returns whether it is healthy."""
        with suppress(OSError, UserError):
            return bool(self.ask("/healthz"))
        return False

    def answer(self, camera: str) -> bytes:
        """Returns a camera's newest answer; empty if there is none."""
        with suppress(OSError, UserError):
            return self.ask(f"/api/v1/cameras/{camera}/answer")
        return b""

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition.

        Raises:
            UserError: it does not come true, or the service has ended.
        """
        give_up_s = time.monotonic() + _WITHIN_S
        while not condition():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > give_up_s:
                said = (self._folder / "said.log").read_text(encoding="utf-8")[-2000:]
                raise UserError(f"the service does not answer; it says: {said}")
            time.sleep(0.05)

    @property
    def service_pid(self) -> int:
        """Process that answers."""
        place = read_place(self._runs)
        assert place is not None
        return place.pid


def main(
    cameras: Annotated[int, typer.Option(min=1, help="Rendered cameras.")] = 4,
    settle: Annotated[float, typer.Option(min=5, help="Seconds for which page and API are asked.")] = 60.0,
    out: Out = RESULTS,
    json_to: Json = None,
) -> None:
    """Measure the times of a service on this machine."""
    with open_output(json_to) as told:
        row = _measured(cameras, settle)
        flat = {**asdict(row), **{f"p95_ms {path}": ms for path, ms in row.latency_ms.items()}}
        del flat["latency_ms"]
        publish_rows(told, "A service", [flat], out / f"bench_service_{cameras}.csv")


def _measured(cameras: int, settle_s: float) -> Row:
    with tempfile.TemporaryDirectory(prefix="ekya-bench-") as name:
        service = Service(Path(name), cameras)
        try:
            began_s = time.monotonic()
            service.start()
            assert service.process is not None
            service.until(lambda: all(service.answer(one["id"]) for one in service.streams[:-1]))
            start_s = time.monotonic() - began_s
            new = service.streams[-1]
            began_s = time.monotonic()
            service.ask("/api/v1/cameras", "POST", {"id": new["id"], "source": new["source"]})
            service.until(lambda: service.answer(new["id"]) != b"")
            added_s = time.monotonic() - began_s
            latency_ms = _latencies(service, settle_s)
            tree = [psutil.Process(service.process.pid), *_below(service.process.pid)]
            pss_mib = sum(one.memory_full_info().pss for one in tree) >> 20
            last = {one["id"]: service.answer(one["id"]) for one in service.streams}
            began_s = time.monotonic()
            os.kill(service.service_pid, signal.SIGKILL)
            service.until(lambda: not service.answers())
            service.until(lambda: all(service.answer(one) not in (b"", its) for one, its in last.items()))
            back_s = time.monotonic() - began_s
            tree = _below(service.process.pid)
            began_s = time.monotonic()
            service.process.terminate()
            service.process.wait(120)
            stop_s = time.monotonic() - began_s
            _, left = psutil.wait_procs(tree, timeout=3)
        finally:
            if service.process is not None and service.process.poll() is None:
                service.process.terminate()
                service.process.wait(120)
        seconds = (round(value, 1) for value in (start_s, added_s, back_s, stop_s))
        start, added, back, stop = seconds
        load = round(os.getloadavg()[1], 1)
        return Row(cameras, start, added, latency_ms, back, stop, len(tree) + 1, pss_mib, len(left), load)


def _latencies(service: Service, for_s: float) -> dict[str, float]:
    took_ms: dict[str, list[float]] = {path: [] for path in _PATHS}
    until_s, number = time.monotonic() + for_s, 0
    while time.monotonic() < until_s:
        for path, values in took_ms.items():
            camera = service.streams[number % (len(service.streams) - 1)]["id"]
            began_s = time.monotonic()
            service.ask(path.format(camera=camera))
            values.append((time.monotonic() - began_s) * 1000)
            number += 1
        time.sleep(0.5)
    return {path: round(statistics.quantiles(values, n=20)[-1], 1) for path, values in took_ms.items()}


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


if __name__ == "__main__":
    run(main)
