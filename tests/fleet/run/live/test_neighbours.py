"""Servers as one of them reaches the others, and the processes that it takes from them."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from by_hand import ByHand

from ekya.fleet.policy.places import NodeName, SiteName
from ekya.fleet.run.calls import CallError, LocalHandle
from ekya.fleet.run.live import neighbours
from ekya.fleet.run.live.neighbours import Neighbours
from ekya.fleet.run.live.orders import Neighbour
from ekya.fleet.run.training.protocol import FleetNode, NoProcessError

NORTH, SOUTH, WEST = map(SiteName, ("north", "south", "west"))
IN_SOUTH = FleetNode(NodeName("a loan"), SOUTH, "s", 300)


class Host:
    """A server that lends processes."""

    def __init__(self, machine_id, takes=True):
        self._machine, self.takes, self.given_back = machine_id, takes, []

    def take_process(self, borrower):
        if not self.takes:
            raise CallError("no guests any more")
        return f"a process for {borrower}"

    def give_back_process(self, borrower, process):
        self.given_back.append((borrower, process))

    def machine_id(self):
        return self._machine


def met(**hosts):
    """Returns neighbours by site, each with its handle and what identifies its process."""
    made = Neighbours(NORTH)
    made.add_neighbours({SiteName(site): Neighbour(*its) for site, its in hosts.items()})
    return made


def test_a_site_that_was_started_again_is_known_where_it_is_now_and_the_others_stay() -> None:
    known = met(south=("before", "s"), west=("west", "w"))
    known.add_neighbours({SOUTH: Neighbour("now", "s again")})
    assert (known.neighbour_at(SOUTH), known.neighbour_at(WEST)) == (
        Neighbour("now", "s again"),
        Neighbour("west", "w"),
    )
    with pytest.raises(CallError, match="north is not reached"):
        known.neighbour_at(NORTH)


def test_a_machine_is_there_while_its_server_says_so(monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "_SAYS_MACHINE_S", 0.05)
    north, again, silent, dead = (ByHand(Host(machine), 0) for machine in ("n", "s again", "w", "e"))
    silent.silent = True
    dead.die()
    hosted = met(north=(north, "n"), south=(again, "s"), west=(silent, "w"), east=(dead, "e"))
    asked = ("n", "s", "w", "e", "unknown")
    assert [machine for machine in asked if hosted.is_there(machine)] == ["n"]


def test_a_borrower_takes_a_process_from_a_server_and_gives_it_back_there() -> None:
    host = Host("s")
    hosted = met(south=(LocalHandle(host, 1), "s"))
    process = hosted.take_process(IN_SOUTH)
    hosted.give_back_process(IN_SOUTH, process)
    assert hosted.is_there("s"), "calls run in order, so the process is back"
    assert host.given_back == [(NORTH, "a process for north")] == [(NORTH, process)]


def test_a_server_that_gives_no_process_away_is_told_apart_from_one_that_is_late(monkeypatch) -> None:
    monkeypatch.setattr(neighbours, "ANSWERS_WITHIN_S", 0.05)
    late = SimpleNamespace(call=lambda *_: Future())
    full = ByHand(Host("s", takes=False), 0)
    for hosts, why in (
        ({"south": (full, "s")}, "south gives no process away: no guests any more"),
        ({"south": (late, "s")}, "south gives no process away: no answer for 0.05 s"),
        ({}, "south gives no process away: south is not reached"),
    ):
        with pytest.raises(NoProcessError, match=why):
            met(**hosts).take_process(IN_SOUTH)


def test_a_process_of_a_server_that_is_gone_is_given_back_to_nobody() -> None:
    met().give_back_process(IN_SOUTH, "a process")
