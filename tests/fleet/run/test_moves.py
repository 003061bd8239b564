"""Inference that moves: the coordinator's moves, and the executor of a server whose streams move."""

import json
from dataclasses import replace

import pytest
from peers_by_hand import CAM, EAST, HOME, WEST, S, Server, offer

from ekya.control.protocols import Batch
from ekya.core import events as ev
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.moves import Choice, Move, MoveOffer
from ekya.fleet.policy.tiers import TIERS
from ekya.fleet.run.coordinator import Coordinator
from ekya.fleet.run.lending import LendingExecutor
from ekya.fleet.run.loan_file import LoanFile, learnt, read_loans

UNTIL_US = 100 * S


def moves(*streams, site=HOME, share_milli=300, gain=0.2, until_us=UNTIL_US):
    choices = (Choice(share_milli, gain, 0.1),)
    return [MoveOffer(site, StreamId(stream), until_us, 0.06, 45.0, choices) for stream in streams]


@pytest.fixture
def town(tmp_path):
    """The coordinator, its servers by name and its file; east lends up to half of a GPU."""
    servers = {HOME: Server(HOME, 0), EAST: Server(EAST, 5), WEST: Server(WEST, 0)}
    file = LoanFile(tmp_path / "loans.jsonl")
    made = Coordinator(TIERS["net"], Links(), record=file)
    for site, server in servers.items():
        made.join(site, server)
        server.kept.clear()
    yield made, servers, tmp_path / "loans.jsonl"
    file.close()


def granted(server):
    return [loan for what, loan in server.heard if what == "granted" and isinstance(loan, Move)]


def test_a_move_is_granted_and_its_host_lends_until_the_window_ends(town) -> None:
    above, servers, path = town
    assert above.ask(HOME, 0, [], moves("cam")).loan is None
    (move,) = granted(servers[HOME])
    assert (move.host, move.share_milli, move.until_us, move.number) == (EAST, 300, UNTIL_US, 0)
    (lent,) = servers[EAST].lent.values()
    assert (lent.share_milli, lent.from_us, lent.to_us) == (300, move.begins_us, UNTIL_US)
    above.move_over(move, 40 * S, "its window is over", move.moved_mb(40 * S))
    assert servers[EAST].lent == {}
    assert above.moved_mb == move.moved_mb(40 * S)
    (record,) = read_loans(path)
    assert (record.kind, record.hosts, record.outcome) == ("inference", (EAST,), "its window is over")
    assert record.promises == pytest.approx(move.gain * move.lasts_s)


def test_trainings_get_what_inference_leaves(town) -> None:
    above, servers, _ = town
    loan = above.ask(HOME, 0, [offer(gpu_s=2.0)], moves("other", share_milli=400)).loan
    (move,) = granted(servers[HOME])
    assert move.share_milli == 400
    assert [part.share_milli for part in loan.parts] == [100]
    above.ask(WEST, 0, [], moves("cam", site=WEST, share_milli=100))
    assert granted(servers[WEST]) == []
    above.over(HOME, CAM, 40 * S, "arrived", {})
    above.more_room(40 * S)
    assert [one.share_milli for one in granted(servers[WEST])] == [100]
    assert sum(lent.share_milli for lent in servers[EAST].lent.values()) == 500


def test_what_is_not_offered_again_is_not_moved(town) -> None:
    above, servers, _ = town
    servers[EAST].units = 0
    above.ask(HOME, 0, [], moves("cam"))
    above.ask(HOME, 1 * S, [offer()])  # without a word of moves they stay open
    above.ask(HOME, 1 * S, [])
    servers[EAST].units = 5
    above.more_room(2 * S)
    assert len(granted(servers[HOME])) == 1
    above.ask(HOME, 3 * S, [], moves("other", share_milli=600))
    above.ask(HOME, 4 * S, [], [])
    servers[EAST].units = 10
    above.more_room(5 * S)
    above.ask(HOME, 6 * S, [], moves("late", until_us=7 * S, share_milli=100))
    above.more_room(8 * S)
    assert len(granted(servers[HOME])) == 1


@pytest.mark.parametrize("how", ["died", "leave"])
def test_without_its_host_a_stream_comes_home(town, how) -> None:
    above, servers, path = town
    above.ask(HOME, 0, [], moves("cam"))
    if how == "leave":
        above.leave(EAST)
    else:
        above.died(EAST, 20 * S)
    why = {"died": "east died", "leave": "east has ended"}[how]
    assert servers[HOME].kept == [(set(), why)]
    assert [one.outcome for one in read_loans(path)] == [why]


def test_a_dead_servers_host_has_its_share_back(town) -> None:
    above, servers, path = town
    above.ask(HOME, 0, [], moves("cam"))
    above.died(HOME, 20 * S)
    assert servers[EAST].lent == {}
    assert [one.outcome for one in read_loans(path)] == ["home died"]


def test_who_was_cut_off_classifies_its_frames_itself(town) -> None:
    above, servers, _ = town
    above.ask(HOME, 0, [], moves("cam"))
    above.join(HOME, servers[HOME])
    assert servers[HOME].kept[-1][0] == {0}
    above.died(HOME, 20 * S)
    above.join(HOME, servers[HOME])
    assert servers[HOME].kept[-1][0] == set()
    assert servers[EAST].lent == {}


def test_a_coordinator_that_is_started_again_sends_everything_home(town) -> None:
    above, servers, path = town
    above.ask(HOME, 0, [], moves("cam"))
    again = Coordinator(TIERS["net"], Links())
    assert again.take_up(len(read_loans(path)), servers) == frozenset()
    assert servers[EAST].lent == {}
    assert servers[HOME].kept[-1][0] == set()
    again.ask(HOME, 30 * S, [], moves("cam"))
    assert [one.number for one in granted(servers[HOME])] == [0, 1]


def test_a_move_whose_server_says_nothing_is_over_some_time_after_its_window(town) -> None:
    above, servers, path = town
    above.ask(HOME, 0, [], moves("cam"))
    above.ask(WEST, UNTIL_US + 11 * S, [], moves("cam", site=WEST, until_us=2 * UNTIL_US, share_milli=500))
    assert [one.share_milli for one in granted(servers[WEST])] == [500]
    assert read_loans(path)[0].outcome == "its window is over"


def test_files_without_kinds_are_of_trainings_and_moves_say_nothing_of_delays(town) -> None:
    above, servers, path = town
    above.ask(HOME, 0, [], moves("cam"))
    (move,) = granted(servers[HOME])
    above.move_over(move, 90 * S, "given up", {})
    loans = read_loans(path)
    assert learnt(loans).late.of(EAST) == 0
    first, *rest = path.read_text().splitlines()
    line = json.loads(first)
    del line["kind"]
    path.write_text("\n".join([json.dumps(line), *rest]) + "\n")
    assert read_loans(path)[0].kind == "training"


class World:
    """An executor in which nothing happens but ``told``; it is where frames are classified, too."""

    def __init__(self):
        self.now_us, self.told, self.ways = 0, [], []

    def wait(self, until_us):
        self.now_us = max(self.now_us, until_us)
        told, self.told = tuple(self.told), []
        return Batch(self.now_us, told)

    def execute_commands(self, commands):
        pass

    def begin(self, move):
        self.ways.append(("begin", move.number))

    def end(self, move, now_us):
        self.ways.append(("end", move.number))
        return {(HOME, EAST): 46.0}


class Nothing:
    """Trainings elsewhere of a server that has none."""

    def next_us(self):
        return None

    def take_home(self, now_us):
        return ()


MOVE = Move(HOME, CAM, EAST, 300, 0, 5 * S, 60 * S, 4000, 0.1, 45.0, 0.2, 0.0, number=7)
THERE, BACK = ev.InferenceMoved(5 * S, CAM, 300, 4000), ev.InferenceMoved(20 * S, CAM, 0)


@pytest.fixture
def moved():
    """The executor of a server whose stream has moved, its world, and the ends that it reports."""
    world, over = World(), []
    executor = LendingExecutor(world, Nothing(), lambda *told: None, world, lambda *told: over.append(told))
    executor.grant(MOVE)
    world.told.append(THERE)
    assert executor.wait(5 * S).events == (THERE,)
    return executor, world, over


def test_a_stream_comes_home_when_the_window_of_its_move_ends(moved) -> None:
    executor, world, over = moved
    assert executor.moved() == {CAM}
    assert executor.wait(90 * S) == Batch(60 * S, (ev.InferenceMoved(60 * S, CAM, 0),))
    assert world.ways == [("begin", 7), ("end", 7)]
    assert over == [(MOVE, 60 * S, "its window is over", {(HOME, EAST): 46.0})]
    assert (executor.moved(), executor.wait(90 * S)) == (set(), Batch(90 * S, ()))


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (BACK, "its host did not answer"),
        (ev.WorkerDied(20 * S, CAM, ev.Role.INFERENCE, "killed"), "killed"),
    ],
)
def test_a_stream_whose_frames_come_back_is_home_and_the_loop_hears_it_once(moved, event, outcome) -> None:
    executor, world, over = moved
    world.told.append(event)
    events = executor.wait(20 * S).events
    assert [one for one in events if isinstance(one, ev.InferenceMoved)] == [BACK]
    assert [told[2] for told in over] == [outcome]
    assert executor.wait(90 * S).events == ()


@pytest.mark.parametrize("event", [ev.WorkerDied(20 * S, CAM, ev.Role.RETRAINING, "killed")])
def test_other_events_pass(moved, event) -> None:
    executor, world, over = moved
    world.told.append(event)
    assert (executor.wait(20 * S).events, over) == ((event,), [])


def test_the_coordinator_ends_moves_and_what_did_not_begin_yet_is_never_told(moved) -> None:
    executor, world, over = moved
    executor.keep_moves({7}, "why")
    assert executor.wait(10 * S).events == ()
    executor.keep_moves((), "its host died")
    assert executor.wait(20 * S) == Batch(10 * S, (ev.InferenceMoved(10 * S, CAM, 0),))
    executor.grant(replace(MOVE, number=8))
    executor.come_home(CAM, "its stream does not serve")
    world.told.append(THERE)
    assert executor.wait(10 * S).events == ()
    assert [told[2] for told in over] == ["its host died", "its stream does not serve"]
    assert world.ways == [("begin", 7), ("end", 7), ("begin", 8), ("end", 8)]


def test_a_second_move_of_a_stream_is_given_up(moved) -> None:
    executor, world, over = moved
    executor.grant(replace(MOVE, number=8))
    assert [(told[0].number, told[2]) for told in over] == [(8, "given up")]
    assert world.ways == [("begin", 7)]


def test_at_the_end_of_a_run_every_stream_comes_home(moved) -> None:
    executor, world, over = moved
    executor.give_up_all()
    assert [told[2] for told in over] == ["given up"]
    assert world.ways[-1] == ("end", 7)
