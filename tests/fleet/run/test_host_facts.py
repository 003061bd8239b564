"""What facts of hosts and links mean."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.fleet.run.host_facts import (
    MOST_OFFSET_US,
    FleetFacts,
    Link,
    SiteHostFacts,
    clock_problems,
    link_of,
    rate_problems,
    steps_of,
    version_problems,
)

MS = 1_000_000
"""In nanoseconds."""


def host(*wrong, **versions):
    return SiteHostFacts("", versions, {}, wrong)


def link(mb_s=100.0, round_trip_us=200, ahead_us=0):
    return Link(mb_s, round_trip_us, ahead_us)


def linked(clocks, **terms):
    """Returns the facts of hosts whose clocks are ahead of true time by so many microseconds."""
    links = {
        (one, other): link(ahead_us=clocks[one] - clocks[other], **terms)
        for one, other in itertools.permutations(clocks, 2)
    }
    return FleetFacts({name: host() for name in clocks}, links, ())


def test_the_shortest_trip_gives_the_offset_within_half_of_it():
    ahead = 70 * MS
    # 2 ms there and 4 back; the longer trip, whose way there took 90 ms, would give an offset of 115 ms.
    trips = [(1000 * MS, 1090 * MS + ahead, 1090 * MS), (2000 * MS, 2002 * MS + ahead, 2006 * MS)]
    found = link_of(trips, [(0, 0), (MS, 1)])
    assert found.round_trip_us == 6000
    assert abs(found.ahead_us - 70_000) <= found.round_trip_us / 2
    assert found.ahead_us == 69_000


@given(st.integers(-(10**12), 10**12), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_error_of_an_offset_is_at_most_half_the_round_trip(ahead_ns, there_ns, back_ns):
    trip = (0, there_ns + ahead_ns, there_ns + back_ns)
    found = link_of([trip], [(0, 0), (1, 1)])
    assert abs(found.ahead_us * 1000 - ahead_ns) <= (there_ns + back_ns) / 2 + 2000


def test_the_rate_leaves_out_the_first_half_when_tcp_is_slow():
    slow = [(at * MS, at * 1000) for at in range(101)]  # 1 MB/s
    fast = [((100 + at) * MS, 100_000 + at * 50_000) for at in range(1, 101)]  # 50 MB/s
    assert link_of([(0, 0, 1)], slow + fast).mb_s == pytest.approx(50.0)


def test_the_rate_of_a_transfer_with_one_arrival_is_that_of_all():
    assert link_of([(0, 0, 1)], [(0, 0), (10 * MS, 1_000_000)]).mb_s == pytest.approx(100.0)


def test_versions_that_differ_name_host_and_remedy():
    nodes = {"east": {"torch": "2.15.0"}, "north": {"torch": "2.15.0"}, "south": {"torch": "2.14.1"}}
    told = "south: torch is 2.14.1, but 2.15.0 on east, north; install 2.15.0 there"
    assert list(version_problems(nodes)) == [told]


def test_of_equally_frequent_versions_the_newest_is_asked_for():
    nodes = {"north": {"ekya": "0.10.0"}, "south": {"ekya": "0.9.2"}}
    assert list(version_problems(nodes)) == [
        "south: ekya is 0.9.2, but 0.10.0 on north; install 0.10.0 there"
    ]


def test_equal_versions_and_packages_that_are_missing_are_no_difference():
    nodes = {"north": {"ray": "2.60.0", "torch": ""}, "south": {"ray": "2.60.0", "torch": "2.15.0"}}
    assert list(version_problems(nodes)) == []


def test_one_clock_that_is_off_among_three_is_the_only_one_told():
    facts = linked({"east": 0, "north": 5_000_000, "south": 40})
    assert facts.clocks["north"][0] == pytest.approx(5_000_000, abs=40)
    (told,) = facts.problems({})
    assert told == "north: its clock is 5.00 s ahead (within 0.1 ms); set it by NTP"


@given(st.lists(st.integers(-(10**7), 10**7), min_size=2, max_size=6))
def test_clocks_are_consistent_however_many_are_off(ahead_us):
    facts = linked(dict(enumerate(ahead_us)))
    reference = {true - facts.clocks[at][0] for at, true in enumerate(ahead_us)}
    assert len(reference) == 1
    assert reference <= set(ahead_us)


def test_of_two_clocks_that_differ_one_is_told():
    (told,) = linked({"north": 0, "south": -3_000_000}).problems({})
    assert told.startswith("south: its clock is 3.00 s behind")


def test_clocks_that_differ_by_a_second_are_no_problem():
    assert linked({"north": 0, "south": -1_000_000}).problems({}) == ()


@pytest.mark.parametrize(("error_us", "problems"), [(10_000, 1), (60_000, 0)])
def test_a_clock_is_told_only_if_it_is_certainly_off(error_us, problems):
    assert len(list(clock_problems({"north": (MOST_OFFSET_US + 50_000, error_us)}))) == problems


def test_links_slower_than_the_servers_file_says_are_told():
    links = {("north", "south"): link(mb_s=3.14159), ("south", "north"): link(mb_s=12.0)}
    (told,) = rate_problems(links, {("north", "south"): 12.5, ("south", "north"): 12.5})
    assert told.startswith("north to south: 3.14 MB/s, but 12.5 in the servers file; ")
    assert list(rate_problems(links, {("north", "south"): 3.0, ("north", "east"): 9.0})) == []


def test_each_problem_is_told_once():
    hosts = {"north": host("Memory: 1.0 GB free", ray="2.60.0"), "south": host(ray="2.59.0")}
    links = {way: link(mb_s=1.0) for way in (("north", "south"), ("south", "north"))}
    told = FleetFacts(hosts, links, ("east: no answer within 60 s",)).problems(dict.fromkeys(links, 12.5))
    starts = ("east: ", "north: Memory", "south: ray", "north to south: ", "south to north: ")
    assert len(told) == len(starts)
    assert all(one.startswith(start) for one, start in zip(told, starts, strict=True))
    assert len(FleetFacts(hosts, links, ()).problems({})) == 2


@given(st.integers(0, 12))
def test_every_pair_is_measured_once_and_no_host_twice_at_the_same_time(count):
    steps = list(steps_of([str(at) for at in range(count)]))
    ways = [way for step in steps for way in step]
    assert sorted(ways) == sorted(itertools.permutations([str(at) for at in range(count)], 2))
    assert all(len({name for way in step for name in way}) == 2 * len(step) for step in steps)
    assert len(steps) <= 2 * count
