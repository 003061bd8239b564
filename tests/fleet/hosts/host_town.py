"""Three services that lend to each other, each on a host."""

import json
import os
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import numpy as np
import yaml
from waiting import LONG_GUARD_S, wait_until

from ekya.config.run_options import ENDS
from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

SITES = {"north": 1, "south": 2, "west": 3}
"""Hosts by the service that is on each."""
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
import sys
from waiting import LONG_GUARD_S, wait_until
from ekya.config.fleet_sections import LenderConfig
from ekya.fleet.run.live.lender import Lender

lender = Lender(LenderConfig(url=sys.argv[1], insecure=True), "f" * 16, lambda: 0)
wait_until(lambda: lender.spare_room(0, int(sys.argv[2])) is not None, guard_s=LONG_GUARD_S)
"""
"""Asks a service for what it could lend until it could lend something."""


class Town:
    """Three services, which are started anew for each run.

    Attributes:
        network: of the hosts.
        folder: with a folder for each host, as if each had its own disk.
    """

    def __init__(self, network, folder, mb_s=20):
        self.network, self.folder, self._mb_s, self._services = network, folder, mb_s, {}
        self._tokens = {site: secrets.token_urlsafe(32) for site in SITES}
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
            ENDS: "1",
            **{f"{site.upper()}_TOKEN": token for site, token in self._tokens.items()},
        }
        for site in SITES:
            (folder / site).mkdir()

    def start(self, name, site):
        """Starts a service of a run; one that has died goes on with its folder."""
        own = self.folder / site / name / site
        own.mkdir(parents=True, exist_ok=True)
        (own / "token").write_text(self._tokens[site])
        named = ("--name", site, "--runs", name)
        command = [*EKYA, "serve", f"{name}.yaml", *named, "--shares", "cpu"]
        with (self.folder / f"{site}.log").open("ab") as log:
            self._services[site] = self.network.popen(
                SITES[site], command, cwd=self.folder / site, env=self.environment, stdout=log, stderr=log
            )

    def begins(self, name, windows=WINDOWS, tier="net"):
        """Starts all services of a run and waits until the first window has opened everywhere."""
        for site in SITES:
            self._write(name, site, windows, tier)
            self.start(name, site)

        def begun():
            for site, service in self._services.items():
                assert service.poll() is None, self.log(site)
            return all(self._opened(name, site) for site in SITES)

        wait_until(begun, guard_s=LONG_GUARD_S)

    def wait(self, *sites):
        """Waits until services have ended in order."""
        for site in sites or SITES:
            assert self._services[site].wait(LONG_GUARD_S) == 0, self.log(site)

    def kill(self, site):
        """Kills a service with its supervisor; the host remains."""
        self.network.kill(SITES[site])
        self._services[site].wait()

    def log(self, site):
        return (self.folder / f"{site}.log").read_text()

    def room(self, site):
        """Returns when a service could lend something, as north sees it."""
        url = f"http://ekya:{self._tokens[site]}@{self.network.address(SITES[site])}:8470"
        url = url.replace(self._tokens[site], f"${{{site.upper()}_TOKEN}}")
        command = [sys.executable, "-c", ROOM, url, str(WINDOW_S * 1_000_000)]
        ended = self.network.run(SITES["north"], command, env=self.environment, stderr=PIPE, text=True)
        assert ended.returncode == 0, ended.stderr

    def run_folder(self, name, site):
        return RunFolder(self.folder / site / name / site)

    def summary(self, name, site):
        return json.loads(self.run_folder(name, site).summary.read_text())

    def loans(self, name, site="north"):
        """Returns the records of a service's loans that are written whole."""
        file = self.run_folder(name, site).path / "loans.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def lending(self, name):
        """Returns the hosts of north's loans that are under way."""
        over = {one["loan"] for one in self.loans(name) if "outcome" in one}
        return {one["host"] for one in self.loans(name) if "site" in one and one["loan"] not in over}

    def silent_windows(self, name, site):
        """Returns the streams of a service with the windows in which they got no answer."""
        return [
            (stream, window.index)
            for stream in SMALL[site].streams
            for window in self.windows(name, site)
            if not answered_within(self.run_folder(name, site), stream, window)
        ]

    def deaths(self, name, site):
        """Returns the processes of a service's own streams that died."""
        return self._events(name, site, ev.WorkerDied)

    def windows(self, name, site):
        """Returns the windows of a service that have opened."""
        return self._events(name, site, ev.WindowOpened)

    def lent(self, name, site):
        """Returns what a service was told that it lends."""
        return self._events(name, site, ev.CapacityLent)

    def _events(self, name, site, kind):
        _, _, turns = read_journal(self.run_folder(name, site).journal)
        return [one for turn in turns for one in turn.events if isinstance(one, kind)]

    def _opened(self, name, site):
        journal = self.run_folder(name, site).journal
        return journal.is_file() and "WindowOpened" in journal.read_text()

    def _write(self, name, site, windows, tier):
        """Writes the fleet file of a service, which lends to and borrows of all others."""
        server = SMALL[site]
        raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
        raw |= {"window_s": WINDOW_S, "windows": windows, "gpus": server.gpus}
        raw["preparation"] = {"share_milli": server.share_milli, "fraction": 0.15}
        raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
        numbers = [int(stream[-1]) - 1 for stream in server.streams]
        raw["streams"] = [self._camera(f"cam-{number + 1}", raw["streams"][number]) for number in numbers]
        raw["http"] = {"address": self.network.address(SITES[site])}
        lenders = [
            {
                "url": f"http://ekya:${{{other.upper()}_TOKEN}}@{self.network.address(host)}:8470",
                "name": other,
                "mb_s": self._mb_s,
                "insecure": True,
            }
            for other, host in SITES.items()
            if other != site
        ]
        raw["lending"] = {"lend": True, "borrow_from": lenders, "samples_may_leave": "crops", "tier": tier}
        (self.folder / site / f"{name}.yaml").write_text(yaml.safe_dump(raw))

    def _camera(self, stream, street):
        shown = {key: its for key, its in street["source"]["scenes"][-1].items() if key != "ramp_s"}
        scenes = [shown | {"at_s": 0}, shown | DRIFT | {"at_s": WINDOWS * WINDOW_S - 2}]
        return street | {"id": stream, "source": street["source"] | {"fps": 3, "scenes": scenes}}


def answered_within(folder, stream, window):
    """Returns whether any frame of a stream was analysed in a window, which is its ``WindowOpened``."""
    read = read_predictions(folder.predictions(stream))
    return bool(np.any(read.analysed & (read.t_us >= window.t_us) & (read.t_us < window.end_us)))
