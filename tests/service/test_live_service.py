"""A service as a user has it: a process that is started, asked, changed, killed and stopped."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml
from waiting import HANG_GUARD_S, wait_until

from ekya.config.shipped import shipped_path
from ekya.service.http.guard import is_loopback
from ekya.system.processes import environment_of

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
EKYA = (sys.executable, "-m", "ekya")
FPS, WIDTH = 10, 320
"""Of the shipped cameras."""

LEFT = [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]

SECRETS = {"HOOK_PASSWORD": "pass-7d1c9", "HOOK_TOKEN": "token-3fb82", "CAM_PASSWORD": "word-51e0a"}


class Service:
    """A service in a folder of its own, from ``start`` until ``stop``."""

    def __init__(self, folder, streams):
        self.folder = folder
        self.runs = folder / "runs" / "yard"
        shipped = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
        self.cameras = {stream["id"]: stream for stream in shipped["streams"]}
        fleet = {key: value for key, value in shipped.items() if key not in ("name", "windows")}
        fleet |= {
            "gpus": 1.0,
            "window_s": 12.0,
            "http": {"port": 0},
            "answers": [
                {"kind": "jsonl", "name": "file", "folder": str(folder)},
                {
                    "kind": "webhook",
                    "url": "http://me:${HOOK_PASSWORD}@127.0.0.1:9/",
                    "bearer": "${HOOK_TOKEN}",
                },
            ],
            "streams": [self.cameras[stream] for stream in streams],
        }
        (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        self.process = None

    def start(self):
        """Starts it, and returns when it answers."""
        log = (self.folder / "said.log").open("a")
        words = [*EKYA, "serve", "fleet.yaml", "--name", "yard"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **SECRETS}
        self.process = subprocess.Popen(words, stdout=log, stderr=log, env=environment, cwd=self.folder)
        self.until(self.healthy)

    def ctl(self, *words):
        """Runs ``ekya ctl``; returns its exit code and what it says."""
        done = subprocess.run(
            [*EKYA, "ctl", *words, "--name", "yard"],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def ask(self, path):
        place = json.loads((self.runs / "service.json").read_text())
        token = (self.runs / "token").read_text().strip()
        url = f"http://127.0.0.1:{place['port']}{path}"
        request = Request(url, headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=HANG_GUARD_S) as answer:
            return answer.read()

    def healthy(self):
        try:
            return self.ask("/healthz") is not None
        except (OSError, URLError, ValueError):
            return False

    def camera(self, name):
        """Returns the status of a camera; None where there is none."""
        return next((camera for camera in self.status()["cameras"] if camera["id"] == name), None)

    def series(self, camera):
        return json.loads(self.ask(f"/api/v1/cameras/{camera}/series"))

    def status(self):
        return json.loads(self.ask("/api/v1/status"))

    def until(self, condition):
        """Waits for a condition, as long as the service runs."""

        def holds():
            assert self.process.poll() is None, "the service has ended"
            return condition()

        wait_until(holds, lambda: (self.folder / "said.log").read_text()[-4000:])

    def ids(self, camera, left=False):
        """Returns the numbers of a camera's frames whose answers have arrived, in order of arrival.

        With ``left`` only of those in which something stands in the left half of the picture.
        """
        path = self.folder / "file.jsonl"
        told = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        return [
            one["frame"]
            for one in told
            if one["camera"] == camera
            and (not left or any(x0 + x1 < WIDTH for x0, _, x1, _ in (of["box"] for of in one["objects"])))
        ]

    def process_of_service(self):
        return json.loads((self.runs / "service.json").read_text())["pid"]

    def family(self):
        """Returns its processes: the supervisor, and all below it."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def stop(self):
        """Stops it, and returns its exit code and the processes that are left."""
        family = self.family()[1:]
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_GUARD_S)
        _, left = psutil.wait_procs(family, timeout=HANG_GUARD_S)
        return code, left

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(HANG_GUARD_S)
            except subprocess.TimeoutExpired:
                self.process.kill()


def listening_of(process):
    """Returns the addresses of other machines, or of all, on which a process listens."""
    with suppress(psutil.NoSuchProcess):
        sockets = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        return [
            f"{process.name()} {one.laddr}"
            for one in sockets
            if not is_loopback(one.laddr.ip.removeprefix("::ffff:"))
        ]
    return []


def told_of(process):
    """Returns the command line of a process."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def tells(path, secrets):
    """Returns whether a file that is not there for secrets holds one."""
    if not path.is_file() or path.name == "token":
        return False
    content = path.read_bytes()
    return any(secret.encode() in content for secret in secrets)


def secrets_of(service):
    return [*SECRETS.values(), (service.runs / "token").read_text().strip()]


def assert_in_order(ids, before):
    """Checks the answers of a camera: the first `before` of them came before the service was killed."""
    for of_one_process in (ids[:before], ids[before:]):
        assert of_one_process == sorted(set(of_one_process)), "answers are in order, and none comes twice"
    again = set(ids[:before]) & set(ids[before:])
    assert again <= set(ids[:before][-2 * FPS :]), "but for what was sent in the last second before a crash"


def assert_private(service):
    """Checks that a service listens on this machine alone and that its secrets stand where they belong."""
    family = service.family()
    assert [place for process in family for place in listening_of(process)] == []
    ray_folder = Path(next(filter(None, (environment_of(one).get("RAY_TMPDIR") for one in family[1:]))))
    assert ray_folder.stat().st_mode & 0o077 == 0
    secrets = secrets_of(service)
    assert not any(secret in told_of(process) for process in family for secret in secrets)
    assert [path for path in ray_folder.rglob("*") if tells(path, secrets)] == []
    code, said = service.ctl("add", "gate", "--url", f"rtsp://me:{SECRETS['CAM_PASSWORD']}@127.0.0.1:9/live")
    assert (code, SECRETS["CAM_PASSWORD"] in said) == (2, False), said


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path, ["cam-1", "cam-2"])
    yield made
    made.kill()


def test_service_is_changed_killed_and_goes_on(service) -> None:
    service.start()
    service.until(lambda: service.ids("cam-1"))
    assert service.ask("/api/v1/cameras/cam-1/picture.jpg")[:2] == b"\xff\xd8"

    (service.folder / "third.yaml").write_text(yaml.safe_dump({"source": service.cameras["cam-3"]["source"]}))
    code, said = service.ctl("add", "third", "--stream", "third.yaml")
    assert code == 0, said
    service.until(lambda: service.ids("third"))
    assert service.ctl("add", "third", "--stream", "third.yaml")[0] == 2, "it is there"

    assert_private(service)
    assert service.ctl("pause", "cam-2")[0] == 0
    assert service.ctl("freeze", "cam-1")[0] == 0
    assert service.ctl("set", "cam-1", "--mask", json.dumps(LEFT))[0] == 0
    masked_from = service.ids("cam-1")[-1] + 3 * FPS  # answers take a while to their sinks
    code, said = service.ctl("set", "--scheduler", "thief", "--gpus", "0.9", "--labels", "40")
    assert code == 0, said
    service.until(lambda: service.status()["capacity_milli"] == 900)
    assert service.status()["scheduler"] == "thief"
    service.until(lambda: service.camera("cam-2")["state"] == "paused")
    service.until(lambda: service.status()["window"] >= 1 and service.ids("cam-1")[-1] > masked_from)
    for path in ("/", "/metrics"):
        assert service.ask(path)

    before, began_unix_s = service.ids("cam-1")[-1], service.series("cam-1")["unix_s"][0]
    served = service.camera("cam-1")["model_version"]
    os.kill(service.process_of_service(), signal.SIGKILL)
    service.until(lambda: not service.healthy())
    sent = {camera: len(service.ids(camera)) for camera in ("cam-1", "cam-2")}
    service.until(service.healthy)
    service.until(lambda: service.ids("cam-1")[-1] > before + 5)
    assert service.camera("cam-2")["state"] == "paused"
    assert (service.camera("cam-1")["frozen"], service.camera("cam-1")["mask"]) == (True, [LEFT])
    assert service.camera("cam-1")["model_version"] == served
    assert service.camera("third") is not None
    assert service.series("cam-1")["unix_s"][0] == began_unix_s, "the page does not begin anew"
    assert (service.status()["scheduler"], service.status()["capacity_milli"]) == ("thief", 900)
    assert json.loads((service.runs / "restarts.json").read_text())["count"] == 1
    assert b"ekya_service_restarts_total 1.0" in service.ask("/metrics")

    assert service.ctl("resume", "cam-2")[0] == 0
    assert service.ctl("remove", "third")[0] == 0
    seen = service.ids("cam-2")[-1]
    service.until(lambda: service.ids("cam-2")[-1] > seen)
    service.until(lambda: service.camera("third") is None)

    code, left = service.stop()
    assert (code, left) == (0, [])
    assert max(service.ids("cam-1", left=True)) < masked_from < before < service.ids("cam-1")[-1]
    for camera, before in sent.items():
        assert_in_order(service.ids(camera), before)
    assert "Traceback" not in (service.folder / "said.log").read_text()
    assert [path for path in service.folder.rglob("*") if tells(path, secrets_of(service))] == []
    assert [path for path in service.runs.rglob("*") if path.stat().st_mode & 0o077] == []
