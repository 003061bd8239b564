"""Services over slow, far and lossy links: 50 Mbit/s, 20 ms each way, one packet in a hundred lost."""

import pytest
from host_namespaces import why_not
from host_network import HostNetwork
from host_town import SITES, Town
from host_wires import Link

pytestmark = [pytest.mark.live, pytest.mark.long]


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    with HostNetwork(3, Link(rate_mbit_s=50, delay_ms=20, loss=0.01)) as network:
        yield Town(network, tmp_path_factory.mktemp("town"), mb_s=2)


def test_services_lend_what_their_links_carry(town) -> None:
    town.begins("slow")
    town.wait()
    made = [one for one in town.loans("slow") if "site" in one]
    ended = [one for one in town.loans("slow") if "outcome" in one]
    assert {one["loan"] for one in ended} == {one["loan"] for one in made}
    assert not any("died" in one["outcome"] for one in ended), "a slow link is no cut"
    # What the slowest link would not bring home in time is not lent: a window is 36 s.
    assert all(one["arrives_us"] - one["agreed_us"] < 36e6 for one in made)
    for site in SITES:
        assert town.summary("slow", site)["frames"]["lost"] == 0
        assert town.silent_windows("slow", site) == []
        assert not town.deaths("slow", site)
