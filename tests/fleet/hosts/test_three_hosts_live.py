"""The commands of docs/fleet/hosts.md on three hosts and an office, and what happens when something fails."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from host_namespaces import why_not
from host_network import HostNetwork
from host_wires import Link

from ekya.config.shipped import shipped_path
from ekya.core import events as ev
from ekya.results.storage.journal import read_journal
from ekya.results.storage.run_folder import RunFolder
from ekya.results.storage.run_tables import read_predictions

pytestmark = [pytest.mark.live, pytest.mark.long]

SITES = {"north": 1, "south": 2, "west": 3}
"""Hosts by the site that is on each."""
OFFICE = 4
"""Host on which `ekya fleet run` is called."""
STREAMS = {"north": ("cam-1", "cam-2"), "south": ("cam-3",), "west": ("cam-4",)}
PORT, ITS_PORT = 7070, 7071
WINDOW_S, WINDOWS = 36, 3
LISTENS_WITHIN_S, BEGINS_WITHIN_S, ENDS_WITHIN_S = 60, 120, 300
DRIFT = {"lighting": "night", "livery": "south", "view": "side", "clothing": "summer"}
"""Change of every street after ``WINDOWS`` windows, so that retrainings are worth something again."""
GAP_S = 3.0
"""Longest time for which no frame of a stream may be analysed."""
EKYA = (sys.executable, "-m", "ekya")


class Town:
    """Three sites that listen, and the commands of the office.

    Attributes:
        network: of the hosts.
        folder: with a folder for each host, as if each had its own disk.
    """

    def __init__(self, network, folder):
        self.network, self.folder, self._sites = network, folder, {}
        self.environment = os.environ | {
            "EKYA_FLEET_TOKEN": secrets.token_urlsafe(32),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]),
        }
        for site in SITES:
            self.place(site)
            self._write(self.folder / site)
        (self.folder / "office").mkdir()
        # Nothing of a fleet has to be where the command is called.
        self._write(self.folder / "office", with_fleet=False)

    def place(self, site):
        (self.folder / site).mkdir(exist_ok=True)

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
        wait_for(told.is_file, LISTENS_WITHIN_S, (self.folder / f"{site}.log").read_text)

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

    def begins(self, name, *words):
        """Begins a run and waits until its first window has opened everywhere; returns its process."""
        for site in SITES:
            self.start(site)
        process = self.run(name, "town.yaml", "--name", name, *words)

        def begun():
            assert process.poll() is None, process.stderr.read()
            return all(self.opened(site, name) for site in SITES)

        wait_for(begun, BEGINS_WITHIN_S)
        return process

    def opened(self, site, name):
        journal = self.folder / site / "runs" / name / site / "journal.jsonl"
        return journal.is_file() and "WindowOpened" in journal.read_text()

    def summary(self, name):
        return json.loads((self.folder / "office" / f"{name}.json").read_text())

    def loans(self, name):
        """Returns the records of loans that are written whole."""
        file = self.folder / "office" / "runs" / name / "loans.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def gap_s(self, name, site):
        """Returns the longest time for which a stream of a site got no answer."""
        folder = RunFolder(self.folder / "office" / "runs" / name / site)
        return max(longest_gap_s(folder, stream) for stream in STREAMS[site])

    def deaths(self, name, site):
        """Returns the processes of a site's own streams that died."""
        _, _, turns = read_journal(RunFolder(self.folder / "office" / "runs" / name / site).journal)
        return [one for turn in turns for one in turn.events if isinstance(one, ev.WorkerDied)]

    def _write(self, folder, with_fleet=True):
        if with_fleet:
            raw = yaml.safe_load(shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
            raw |= {"window_s": WINDOW_S, "windows": WINDOWS}
            raw["retraining"] |= {"epochs": [4], "trainable_blocks": [1], "data_fractions": [1.0]}
            for stream in raw["streams"]:
                shown = {key: its for key, its in stream["source"]["scenes"][-1].items() if key != "ramp_s"}
                scenes = [shown | {"at_s": 0}, shown | DRIFT | {"at_s": WINDOWS * WINDOW_S - 2}]
                stream["source"] |= {"fps": 3, "scenes": scenes}
            (folder / "fleet.yaml").write_text(yaml.safe_dump(raw))
        servers = [
            self._server("north", 0.35, 250),
            self._server("south", 0.85, 250),
            self._server("west", 0.3, 200),
        ]
        content = {"name": "town", "fleet": "fleet.yaml", "links": {"mb_s": 20}, "servers": servers}
        (folder / "town.yaml").write_text(yaml.safe_dump(content))

    def _server(self, site, gpus, share_milli):
        changes = {"gpus": gpus, "preparation": {"share_milli": share_milli, "fraction": 0.15}}
        return {
            "site": site,
            "address": f"{self.network.address(SITES[site])}:{PORT}",
            "streams": list(STREAMS[site]),
            "crops_may_leave": True,
            "changes": changes,
        }


def wait_for(what, within_s, why=lambda: ""):
    until_s = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until_s, why()
        time.sleep(0.2)


def longest_gap_s(folder, stream):
    read = read_predictions(folder.predictions(stream))
    at_us = [t_us for t_us, analysed in zip(read.t_us, read.analysed, strict=True) if analysed]
    return max(after - before for before, after in pairwise(at_us)) / 1e6


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with HostNetwork(4, Link(rate_mbit_s=200, delay_ms=5, loss=0)) as network:
        yield Town(network, tmp_path_factory.mktemp("town"))


def test_a_fleet_runs_and_north_borrows(town) -> None:
    process = town.begins("quiet")
    assert process.wait(ENDS_WITHIN_S) == 0, process.stderr.read()
    told = town.summary("quiet")
    assert [its["died_s"] for its in told["servers"].values()] == [None] * 3
    assert [its["away_s"] for its in told["servers"].values()] == [[]] * 3
    assert told["frames"]["lost"] == 0
    assert told["loans"]["by_outcome"].get("arrived", 0) >= 1
    folder = town.folder / "office" / "runs" / "quiet"
    assert {path.name for path in folder.iterdir()} >= {*SITES, "loans.jsonl", "summary.json"}
    for site in SITES:
        assert (folder / site / "report.html").is_file()
        assert town.gap_s("quiet", site) <= GAP_S


def test_the_command_is_killed_while_a_loan_runs_and_another_takes_up_what_goes_on(town) -> None:
    process = town.begins("killed", "--windows", "4")
    wait_for(lambda: town.loans("killed"), 2 * WINDOW_S)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = [one["loan"] for one in town.loans("killed") if "site" in one]
    time.sleep(5)
    again = town.run("killed", "--resume", "runs/killed")
    assert again.wait(ENDS_WITHIN_S) == 0, again.stderr.read()
    told = town.summary("killed")
    assert [its["died_s"] for its in told["servers"].values()] == [None] * 3
    assert told["frames"]["lost"] == 0
    made = [one["loan"] for one in town.loans("killed") if "site" in one]
    ended = {one["loan"]: one["outcome"] for one in town.loans("killed") if "outcome" in one}
    assert made == list(range(len(made)))
    assert sorted(ended) == made, "every loan has an end"
    assert len(made) > len(before)
    assert "arrived" in ended.values()
    for site in SITES:
        assert town.gap_s("killed", site) <= GAP_S
        assert not town.deaths("killed", site)


def test_a_site_that_is_cut_off_for_a_minute_goes_on_alone_and_takes_part_again(town) -> None:
    process = town.begins("cut", "--windows", "5")
    wait_for(lambda: town.loans("cut"), 2 * WINDOW_S)
    town.network.partition(SITES["south"])
    time.sleep(60)
    town.network.heal(SITES["south"])
    assert process.wait(ENDS_WITHIN_S) == 0, process.stderr.read()
    told = town.summary("cut")
    assert [its["died_s"] for its in told["servers"].values()] == [None] * 3
    ((began_s, ended_s),) = told["servers"]["south"]["away_s"]
    assert 50 < ended_s - began_s < 90
    assert told["frames"]["lost"] == 0
    made = {one["loan"]: one for one in town.loans("cut") if "site" in one}
    ended = {one["loan"]: one for one in town.loans("cut") if "outcome" in one}
    assert sorted(ended) == sorted(made)
    assert any("south died" in one["outcome"] for one in ended.values())
    after = [one for one in made.values() if one["agreed_us"] > ended_s * 1e6]
    assert "south" in {part["host"] for one in after for part in one["parts"]}, "it lends again"
    for site in SITES:
        assert town.gap_s("cut", site) <= GAP_S
        assert not town.deaths("cut", site)
    # No stream is trained under two loans at a time.
    for stream in {(one["site"], one["stream"]) for one in made.values()}:
        spans = sorted(
            (one["agreed_us"], ended[number]["over_us"])
            for number, one in made.items()
            if (one["site"], one["stream"]) == stream
        )
        assert all(over_us <= next_us for (_, over_us), (next_us, _) in pairwise(spans))


def test_a_host_that_is_killed_takes_no_other_along(town) -> None:
    process = town.begins("storm")
    time.sleep(WINDOW_S)
    town.network.kill(SITES["west"])
    assert process.wait(ENDS_WITHIN_S) == 0, process.stderr.read()
    servers = town.summary("storm")["servers"]
    assert servers["west"]["died_s"] > 0
    assert [servers[site]["died_s"] for site in ("north", "south")] == [None, None]
    assert servers["north"]["mean_accuracy"] > 0.3
    assert max(town.gap_s("storm", site) for site in ("north", "south")) <= GAP_S
