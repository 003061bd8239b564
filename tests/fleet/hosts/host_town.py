"""A fleet of three sites, each on a host, and an office where `ekya fleet run` is called."""

import json
import os
import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from waiting import LONG_GUARD_S, wait_until

from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

SITES = {"north": 1, "south": 2, "west": 3}
"""Hosts by the site that is on each."""
OFFICE = 4
"""Host on which `ekya fleet run` is called."""
PORT, ITS_PORT = 7070, 7071
WINDOW_S, WINDOWS = 36, 3
DRIFT = {"lighting": "night", "livery": "south", "view": "side", "clothing": "summer"}
"""Change of every street after ``WINDOWS`` windows, so that retrainings are worth something again."""
EKYA = (sys.executable, "-m", "ekya")


@dataclass(frozen=True)
class Server:
    """A server of the town: its cameras, its GPUs, and the share of preparations."""

    streams: tuple[str, ...]
    gpus: float
    share_milli: int


SMALL = {
    "north": Server(("cam-1", "cam-2"), 0.35, 250),
    "south": Server(("cam-3",), 0.85, 250),
    "west": Server(("cam-4",), 0.3, 200),
}
"""North cannot train beside its inference, and south has room."""


ROOM = """
import os, sys
from waiting import LONG_GUARD_S, wait_until
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.sites.client import SiteHandle

address, name, window_us = sys.argv[1], sys.argv[2], int(sys.argv[3])
server, rooms = SiteHandle(address, name, os.environ["EKYA_FLEET_TOKEN"]), []

def has_room():
    try:
        now_us = server.call("run_state").result(10).now_us
        until_us = (now_us // window_us + 1) * window_us
        rooms.append(server.call("call_peer", "spare_room", now_us, until_us).result(10))
    except (CallError, TimeoutError):
        return False
    return rooms[-1] is not None

wait_until(has_room, guard_s=LONG_GUARD_S)
print(rooms[-1].site)
"""
"""Asks a server for what it could lend until its window ends, until it could lend something."""


class Town:
    """Three sites that listen, and the commands of the office.

    Attributes:
        network: of the hosts.
        folder: with a folder for each host, as if each had its own disk.
        servers: by site. Each camera shows one of the four streets of the shipped fleet.
    """

    def __init__(self, network, folder, servers=SMALL):
        self.network, self.folder, self.servers, self._sites = network, folder, servers, {}
        self.environment = os.environ | {
            "EKYA_FLEET_TOKEN": secrets.token_urlsafe(32),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
        }
        for site in SITES:
            (self.folder / site).mkdir()
            self._write(self.folder / site)
        (self.folder / "office").mkdir()
        # Nothing of a fleet has to be where the command is called.
        self._write(self.folder / "office", with_fleet=False)

    def start(self, site):
        """Starts a site if it is not there, and waits until it listens."""
        if site in self._sites and self._sites[site].poll() is None:
            return
        told = self.folder / site / "site.json"
        told.unlink(missing_ok=True)
        command = [*EKYA, "fleet", "site", "town.yaml", "--site", site, "--json", told]
        with (self.folder / f"{site}.log").open("ab") as log:
            self._sites[site] = self.network.popen(
                SITES[site],
                command,
                cwd=self.folder / site,
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        wait_until(told.is_file, (self.folder / f"{site}.log").read_text)

    def kill(self, site):
        """Kills the process of a site, and nothing else."""
        self._sites[site].kill()
        self._sites[site].wait()

    def run(self, name, *words):
        """Begins a run, or another command of `ekya fleet run`, in the office."""
        command = [*EKYA, "fleet", "run", *words, "--listen", f"{self.network.address(OFFICE)}:{ITS_PORT}"]
        return self.network.popen(
            OFFICE,
            [*command, "--json", f"{name}.json"],
            cwd=self.folder / "office",
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def doctor(self, *words):
        """Returns what `ekya fleet doctor` finds from the office."""
        told = self.folder / "office" / "doctor.json"
        command = [*EKYA, "fleet", "doctor", "town.yaml", *words, "--json", told]
        ended = self.network.run(
            OFFICE,
            command,
            cwd=self.folder / "office",
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert told.is_file(), ended.stderr
        return json.loads(told.read_text())

    def begins(self, name, *words, servers="town.yaml"):
        """Begins a run and waits until its first window has opened everywhere; returns its process."""
        for site in SITES:
            self.start(site)
        process = self.run(name, servers, "--name", name, *words)

        def begun():
            assert process.poll() is None, process.stderr.read()
            return all(self.opened(site, name) for site in SITES)

        wait_until(begun, guard_s=LONG_GUARD_S)
        return process

    def opened(self, site, name):
        journal = self.folder / site / "runs" / name / site / "journal.jsonl"
        return journal.is_file() and "WindowOpened" in journal.read_text()

    def room(self, name, site):
        """Returns the site that a server names when the coordinator's machine asks what it could lend."""
        run = json.loads((self.folder / "office" / "runs" / name / "live.json").read_text())["run"]
        address = f"{self.network.address(SITES[site])}:{PORT}"
        words = (address, f"server-{run}", str(WINDOW_S * 1_000_000))
        command = [sys.executable, "-c", ROOM, *words]
        return self.network.run(
            OFFICE, command, env=self.environment, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def summary(self, name):
        return json.loads((self.folder / "office" / f"{name}.json").read_text())

    def loans(self, name):
        """Returns the records of loans that are written whole."""
        file = self.folder / "office" / "runs" / name / "loans.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def lending(self, name):
        """Returns the hosts of the loans that are under way."""
        records = self.loans(name)
        over = {one["loan"] for one in records if "outcome" in one}
        under_way = [one for one in records if "site" in one and one["loan"] not in over]
        return {part["host"] for one in under_way for part in one["parts"]}

    def silent_windows(self, name, site):
        """Returns the streams of a site with the windows in which they got no answer."""
        folder, opened = RunFolder(self.folder / "office" / "runs" / name / site), self.windows(name, site)
        return [
            (stream, window.index)
            for stream in self.servers[site].streams
            for window in opened
            if not answered_within(folder, stream, window)
        ]

    def deaths(self, name, site):
        """Returns the processes of a site's own streams that died."""
        return self._events(name, site, ev.WorkerDied)

    def windows(self, name, site):
        """Returns the windows of a site that have opened."""
        return self._events(name, site, ev.WindowOpened)

    def _events(self, name, site, kind):
        _, _, turns = read_journal(RunFolder(self.folder / "office" / "runs" / name / site).journal)
        return [one for turn in turns for one in turn.events if isinstance(one, kind)]

    def _write(self, folder, with_fleet=True):
        if with_fleet:
            raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
            raw |= {"window_s": WINDOW_S, "windows": WINDOWS}
            raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
            raw["streams"] = [
                self._camera(stream, raw["streams"][number % 4])
                for number, stream in enumerate(sorted(self._streams()))
            ]
            (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
        servers = [self._server(site, server) for site, server in self.servers.items()]
        content = {"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": 20}, "servers": servers}
        (folder / "town.yaml").write_text(yaml.safe_dump(content))

    def _streams(self):
        return [stream for server in self.servers.values() for stream in server.streams]

    def _camera(self, stream, street):
        shown = {key: its for key, its in street["source"]["scenes"][-1].items() if key != "ramp_s"}
        scenes = [shown | {"at_s": 0}, shown | DRIFT | {"at_s": WINDOWS * WINDOW_S - 2}]
        return street | {"id": stream, "source": street["source"] | {"fps": 3, "scenes": scenes}}

    def _server(self, site, server):
        preparation = {"share_milli": server.share_milli, "fraction": 0.15}
        return {
            "site": site,
            "address": f"{self.network.address(SITES[site])}:{PORT}",
            "streams": list(server.streams),
            "samples_may_leave": "crops",
            "changes": {"gpus": server.gpus, "preparation": preparation},
        }


def answered_within(folder, stream, window):
    """Returns whether any frame of a stream was analysed in a window, which is its ``WindowOpened``."""
    read = read_predictions(folder.predictions(stream))
    return bool(np.any(read.analysed & (read.t_us >= window.t_us) & (read.t_us < window.end_us)))
