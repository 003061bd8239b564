"""Offers as Okita jobs, and Okita's decisions as loans."""

import pytest
from loan_cases import HOME, NOW_US, QUICK_WHEN_SMALL, links, offer, room

from ekya.fleet.policy.brokering import worth
from ekya.fleet.policy.names import SiteName
from ekya.fleet.policy.near_data import NearData, job_of
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.okita.joint import OkitaJoint
from ekya.fleet.policy.splitting import Splitter
from ekya.fleet.policy.spreading import Spread

A, B, C, D = map(SiteName, "abcd")
FOUR = [room(site, [0.002, 0.005]) for site in "abcd"]


def job(rooms=tuple(FOUR), **changes):
    units = {one.site: len(one.loss) for one in rooms}
    return job_of(NOW_US, Spread(offer(**changes), links(), {one.site: one for one in rooms}, units, A))


def test_an_offer_is_a_job_whose_chunks_are_steps_and_whose_slot_a_worker_needs_for_one() -> None:
    made, slot_us = job()
    assert made.chunks == {HOME: 25}
    assert made.chunk_mb == pytest.approx(1.2 / 25)
    # Ten epochs, in both directions.
    assert made.model_mb == pytest.approx(2 * 10 * 0.13)
    # A tenth of a GPU trains all chunks in 200 s.
    assert slot_us == pytest.approx(200e6 / 25)
    assert made.waiting.of(8.0) == pytest.approx(0.8)
    assert job([room("a", [0.0]), room("b", [0.0], QUICK_WHEN_SMALL)])[1] == slot_us


def test_chunks_lie_where_a_former_loan_left_crops() -> None:
    assert job(crops_there_mb={B: 0.6, D: 1.0})[0].chunks == {B: 12, D: 13}
    assert job(crops_there_mb={B: 0.3})[0].chunks == {B: 6, HOME: 19}
    assert job(crops_there_mb={SiteName("elsewhere"): 1.2})[0].chunks == {HOME: 25}


@pytest.mark.parametrize("policy", [Okita, OkitaJoint])
def test_workers_train_what_their_share_of_the_chunks_is(policy) -> None:
    loan = NearData(policy)(NOW_US, offer(), FOUR, links())
    assert sum(part.crops for part in loan.parts) == pytest.approx(1.0)
    workers = sum(part.share_milli for part in loan.parts) // 100
    # Each worker trains three or four of the 25 chunks.
    assert workers == 7
    for part in loan.parts:
        assert part.crops == pytest.approx(part.share_milli / 100 / workers, abs=0.01)
    assert 0.9 * worth(Splitter()(NOW_US, offer(), FOUR, links()), FOUR) < worth(loan, FOUR)


@pytest.mark.parametrize("policy", [Okita, OkitaJoint])
def test_what_steps_exchange_keeps_blocks_together(policy) -> None:
    loan = NearData(policy)(NOW_US, offer(trained_mb=33.6), FOUR, links())
    assert len(loan.hosts) == 1
    assert loan.epoch_mb == {}


def test_ours_trains_where_the_data_is() -> None:
    ways = links(1000.0, home_a=0.5, home_b=0.5, home_c=0.5)
    for site in (A, B, C):
        asked = offer(crops=32, crops_mb=40.0, model_mb=0.0, crops_there_mb={site: 40.0}, gpu_s=5.0)
        loan = NearData(OkitaJoint)(NOW_US, asked, FOUR[:3], ways)
        assert loan.hosts == (site,)
        assert loan.sent_mb == {(HOME, site): 0.0}


def test_where_nobody_is_worth_asking_there_is_no_loan() -> None:
    assert NearData(Okita)(NOW_US, offer(), FOUR[:1], links()) is None
    assert NearData(Okita)(NOW_US, offer(), [], links()) is None
