"""Services of docs/fleet/hosts.md on three hosts, and what happens when something fails."""

import time
from itertools import pairwise

import pytest
from host_namespaces import why_not
from host_network import HostNetwork
from host_town import SITES, WINDOW_S, Town, answered_within
from host_wires import Link
from waiting import LONG_GUARD_S, wait_until

pytestmark = [pytest.mark.live, pytest.mark.long]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with HostNetwork(3, Link(rate_mbit_s=200, delay_ms=5, loss=0)) as network:
        yield Town(network, tmp_path_factory.mktemp("town"))


def undisturbed(town, name, *sites):
    """Asserts that no frame, window or process of these services was lost."""
    for site in sites:
        assert town.summary(name, site)["frames"]["lost"] == 0
        assert town.silent_windows(name, site) == []
        assert not town.deaths(name, site)


def every_loan_has_an_end_and_none_runs_twice(town, name):
    made = {one["loan"]: one for one in town.loans(name) if "site" in one}
    ended = {one["loan"]: one for one in town.loans(name) if "outcome" in one}
    assert sorted(ended) == sorted(made)
    # No stream is trained under two loans at a time.
    for stream in {one["stream"] for one in made.values()}:
        spans = sorted(
            (one["agreed_us"], ended[number]["over_us"])
            for number, one in made.items()
            if one["stream"] == stream
        )
        assert all(over_us <= next_us for (_, over_us), (next_us, _) in pairwise(spans))
    return made, ended


def test_services_run_and_north_borrows(town) -> None:
    town.begins("quiet")
    town.wait()
    _, ended = every_loan_has_an_end_and_none_runs_twice(town, "quiet")
    assert "arrived" in {one["outcome"] for one in ended.values()}
    undisturbed(town, "quiet", *SITES)


def test_a_service_that_is_cut_off_for_a_minute_goes_on_alone_and_takes_part_again(town) -> None:
    town.begins("cut", windows=5)
    wait_until(lambda: "south" in town.lending("cut"), guard_s=LONG_GUARD_S)
    town.network.partition(SITES["south"])
    time.sleep(60)
    before = {one["loan"] for one in town.loans("cut")}
    town.network.heal(SITES["south"])
    town.wait()
    made, ended = every_loan_has_an_end_and_none_runs_twice(town, "cut")
    assert any("south died" in one["outcome"] for one in ended.values())
    assert "south" in {one["host"] for number, one in made.items() if number not in before}, "it lends again"
    undisturbed(town, "cut", *SITES)


def test_a_service_that_is_cut_off_for_ten_minutes_goes_on_alone_and_could_lend_again(town) -> None:
    cut_s = 600
    windows = (cut_s + 90) // WINDOW_S + 3
    town.begins("long-cut", windows)
    time.sleep(WINDOW_S / 2)
    town.network.partition(SITES["south"])
    time.sleep(cut_s)
    town.network.heal(SITES["south"])
    town.room("south")
    town.wait()
    for site in SITES:
        assert [one.index for one in town.windows("long-cut", site)] == list(range(windows))
    undisturbed(town, "long-cut", *SITES)


def test_a_service_that_is_killed_and_started_again_takes_part_again(town) -> None:
    town.begins("again", windows=5)
    wait_until(lambda: "south" in town.lending("again"), guard_s=LONG_GUARD_S)
    town.kill("south")
    town.start("again", "south")
    town.room("south")
    town.wait()
    every_loan_has_an_end_and_none_runs_twice(town, "again")
    opened = town.windows("again", "south")
    assert [one.index for one in opened] == list(range(5))
    assert answered_within(town.run_folder("again", "south"), "cam-3", opened[-1])
    undisturbed(town, "again", "north", "west")


def test_one_that_borrows_and_is_killed_leaves_no_share_lent(town) -> None:
    town.begins("borrower", windows=5)
    wait_until(lambda: "south" in town.lending("borrower"), guard_s=LONG_GUARD_S)
    town.kill("north")
    town.wait("south", "west")
    told = [one.share_milli for one in town.lent("borrower", "south")]
    assert max(told) > 0 and told[-1] == 0
    undisturbed(town, "borrower", "south", "west")


def test_andreas_decides_live(town) -> None:
    town.begins("andreas", windows=2, tier="andreas")
    town.wait()
    every_loan_has_an_end_and_none_runs_twice(town, "andreas")
    undisturbed(town, "andreas", *SITES)


def test_a_host_that_is_killed_takes_no_other_along(town) -> None:
    town.begins("storm")
    time.sleep(WINDOW_S)
    town.kill("west")
    town.wait("north", "south")
    assert town.summary("storm", "north")["mean_accuracy"] > 0.3
    undisturbed(town, "storm", "north", "south")
