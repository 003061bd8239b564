"""A server's run in its site: before it begins, while it runs, when it is stopped or breaks."""

import threading
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from by_hand import ByHand, Doors
from byhand import OPTIONS
from waiting import HANG_GUARD_S, wait_until, wait_until_blocked

from ekya.config.run_options import RunOptions
from ekya.core.errors import UserError
from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.elsewhere import Interrupted
from ekya.fleet.run.lending import Peer
from ekya.fleet.run.live import site_run
from ekya.fleet.run.live.coordination import peer_at
from ekya.fleet.run.live.orders import Neighbour, RunOrder
from ekya.fleet.run.live.site_run import SiteRun
from ekya.fleet.run.server import ServerTerms
from ekya.gpu.backends.registry import ChosenBackend
from ekya.models.edge.forward import PLAIN
from ekya.runtime.driver.open_run import OpenRun

NORTH, SOUTH = map(SiteName, ("north", "south"))
SECOND_NS = 1_000_000_000
ORDER = RunOrder("abc", "town", None, 7, {}, None)


@pytest.fixture
def server():
    fleet = SimpleNamespace(scheduler="ekya", windows=2, window_s=30.0)
    return SimpleNamespace(terms=ServerTerms(NORTH, samples_may_leave="no"), fleet=fleet)


class Clock:
    """A clock that stands until the test puts it forward."""

    now_ns = 1_000 * SECOND_NS

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run(server, tmp_path, clock):
    return SiteRun(server, tmp_path, RunOptions(), ORDER, "this process", Doors(), clock)


class Guests:
    """Processes for guests; ``living`` of them have not ended."""

    def __init__(self, *arguments):
        self.arguments, self.living, self.warmed = arguments, 0, 0

    def take_process(self, borrower):
        self.living += 1
        return "a process"

    def warm_process(self):
        self.warmed += 1

    def close(self):
        self.living = 0


class World:
    """What a run needs of Ray and the machine; ``session`` says what its loop does.

    Attributes:
        told: when its backend was opened, and how many guests there were when it was closed.
        sizes: of the fleet that are chosen when the run opens.
    """

    def __init__(self, folder):
        self.told, self.folder, self.session, self.from_us = [], folder, lambda above: None, 0
        self.sizes = {}
        self.chosen = ChosenBackend("fake", self, None, (), 2)
        self.options = replace(OPTIONS, capacity_milli=2000)

    def guests(self, *arguments):
        self.made = Guests(*arguments)
        return self.made

    @contextmanager
    def open(self, gpus):
        self.told.append(f"opened for {gpus}")
        try:
            yield self
        finally:
            self.told.append(f"closed upon {self.made.living}")

    def run_of(self, fleet, options, chosen, host):
        folder = SimpleNamespace(path=self.folder)
        fleet = SimpleNamespace(**vars(fleet) | self.sizes)
        return OpenRun(
            folder, fleet, options, self.options, self.chosen, None, host, continue_us=self.from_us
        )


@pytest.fixture
def world(monkeypatch, tmp_path):
    """A machine on which ``SiteRun.run`` goes through; its folder has a summary and a journal."""
    folder = tmp_path / "north"
    folder.mkdir()
    (folder / "summary.json").write_text('{"mean_accuracy": 0.5}')
    (folder / "journal.jsonl").write_text("[1]")
    (tmp_path / "secret").write_text("a password")
    made = World(folder)

    class Session:
        def __init__(self, run, opened, server, coordinator, stop):
            assert (opened, server) == (made, "north")
            self.above, self.stop = coordinator, stop

        def run(self, console):
            self.begins_ns = self.above.begin_ns()
            made.session(self)
            return folder

    context = SimpleNamespace(get_node_id=lambda: "ray node")
    ray = SimpleNamespace(shutdown=lambda: made.told.append("shut down"), get_runtime_context=lambda: context)
    measured = SimpleNamespace(self_test=SimpleNamespace(way=PLAIN))
    probe = SimpleNamespace(result=lambda: measured)
    monkeypatch.setattr(site_run, "ray", ray)
    monkeypatch.setattr(site_run, "start_ray", lambda *_: None)
    monkeypatch.setattr(site_run, "choose_backend", lambda shares: made.chosen)
    monkeypatch.setattr(site_run, "start_probe", lambda fleet, options, chosen: nullcontext(probe))
    monkeypatch.setattr(site_run, "open_run", made.run_of)
    monkeypatch.setattr(site_run, "LentProcesses", made.guests)
    monkeypatch.setattr(site_run, "RunSession", Session)
    return made


def begun(run):
    """Runs it in a thread, as its site does."""
    thread = threading.Thread(target=run.run)
    thread.start()
    return thread


def test_it_is_ready_runs_from_when_it_is_told_and_has_ended(run, world, clock) -> None:
    over = threading.Event()
    world.session = lambda session: over.wait(HANG_GUARD_S)
    assert run.run_state().phase == "opening"
    thread = begun(run)
    assert run.wait_ready().phase == "ready"
    assert (run.run_state().now_us, run.run_state().ends_us) == (0, 60_000_000)
    run.set_start(0)
    wait_until(lambda: run.run_state().phase == "running")
    assert run.run_state().now_us == 0
    clock.now_ns += 2 * SECOND_NS
    assert run.run_state().now_us == 2_000_000
    with pytest.raises(CallError, match="no summary yet"):
        run.run_summary()
    assert run.file_sizes() == {}
    over.set()
    thread.join(HANG_GUARD_S)
    assert (run.run_state().phase, run.run_summary()) == ("ended", {"mean_accuracy": 0.5})


def test_its_end_is_known_when_its_windows_are_chosen(run, world) -> None:
    world.sizes = {"window_s": 200.0}
    run.set_start(0)
    run.run()
    assert run.run_state().ends_us == 400_000_000


def test_it_begins_when_it_is_told_by_everybodys_clock_and_only_once(run, clock) -> None:
    begins_ns = []
    thread = threading.Thread(target=lambda: begins_ns.append(run._begins()))
    thread.start()
    assert run.wait_ready().phase == "ready"
    run.set_start(1_000_000)
    run.set_start(900_000_000)
    thread.join(HANG_GUARD_S)
    assert begins_ns == [clock.now_ns + SECOND_NS]
    assert run.run_state().now_us == 0, "it is not there yet"


def test_who_is_stopped_before_anybody_begins_begins_now_and_not_in_1970(run, clock) -> None:
    run.stop_run()
    assert run._begins() == clock.now_ns


def test_who_is_stopped_tells_its_loop(run, world) -> None:
    world.session = lambda session: session.stop.wait(HANG_GUARD_S) or pytest.fail("nobody told it")
    thread = begun(run)
    run.wait_ready()
    run.set_start(0)
    run.stop_run()
    thread.join(HANG_GUARD_S)
    assert run.run_state().phase == "ended"


def test_a_run_whose_driver_dies_before_the_start_ends(run, world, monkeypatch) -> None:
    monkeypatch.setattr(site_run, "BEGINS_WITHIN_S", 0.05)
    begun(run).join(HANG_GUARD_S)
    state = run.run_state()
    assert (state.phase, state.by_user) == ("failed", True)
    assert "the run was not begun for 0.05 s" in state.reason


@pytest.mark.parametrize(
    ("error", "reason", "by_user"),
    [(UserError("disk: is full"), "disk: is full", True), (KeyError("x"), "KeyError: 'x'", False)],
)
def test_a_run_that_breaks_says_why_and_has_no_summary(error, reason, by_user, run, world) -> None:
    def breaks(session):
        raise error

    world.session = breaks
    run.set_start(0)
    run.run()
    state = run.run_state()
    assert (state.phase, state.reason, state.by_user) == ("failed", reason, by_user)
    with pytest.raises(CallError):
        run.run_summary()
    assert run.file_sizes() == {}


def test_one_that_will_never_be_ready_says_so_to_who_waits(run, monkeypatch) -> None:
    def nothing_works(shares):
        raise UserError("--shares mps: there is no GPU")

    monkeypatch.setattr(site_run, "choose_backend", nothing_works)
    waits = threading.current_thread()
    threading.Thread(target=lambda: [wait_until_blocked(waits), run.run()]).start()
    state = run.wait_ready()
    assert (state.phase, state.reason) == ("failed", "--shares mps: there is no GPU")


def taken_up(server, world, resume_us, clock):
    """Returns a run to be taken up at this run time of the others; its loop goes on from 30 s."""
    world.from_us = 30_000_000
    (world.folder / "fleet.yaml").write_text("")
    options = RunOptions(resume=world.folder)
    order = replace(ORDER, resume_us=resume_us)
    return SiteRun(server, world.folder.parent, options, order, "this process", Doors(), clock)


def journal(monkeypatch, is_complete):
    monkeypatch.setattr(site_run, "read_journal", lambda path: (None, SimpleNamespace(seed=7), ()))
    monkeypatch.setattr(site_run, "is_complete", lambda steps: is_complete)


def test_a_run_that_is_taken_up_goes_on_at_the_time_of_the_others(server, world, clock, monkeypatch) -> None:
    def session(session):
        begins_ns.append(session.begins_ns)
        (world.folder / "summary.json").write_text('{"mean_accuracy": 0.5}')

    begins_ns = []
    world.session = session
    journal(monkeypatch, is_complete=False)
    run = taken_up(server, world, 50_000_000, clock)
    run.run()
    assert (run.run_state().phase, run.run_state().now_us) == ("ended", 50_000_000)
    # It began 50 s ago, and its loop goes on from 30 s.
    assert begins_ns == [clock.now_ns - 20 * SECOND_NS]


def test_where_all_were_away_the_one_with_the_most_windows_says_the_time(
    server, world, clock, monkeypatch
) -> None:
    def session(session):
        assert (session.begins_ns, run.run_state().now_us) == (clock.now_ns, 30_000_000)
        (world.folder / "summary.json").write_text("{}")

    world.session = session
    journal(monkeypatch, is_complete=False)
    run = taken_up(server, world, 2_000_000, clock)
    run.run()
    assert (run.run_state().phase, run.run_state().reason) == ("ended", "")


@pytest.mark.parametrize(("resume_us", "is_complete"), [(60_000_000, False), (59_000_000, True)])
def test_a_run_that_should_have_ended_is_measured_and_not_run(
    resume_us, is_complete, server, world, clock, monkeypatch
) -> None:
    def finish(folder, fleet, world_name, seed):
        measured.append((folder.path, fleet, world_name, seed))
        folder.summary.write_text('{"mean_accuracy": 0.25}')
        folder.report.write_text("")

    measured = []
    (world.folder / "summary.json").write_text("{}")  # of a part, as after a stop
    monkeypatch.setattr(site_run, "finish_run", finish)
    journal(monkeypatch, is_complete)
    for _ in range(2):  # The second one finds the report.
        run = taken_up(server, world, resume_us, clock)
        run.run()
        assert (run.run_state().phase, run.run_summary()) == ("ended", {"mean_accuracy": 0.25})
        assert run.file_sizes()["report.html"] == 0
    assert measured == [(world.folder, server.fleet, "live", 7)]
    assert "opened for 2" not in world.told


def test_its_folder_says_of_which_run_it_is(run, world) -> None:
    run.set_start(0)
    run.run()
    assert (world.folder / "fleet_run").read_text().split() == ["abc", "north"]


def test_its_jobs_and_its_guests_are_held_by_one_backend_and_gone_before_it(run, world) -> None:
    world.session = lambda session: session.above.guests.take_process(SOUTH)
    run.set_start(0)
    run.run()
    assert world.told == ["opened for 2", "closed upon 0", "shut down"]
    node, backend, gpu, _ = world.made.arguments
    assert (node, backend is world) == ("ray node", True)
    assert gpu == 1, "not the preparation's"


def test_a_process_for_guests_is_warm_where_there_is_a_coordinator_alone(server, world, tmp_path) -> None:
    for coordinator, warmed in ((None, 0), (ByHand(None), 1)):
        order = replace(ORDER, coordinator=coordinator)
        run = SiteRun(server, tmp_path, RunOptions(), order, "this process", Doors())
        run.set_start(0)
        run.run()
        assert world.made.warmed == warmed


def test_its_files_are_read_in_parts_and_nothing_beside_them(run, world) -> None:
    run.set_start(0)
    run.run()
    files = run.file_sizes()
    assert (files["summary.json"], files["journal.jsonl"]) == (22, 3)
    assert [run.file_part("journal.jsonl", offset) for offset in (0, 1, 3)] == [b"[1]", b"1]", b""]
    (world.folder / "link").symlink_to(world.folder.parent / "secret")
    outside = ("../secret", "link", "nothing", "", ".", str(world.folder.parent / "secret"))
    assert [run.file_part(file, 0) for file in outside] == [b""] * len(outside)


def test_it_meets_others_and_reaches_the_coordinator_where_it_is_now(server, tmp_path) -> None:
    heard = []
    before, now = (
        ByHand(SimpleNamespace(wait_for_earlier_calls=lambda who=who: heard.append(who)))
        for who in ("old", "new")
    )
    order = replace(ORDER, coordinator=before)
    run = SiteRun(server, tmp_path, RunOptions(), order, "this process", Doors())
    run.meet_neighbours({SOUTH: Neighbour("its run", "s")}, None)
    run._coordinator.wait_heard()
    run.meet_neighbours({}, now)
    run._coordinator.wait_heard()
    assert heard == ["old", "new"]
    assert run._neighbours.neighbour_at(SOUTH).server == "its run"


def test_one_that_works_alone_has_no_coordinator_also_when_it_meets_one(run) -> None:
    run.meet_neighbours({}, ByHand(None))
    assert run._coordinator is None


def test_before_it_runs_nobody_finds_room_or_a_process(run) -> None:
    assert run.call_peer("spare_room", 0, 0) is None
    with pytest.raises(CallError, match="takes no guests yet"):
        run.take_process(SOUTH)
    run.give_back_process(SOUTH, "a process")
    run.other_died(SOUTH)
    assert run.machine_id() == "this process"


def test_before_it_runs_it_has_no_loans_and_is_asked_and_told_in_vain(run) -> None:
    peer = peer_at(ByHand(run))
    assert (list(peer.borrowed_loans()), list(peer.lent_numbers())) == ([], [])
    for method in (
        Peer.grant_loan,
        Peer.lend_share,
        Peer.take_back_share,
        Peer.continue_training,
        Peer.fail_training,
    ):
        assert run.call_peer(method.__name__, *[None] * (len(signature(method).parameters) - 1)) is None
    assert peer.training_so_far(None, 0) == Interrupted(1, {})


def test_while_it_runs_others_reach_its_loans_and_processes_through_it(run) -> None:
    lending, guests = Mock(), Mock()
    run._above = SimpleNamespace(lending=SimpleNamespace(executor=lending), guests=guests)
    lending.borrowed_loans.return_value, lending.lent_numbers.return_value = ["a loan"], {3}
    assert (run.call_peer("borrowed_loans"), run.call_peer("lent_numbers")) == (["a loan"], {3})
    told = {
        "spare_room": (1, 2),
        "lend_share": (7, "a share"),
        "take_back_share": (7, 5),
        "grant_loan": ("a loan",),
        "training_so_far": ("cam", 5),
        "continue_training": ("cam", "a loan"),
        "fail_training": ("cam", "why", 5),
    }
    for name, arguments in told.items():
        run.call_peer(name, *arguments)
        getattr(lending, name).assert_called_once_with(*arguments)
    with pytest.raises(CallError, match="no method execute"):
        run.call_peer("execute", [])
    guests.take_process.return_value = "a process"
    assert run.take_process(SOUTH) == "a process"
    run.give_back_process(SOUTH, "a process")
    guests.give_back_process.assert_called_once_with(SOUTH, "a process")
    run.other_died(SOUTH)
    guests.end_of.assert_called_once_with(SOUTH)
