"""A site: one run at a time, for drivers that come, die, come back and go."""

import threading
from dataclasses import dataclass

import pytest
from by_hand import Doors
from waiting import HANG_GUARD_S, wait_until

from ekya import __version__
from ekya.config.shipped import shipped_path
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.live import site as site_module
from ekya.fleet.run.live.orders import Neighbour, RunOrder
from ekya.fleet.run.live.site import Site
from ekya.results.storage.run_folder import RunFolder
from ekya.system.files import write_text_atomic

NORTH = SiteName("north")


class Run:
    """A run that lasts until it is stopped."""

    def __init__(self, server, folder, options, order, machine, doors):
        self.server, self.folder, self.options, self.order = server, folder, options, order
        self.over, self.met = threading.Event(), {}

    def run(self):
        self.over.wait(HANG_GUARD_S)

    def meet_neighbours(self, neighbours, coordinator):
        self.met |= neighbours

    def stop_run(self):
        self.over.set()


@dataclass(frozen=True)
class Server:
    """A server as its files say."""

    fleet: object


def read(changes):
    if "nonsense" in changes:
        raise UserError("nonsense: there is no such key")
    return Server(changes)


def order(run="first", folder=None, resume_us=None, **changes):
    return RunOrder(run, "town", folder, 7, changes, "the coordinator", resume_us)


def kept(runs, folder, run, site):
    """Makes the folder of a run that a site has begun."""
    made = RunFolder.create_numbered(runs / "town", folder)
    write_text_atomic(made.fleet, shipped_path("datasets/synthetic_city/fleet.yaml").read_text())
    (made.path / "fleet_run").write_text(f"{run} {site}\n")
    return made.path


class Town:
    """A site and its runs, in the order in which they were opened."""

    def __init__(self, folder, runs):
        self.doors, self.folder, self.runs = Doors(), folder, runs
        self.site = Site(NORTH, read, folder / "runs", "auto", self.doors)

    def ends(self):
        """Ends the last run."""
        self.runs[-1].stop_run()
        wait_until(lambda: self.site.is_done(-1.0))


@pytest.fixture
def town(tmp_path, monkeypatch):
    runs = []

    def make(*arguments):
        runs.append(Run(*arguments))
        return runs[-1]

    for method in ("run", "stop_run"):
        setattr(make, method, getattr(Run, method))
    monkeypatch.setattr(site_module, "SiteRun", make)
    monkeypatch.setattr(site_module, "public_methods", lambda kind: ("stop_run",))
    made = Town(tmp_path, runs)
    yield made
    for run in runs:
        run.stop_run()


def test_it_runs_what_it_is_ordered_and_others_reach_that(town) -> None:
    opened = town.site.open_run(order(windows=3))
    (run,) = town.runs
    assert (run.server, run.order.coordinator) == (Server({"windows": 3}), "the coordinator")
    assert (run.folder, run.options.seed) == (town.folder / "runs" / "town", 7)
    assert (town.site.identify(), opened.machine) == ((NORTH, opened.machine, __version__), opened.machine)
    town.doors.offered[opened.server.name].call("stop_run").result(HANG_GUARD_S)
    assert run.over.is_set()


def test_a_driver_on_its_machine_names_the_folder(town) -> None:
    town.site.open_run(order(folder="/runs/town-2"))
    assert str(town.runs[0].folder) == "/runs/town-2"


def test_a_second_driver_gets_no_run_and_leaves_the_first_ones_alone(town) -> None:
    first = town.site.open_run(order())
    with pytest.raises(UserError, match="north: another run is under way"):
        town.site.open_run(order("second"))
    assert not town.runs[0].over.is_set()
    assert town.site.reopen_run("first") == first
    with pytest.raises(CallError, match="no run second"):
        town.site.reopen_run("second")


def test_what_cannot_be_run_here_is_told_and_nothing_is_open(town) -> None:
    with pytest.raises(UserError, match="nonsense: there is no such key"):
        town.site.open_run(order(nonsense=1))
    assert (town.runs, town.doors.offered) == ([], {})
    with pytest.raises(CallError):
        town.site.reopen_run("first")
    town.site.open_run(order())


def test_bad_input_leaves_the_results_of_the_run_before(town) -> None:
    first = town.site.open_run(order())
    town.ends()
    with pytest.raises(UserError):
        town.site.open_run(order("second", nonsense=1))
    assert town.site.reopen_run("first") == first
    assert list(town.doors.offered) == [first.server.name]


def test_the_next_run_takes_the_place_of_the_one_that_has_ended(town) -> None:
    first = town.site.open_run(order())
    town.ends()
    assert town.site.reopen_run("first") == first, "its results are collected after its end"
    second = town.site.open_run(order("second"))
    assert list(town.doors.offered) == [second.server.name]
    assert second.server != first.server
    assert second.machine == first.machine
    with pytest.raises(CallError, match="no run first; it was started again since"):
        town.site.reopen_run("first")


def test_a_site_that_was_started_again_is_another_process_and_knows_no_run(town) -> None:
    town.site.open_run(order())
    again = Site(NORTH, read, town.folder, "auto", Doors())
    assert again.identify()[1] != town.site.identify()[1]
    with pytest.raises(CallError, match="north has no run first; it was started again since"):
        again.reopen_run("first")


def test_a_site_that_was_started_again_takes_up_the_run_of_its_folder(town) -> None:
    runs = town.folder / "runs"
    kept(runs, "north", "earlier", NORTH)
    kept(runs, "northeast", "first", "northeast")
    folder = kept(runs, "north", "first", NORTH)
    kept(runs, "north", "later", NORTH)
    opened = town.site.open_run(order(resume_us=5_000_000, windows=3))
    (run,) = town.runs
    assert (run.options.resume, run.order.resume_us) == (folder, 5_000_000)
    assert folder.name == "north-2"
    assert len(run.server.fleet.streams) == 4, "as in the folder"
    assert town.site.reopen_run("first") == opened
    assert run.met == {NORTH: Neighbour(opened.server, opened.machine)}, "it does not wait for the driver"


def test_a_site_that_was_cut_off_alone_goes_on_with_its_run(town) -> None:
    first = town.site.open_run(order())
    assert town.site.open_run(order(resume_us=5_000_000)) == first
    assert len(town.runs) == 1
    town.ends()
    assert town.site.open_run(order(resume_us=5_000_000)) == first, "its results are there"


def test_a_site_without_the_folder_of_its_run_says_so_and_is_free_for_another(town) -> None:
    kept(town.folder / "runs", "north", "earlier", NORTH)
    with pytest.raises(UserError, match=r"runs/town has no folder of this run; mount the disk that has it"):
        town.site.open_run(order(resume_us=5_000_000))
    assert (town.runs, town.doors.offered) == ([], {})
    town.site.open_run(order("second"))
    with pytest.raises(UserError, match="another run is under way"):
        town.site.open_run(order(resume_us=5_000_000))


def test_a_site_that_is_stopped_tells_nobody_that_its_run_has_ended(town) -> None:
    first = town.site.open_run(order())
    town.site.stop_run()
    assert town.runs[0].over.is_set()
    assert first.server.name not in town.doors.offered


def test_it_is_done_when_its_run_has_ended_and_was_collected(town) -> None:
    town.site.open_run(order())
    town.site.forget_run("first")
    assert not town.site.is_done(HANG_GUARD_S), "it still runs"
    town.site.stop_run()
    assert town.site.is_done(HANG_GUARD_S)


def test_it_is_not_done_when_another_run_was_collected(town) -> None:
    town.site.open_run(order())
    town.site.forget_run("another")
    town.site.stop_run()
    assert not town.site.is_done(HANG_GUARD_S)
    town.site.forget_run("first")
    town.site.open_run(order("second"))
    town.site.stop_run()
    assert not town.site.is_done(HANG_GUARD_S), "the second was not"


def test_it_is_done_when_no_driver_comes(town) -> None:
    now_s = 1000.0
    site = Site(NORTH, read, town.folder, "auto", town.doors, clock=lambda: now_s)
    now_s = 1059.0
    assert not site.is_done(60.0)
    now_s = 1061.0
    assert site.is_done(60.0), "no driver has opened it"
    site.open_run(order())
    now_s = 2000.0
    assert not site.is_done(60.0)
    site.stop_run()
    now_s = 2059.0
    assert not site.is_done(60.0), "its results may be asked for yet"
    now_s = 2061.0
    assert site.is_done(60.0)


def test_without_a_run_there_is_nothing_to_stop(town) -> None:
    town.site.stop_run()
    assert town.site.is_done(-1.0)
