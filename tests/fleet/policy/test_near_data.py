"""Markets as fleets of Okita's, and Okita's decisions as loans."""

from dataclasses import replace

import pytest
from loan_cases import HOME, links, market, offer, room

from ekya.fleet.policy.assignment import Decision
from ekya.fleet.policy.near_data import NearData
from ekya.fleet.policy.okita.framework import Okita
from ekya.fleet.policy.places import NodeName, SiteName

A, B, C, D = map(SiteName, "abcd")
FOUR = [room(site, [0.002, 0.005]) for site in "abcd"]


class Watching:
    """Lets every job wait, and records the view."""

    name = "watching"

    def decide(self, view):
        self.view = view
        return Decision((), {state.job.name: "it only watches" for state in view.jobs})


def seen(offers, rooms=tuple(FOUR), **about):
    policy = Watching()
    NearData(lambda slot_us: policy)(market(offers, rooms, **about))
    return policy.view


def test_a_chunk_is_what_a_unit_takes_through_all_epochs_in_a_slot_and_all_jobs_have_the_same_slot() -> None:
    one, other = (state.job for state in seen([offer(stream="1"), offer(stream="2", gpu_s=5.0)]).jobs)
    # A window of 190 s has slots of 9.5 s. A tenth of a GPU trains the whole in 200 s, and in 50 s.
    assert (one.chunks, other.chunks) == ({HOME: 22}, {HOME: 6})
    assert one.chunks_per_slot == pytest.approx(22 / (200 / 9.5))
    assert one.chunk_mb == pytest.approx(1.2 / 22)
    # 18.2 crops are 1.1 steps, in ten epochs and both directions.
    assert one.model_mb == pytest.approx(2 * 10 * 400 / 22 / 16 * 0.13)
    assert one.waiting.cost_after(8.0) == pytest.approx(0.8)


def test_chunks_lie_where_hosts_hold_crops() -> None:
    def lying(there):
        (state,) = seen([offer(gpu_s=23.0, crops_there_mb=there)]).jobs
        return state.job.chunks

    assert lying({B: 0.6, D: 1.0}) == {B: 12, D: 13}
    assert lying({B: 0.3}) == {B: 6, HOME: 19}
    assert lying({SiteName("elsewhere"): 1.2}) == {HOME: 25}


def test_what_runs_is_a_job_with_its_workers_and_what_is_left_of_it() -> None:
    (loan,) = NearData(Okita)(market([offer()], FOUR)).loans
    now_us = (loan.begins_us + loan.ends_us) // 2
    waits = replace(offer(stream="new"), now_us=now_us)
    new, old = sorted(
        seen([waits], running=[loan], now_us=now_us).jobs, key=lambda one: one.job.name != "home/new"
    )
    assert new.assignment is None
    units = {part.node: part.workers for part in old.assignment.parts}
    assert units == {NodeName(part.host): part.share_milli // 100 for part in loan.parts}
    assert sum(old.left.chunks.values()) < sum(new.left.chunks.values())
    # What is less than a chunk at each host counts as at home.
    assert old.job.chunks.get(HOME, 0) < len(loan.parts)


def test_nobody_hosts_its_own_job_whatever_is_near() -> None:
    offers = [offer(site=site, gpu_s=5.0, model_mb=1.0, back_mb=1.0) for site in (A, B)]
    loans = NearData(Okita)(market(offers, FOUR[:2], links(0.5))).loans
    assert loans
    assert all(loan.offer.site not in loan.hosts for loan in loans)


def test_workers_train_what_their_share_of_the_chunks_is() -> None:
    (loan,) = NearData(Okita)(market([offer()], FOUR)).loans
    assert sum(part.crops for part in loan.parts) == pytest.approx(1.0)
    workers = sum(part.share_milli for part in loan.parts) // 100
    assert workers > 2
    for part in loan.parts:
        assert part.crops == pytest.approx(part.share_milli / 100 / workers, abs=0.01)
    assert loan.mode == "synchronous"


def test_what_steps_exchange_keeps_blocks_together() -> None:
    (loan,) = NearData(Okita)(market([offer(trained_mb=33.6)], FOUR)).loans
    assert len(loan.hosts) == 1
    assert loan.epoch_mb == {}


def test_a_training_is_where_the_data_is() -> None:
    ways = links(2.0, home_a=0.5, home_b=0.5, home_c=0.5)
    for site in (A, B, C):
        asked = offer(
            crops=32, crops_mb=40.0, model_mb=0.0, crops_there_mb={site: 40.0}, gpu_s=5.0, trained_mb=9.0
        )
        (loan,) = NearData(Okita)(market([asked], FOUR[:3], ways)).loans
        assert loan.hosts == (site,)
        assert loan.sent_mb == {(HOME, site): 0.0}


def test_where_nobody_has_room_there_is_no_loan() -> None:
    assert NearData(Okita)(market([offer()], [])).refused == {(HOME, "cam"): "no other server has room"}
    alone = NearData(Okita)(market([offer(site=A)], FOUR[:1]))
    assert (alone.loans, alone.refused) == ((), {(A, "cam"): "no other server has room"})
