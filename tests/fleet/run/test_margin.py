"""The margin: a coordinator lends what pays by what former loans brought, also after it was started again."""

import json
from dataclasses import replace

import peers_by_hand
import pytest
from peers_by_hand import CAM, S
from trace_servers import TraceServer, play_servers

from ekya.core.speed import LINEAR
from ekya.fleet.policy.loans import Links, loan_cost
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.promises import LEAST, Promises
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.loan_file import LoanFile, learnt, read_loans
from ekya.fleet.run.server import ServerTerms
from ekya.planning.schedulers.registry import make_scheduler
from ekya.simulation.trace.generate import generate_trace
from ekya.simulation.trace.generator_parameters import GeneratorParameters
from ekya.simulation.trace.simulate import Conditions

HOST, HONEST, BOASTING = map(SiteName, ("host", "honest", "boasting"))


class Server(peers_by_hand.Server):
    """A server; the host lends five tenths of a GPU, each of which costs it ``loss`` of accuracy."""

    def __init__(self, site, loss):
        super().__init__(site, 5 if site == HOST else 0)
        self.loss = loss

    def spare_room(self, now_us, until_us):
        room = super().spare_room(now_us, until_us)
        return room and replace(room, loss=tuple(self.loss * units for units in range(1, 6)))


def offer(site, now_us=0):
    return replace(peers_by_hand.offer(CAM, site, until_us=now_us + 100 * S), now_us=now_us)


def coordinator(file=lambda made: None, loss=0.01, promises=None):
    made = LoanCoordinator(TIERS["net"], Links(), record=file, promises=promises)
    for site in (HOST, HONEST, BOASTING):
        made.add_borrower(site, server := Server(site, loss))
        made.add_lender(site, server)
    return made


def borrow(above, site, now_us, kept, serves_after_us=0):
    """Asks for a loan that keeps this part of its promise, and returns it; None where there is none."""
    loan = above.answer_offers(site, now_us, [offer(site, now_us)]).loan
    if loan is not None:
        above.end_loan(site, CAM, loan.arrives_us, "arrived", {})
        above.record_gain(loan, kept * loan.promises, serves_after_us)
    above.answer_offers(site, now_us, [])  # it offers nothing more in this window
    return loan


def windows(above, count, kept):
    """Lets each server ask once a window; returns the numbers of loans that each got, window by window."""
    got = {site: [] for site in kept}
    for window in range(count):
        for site, part in kept.items():
            got[site].append(borrow(above, site, window * 200 * S, part) is not None)
    return got


def test_a_server_whose_promises_never_come_true_ends_up_with_no_loan_and_the_other_goes_on() -> None:
    got = windows(coordinator(loss=0.02), 60, {HONEST: 1.0, BOASTING: 0.0})
    assert got[HONEST] == [True] * 60
    # The more the fleet keeps, the more is expected of it, too: it is tried again, ever more rarely.
    tried = [window for window, lent in enumerate(got[BOASTING]) if lent]
    assert tried[0] == 0
    assert tried[-1] < 30


def test_what_costs_nothing_is_lent_to_any_server_so_that_it_may_recover() -> None:
    above = coordinator(loss=0.0)
    assert all(windows(above, 30, {BOASTING: 0.0})[BOASTING])
    last = borrow(above, BOASTING, 30 * 200 * S, 1.0)
    assert (last.offer.margin, last.offer.gain) == (LEAST, pytest.approx(0.1 * LEAST))
    assert last.promises == pytest.approx(10 * last.brings)
    for window in range(31, 61):
        last = borrow(above, BOASTING, window * 200 * S, 1.0)
    assert last.offer.margin > 0.4


def test_a_promise_is_measured_by_the_estimate_of_its_server_and_not_by_what_was_expected_of_it() -> None:
    """Else a server whose estimates are twice too high would be expected to keep ever less of them."""
    above = coordinator(loss=0.0)
    windows(above, 60, {BOASTING: 0.5})
    assert borrow(above, BOASTING, 60 * 200 * S, 0.5).offer.margin == pytest.approx(0.5, abs=0.02)


def test_the_time_until_weights_serve_is_taken_off_the_gain_of_the_next_loan() -> None:
    above = coordinator()
    first = borrow(above, HONEST, 0, 1.0, serves_after_us=2 * S)
    second = borrow(above, HONEST, 200 * S, 1.0)
    assert second.arrives_us == first.arrives_us + 200 * S, "its host is not held any longer"
    assert second.brings == pytest.approx(first.brings - 0.1 * 2)


@pytest.fixture
def written(tmp_path):
    """The file of two loans that are over and one that is not, and the coordinator that made them."""
    file = LoanFile(tmp_path / "loans.jsonl")
    above = coordinator(file, loss=0.002)
    late = above.answer_offers(BOASTING, 0, [offer(BOASTING)]).loan
    above.end_loan(BOASTING, CAM, late.arrives_us + 3 * S, "arrived", {})
    above.record_gain(late, 0.25 * late.promises, 2 * S)
    given_up = above.answer_offers(HONEST, 200 * S, [offer(HONEST, 200 * S)]).loan
    above.end_loan(HONEST, CAM, given_up.arrives_us + 20 * S, "given up", {})
    above.record_gain(given_up, 0.0, None)
    above.answer_offers(HONEST, 400 * S, [offer(HONEST, 400 * S)])
    file.close()
    return tmp_path / "loans.jsonl", above


def test_each_loan_is_written_down_with_what_it_should_bring_and_cost_and_what_came(written) -> None:
    path, above = written
    first, over, came, *_ = map(json.loads, path.read_text().splitlines())
    made = above.loans[0]
    room = Room(HOST, 100, tuple(0.002 * units for units in range(1, 6)), LINEAR)
    assert first["costs"] == pytest.approx(loan_cost(made.loan, [room]), abs=1e-6)
    assert (first["brings"], first["promises"]) == (
        pytest.approx(made.loan.brings, abs=1e-6),
        pytest.approx(made.loan.promises, abs=1e-6),
    )
    assert 0.0 < first["costs"] < first["brings"]
    assert (over["came"], over["outcome"]) == (None, "arrived")
    assert (came["came"], came["serves_after_us"]) == (pytest.approx(0.25 * made.loan.promises), 2 * S)
    assert [one.came for one in read_loans(path)] == [came["came"], 0.0, None]


def test_the_next_coordinator_expects_what_the_one_before_it_did(written) -> None:
    path, above = written
    before, after = above._promises, learnt(read_loans(path))
    for site in (HONEST, BOASTING, HOST):
        assert after.kept_part(site) == pytest.approx(before.kept_part(site), abs=1e-6)
        assert after.late.expected_delay_us(site) == before.late.expected_delay_us(site)
        assert after.serving.expected_delay_us(site) == before.serving.expected_delay_us(site)
    assert before.kept_part(BOASTING) < before.kept_part(HOST) < 1.0
    assert (after.late.expected_delay_us(HOST), after.serving.expected_delay_us(BOASTING)) == (23 * S, 2 * S)
    loan = borrow(coordinator(loss=0.0, promises=after), BOASTING, 600 * S, 1.0)
    assert (loan.late_us, loan.offer.serves_after_us) == (23 * S, 2 * S)
    assert loan.offer.margin == pytest.approx(before.kept_part(BOASTING), abs=1e-6)


def test_of_a_loan_that_was_over_before_the_coordinator_died_is_learnt_what_came() -> None:
    loan = coordinator().answer_offers(BOASTING, 0, [offer(BOASTING)]).loan
    again = coordinator(file=pytest.fail, promises=Promises())
    again.record_gain(replace(loan, number=5), 0.0, None)
    assert again._promises.kept_part(BOASTING) < 1.0


def test_servers_of_the_trace_world_report_what_every_loan_has_brought() -> None:
    busy, idle = SiteName("busy"), SiteName("idle")
    servers = [
        TraceServer(
            ServerTerms(site, samples_may_leave="crops"),
            generate_trace(200 + streams, streams, 3, GeneratorParameters(trial_part=0.2)),
            Conditions(gpus=gpus, windows=3, preparation_share_milli=300, error_sd=0.0),
        )
        for site, streams, gpus in ((busy, 5, 1.0), (idle, 1, 2.0))
    ]
    loans = play_servers(servers, make_scheduler("thief"), TIERS["net"], Links()).loans
    assert loans
    for made in loans:
        # With exact estimates all comes, and snapshots may bring some of it while the training goes on.
        assert made.came >= 0.8 * made.loan.promises
        assert made.came <= 1.2 * made.loan.offer.promised_if_arrives(made.loan.begins_us)
