"""A fleet over slow, far and lossy links: 50 Mbit/s, 20 ms each way, one packet in a hundred lost."""

import pytest
from host_namespaces import why_not
from host_network import HostNetwork
from host_town import SITES, Town
from host_wires import Link
from waiting import LONG_GUARD_S

pytestmark = [pytest.mark.live, pytest.mark.long]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with HostNetwork(4, Link(rate_mbit_s=50, delay_ms=20, loss=0.01)) as network:
        yield Town(network, tmp_path_factory.mktemp("town"))


def test_links_are_measured_and_a_fleet_runs_with_what_they_carry(town) -> None:
    for site in SITES:
        town.start(site)
    told = town.doctor("--write", "measured.yaml")
    rates_mb_s = [link["mb_s"] for link in told["links"]]
    assert len(rates_mb_s) == 6
    assert all(0 < rate < 6.5 for rate in rates_mb_s), rates_mb_s
    process = town.begins("slow", servers="measured.yaml")
    assert process.wait(LONG_GUARD_S) == 0, process.stderr.read()
    told = town.summary("slow")
    assert [its["died_s"] for its in told["servers"].values()] == [None] * 3
    assert [its["away_s"] for its in told["servers"].values()] == [[]] * 3, "a slow link is no cut"
    assert told["frames"]["lost"] == 0
    made = [one for one in town.loans("slow") if "site" in one]
    ended = [one for one in town.loans("slow") if "outcome" in one]
    assert {one["loan"] for one in ended} == {one["loan"] for one in made}
    # What the slowest link would not bring home in time is not lent: a window is 36 s.
    assert all(one["arrives_us"] - one["agreed_us"] < 36e6 for one in made)
    for site in SITES:
        assert town.silent_windows("slow", site) == []
        assert not town.deaths("slow", site)
