"""Services that lend over HTTP: what is trained, what is refused in which words, what ends by itself."""

import logging

import pytest
from bundles import bundle_with
from certificates import make_certificate
from fake_service import TOKEN
from http_asking import BEARER, serving
from lent_by_hand import Machine
from waiting import HANG_GUARD_S, wait_until

from ekya import __version__
from ekya.config.fleet_sections import LenderConfig
from ekya.core.speed import LINEAR
from ekya.fleet.policy.places import SiteName
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.live import lender as lender_module
from ekya.fleet.run.live.lender import DIGEST_HEADER, LENDING, VERSION_HEADER, Lender
from ekya.fleet.run.live.lending_desk import SILENT_S, LendingDesk
from ekya.fleet.run.training.bundle_file import digest_of, pack_bundle
from ekya.fleet.run.training.protocol import CallError, GoneError, Host
from ekya.fleet.run.training.trainer import RemoteTraining
from ekya.models.edge.checkpoints import from_bytes

S = 1_000_000
HOME, SOUTH = SiteName("home"), SiteName("south")
ONE, OTHER = "0" * 16, "1" * 16
ITS_HEADERS = {**BEARER, VERSION_HEADER: __version__}


class LendingService:
    """A service that lends: its room, what its executor hears, and its clocks, which tests set."""

    def __init__(self, folder):
        self.machine, self.now_us, self.now_s, self.units = Machine(), 500 * S, 0.0, 5
        self.lent, self.back, self.folder, self.executor = {}, [], folder, self
        self.begin()

    def begin(self):
        self.desk = LendingDesk(self.folder / "lent", self.machine, lambda: self.now_us, lambda: self.now_s)
        self.desk.open_for(self)

    def lending(self):
        return self.desk

    def spare_room(self, now_us, until_us):
        return Room(SiteName("its own name"), 100, (0.01,) * self.units, LINEAR) if self.units else None

    def lend_share(self, number, lent):
        self.lent[number] = lent
        return True

    def take_back_share(self, number, at_us):
        self.back.append(number)


@pytest.fixture
def host(tmp_path):
    made = LendingService(tmp_path)
    yield made
    if made.desk is not None:
        made.desk.close()


@pytest.fixture
def asks(host, tmp_path):
    with serving(host, tmp_path) as asking:
        yield asking


@pytest.fixture
def lender(asks, monkeypatch):
    """The service as another one reaches it, whose run time is 7 s."""
    monkeypatch.setenv("SOUTH_TOKEN", TOKEN)
    made = lender_of(asks.url)
    yield made
    made.close()


def lender_of(url, borrower=ONE, token="${SOUTH_TOKEN}", ca=None):
    url = url.replace("://", f"://ekya:{token}@")
    return Lender(LenderConfig(url=url, name="south", ca=ca), borrower, lambda: 7 * S)


LENT = Lent(300, 8 * S, 27 * S)


def test_it_trains_over_http_what_it_would_here_to_the_bit(model, lender, host) -> None:
    def trained(there, loan):
        training = RemoteTraining(
            "cam",
            lambda: bundle,
            bundle.config.epochs,
            Host(SOUTH, loan, 300, there),
            HOME,
            lambda site: None,
        )
        training.start_thread()
        assert training.wait(HANG_GUARD_S)
        return training.poll(), from_bytes(training.best_yet().weights).state_dict()

    bundle = bundle_with(model, exemplars=20)
    assert lender.lend_share(4, LENT)
    told, weights = trained(lender, lender.loan_id(4))
    here, its_weights = trained(Machine(), "here")
    assert (told.state, told.epochs) == ("done", here.epochs)
    assert told.sent[HOME, SOUTH] == here.sent[HOME, SOUTH]
    assert all((of == its_weights[name]).all() for name, of in weights.items())
    wait_until(lambda: host.back and not host.desk._loans, "the loan ends")
    assert not list((host.folder / "lent").iterdir()), "nothing of it stays"


def test_times_are_since_the_request_so_that_clocks_need_not_agree(lender, host) -> None:
    assert lender.lend_share(4, LENT)
    assert host.lent == {f"{ONE}-4": Lent(300, 500 * S, 520 * S)}


def test_a_room_has_the_name_that_it_has_here_and_is_what_others_leave(lender, host, asks) -> None:
    assert lender.spare_room(7 * S, 27 * S) == Room(SOUTH, 100, (0.01,) * 5, LINEAR)
    assert lender.lend_share(4, LENT)
    assert len(lender.spare_room(7 * S, 27 * S).loss) == 5, "its own loan is a part of it"
    assert len(lender_of(asks.url, OTHER).spare_room(7 * S, 27 * S).loss) == 2
    host.units = 0
    assert lender.spare_room(7 * S, 27 * S) is None


def test_who_asks_twice_borrows_once_and_nobody_more_than_there_is(lender, host, asks, caplog) -> None:
    other = lender_of(asks.url, OTHER)
    assert lender.lend_share(4, LENT) and lender.lend_share(4, LENT)
    assert not other.lend_share(4, LENT)
    assert "south: 0.3 of a GPU is not free any more; 0.2 is" in caplog.text
    assert list(host.lent) == [f"{ONE}-4"]
    lender.take_back_share(4, 0)
    wait_until(lambda: host.back)
    assert other.lend_share(5, LENT)


def test_a_training_that_is_sent_twice_begins_once(model, lender, host) -> None:
    loan, content = lender.loan_id(4), pack_bundle(bundle_with(model))
    lender.lend_share(4, LENT)
    lender.begin_training(loan, content)
    lender.begin_training(loan, content)
    wait_until(lambda: lender.read_progress(loan).over)
    assert (lender.read_progress(loan).state, host.machine.taken) == ("done", 1)
    assert not list((host.folder / "lent").iterdir())


def test_what_does_not_match_its_hash_is_not_trained_and_not_served(model, lender, asks, host) -> None:
    loan, content = lender.loan_id(4), pack_bundle(bundle_with(model))
    lender.lend_share(4, LENT)
    headers = {
        **ITS_HEADERS,
        DIGEST_HEADER: digest_of(b"another"),
        "Content-Type": "application/octet-stream",
    }
    answer = asks("PUT", f"{LENDING}/loans/{loan}/training", content, headers)
    assert (answer.status, "does not match its SHA-256" in answer.error) == (400, True)
    with pytest.raises(GoneError, match="has not come yet"):
        lender.read_progress(loan)
    lender.begin_training(loan, content)
    wait_until(lambda: lender.read_progress(loan).over)
    host.desk.read_checkpoint = lambda loan, digest: b"garbled"
    with pytest.raises(CallError, match="south: a checkpoint does not match its SHA-256; it is not used"):
        lender.fetch_checkpoint(loan, lender.read_progress(loan).best)


def test_a_wrong_token_is_refused_in_a_sentence_without_it(asks, monkeypatch) -> None:
    monkeypatch.setenv("SOUTH_TOKEN", "wrong" * 9)
    with pytest.raises(CallError) as raised:
        lender_of(asks.url).read_progress(f"{ONE}-1")
    assert str(raised.value) == "south refuses the token in lending.borrow_from; copy the one of its folder"


def test_a_service_without_tokens_lends_to_those_of_its_machine(host, tmp_path) -> None:
    with serving(host, tmp_path, token=None) as asks:
        lender = Lender(LenderConfig(url=asks.url), ONE, lambda: 7 * S)
        assert lender.lend_share(4, LENT)
        headers = {VERSION_HEADER: "0.0.1"}
        assert asks("DELETE", f"{LENDING}/loans/{ONE}-4", headers=headers).status == 409
        lender.close()


def test_another_version_is_refused_with_both(lender, monkeypatch) -> None:
    monkeypatch.setattr(lender_module, "__version__", "0.0.1")
    said = f"south: it has Ekya {__version__}, and who asks has 0.0.1; install the same at both"
    with pytest.raises(CallError) as raised:
        lender.read_progress(f"{ONE}-1")
    assert str(raised.value) == said


@pytest.mark.parametrize("loan", ["1", "../x-1", f"{ONE}-1.x", f"{ONE}-"])
def test_what_is_no_id_of_a_loan_is_no_name_of_a_file(loan, asks, host) -> None:
    terms = {"share_milli": 100, "lasts_us": S}
    answer = asks("PUT", f"{LENDING}/loans/{loan.replace('/', '%2F')}", terms, ITS_HEADERS)
    assert (answer.status, "is no id of a loan" in answer.error, host.lent) == (400, True, {})


def test_a_service_that_was_started_again_knows_no_loan_of_before(model, lender, host) -> None:
    lender.lend_share(4, LENT)
    host.machine.waits = {1}
    lender.begin_training(lender.loan_id(4), pack_bundle(bundle_with(model)))
    before = host.desk
    host.begin()
    with pytest.raises(GoneError, match="it has ended, or this service was restarted"):
        lender.read_progress(lender.loan_id(4))
    host.machine.goes_on.set()
    before.close()


def test_one_that_lends_nothing_says_how_it_would(lender, host) -> None:
    host.desk = None
    with pytest.raises(GoneError, match="this service lends nothing; start it with --lend"):
        lender.read_progress(f"{ONE}-1")


def test_who_is_not_reached_has_no_room_and_that_is_said_once(caplog) -> None:
    caplog.set_level(logging.WARNING)
    lender = lender_of("http://127.0.0.1:9", token="")
    for _ in range(3):
        assert lender.spare_room(0, S) is None
    (said,) = caplog.messages
    assert said == "south refuses connections: start ekya serve there, or correct its URL"


def test_a_service_lends_by_its_own_certificate_and_no_other(host, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("SOUTH_TOKEN", TOKEN)
    certificate, key = make_certificate(tmp_path)
    with serving(host, tmp_path, certificate=certificate, key=key) as asks:
        assert lender_of(asks.url, ca=certificate).spare_room(0, 60 * S) is not None
        assert lender_of(asks.url).spare_room(0, 60 * S) is None
    assert "CERTIFICATE_VERIFY_FAILED" in caplog.text


def test_loans_of_who_is_not_heard_of_end_and_others_go_on(model, lender, host, asks) -> None:
    other = lender_of(asks.url, OTHER)
    lender.lend_share(4, Lent(200, 0, 600 * S))
    other.lend_share(4, Lent(200, 0, 600 * S))
    host.machine.waits = {1}
    lender.begin_training(lender.loan_id(4), pack_bundle(bundle_with(model)))
    host.now_s = SILENT_S
    assert other.spare_room(7 * S, 27 * S) is not None
    host.now_s = 1.5 * SILENT_S
    host.desk.end_silent()
    assert host.back == [f"{ONE}-4"]
    host.machine.goes_on.set()
    wait_until(lambda: host.machine.given_back)


def test_a_training_whose_time_is_over_ends_and_its_checkpoint_stays_for_a_while(model, lender, host) -> None:
    loan = lender.loan_id(4)
    lender.lend_share(4, Lent(200, 0, 17 * S))
    host.machine.waits = {2}
    lender.begin_training(loan, pack_bundle(bundle_with(model)))
    wait_until(lambda: lender.read_progress(loan).best)
    host.now_s = 10.5
    host.desk.end_silent()
    host.machine.goes_on.set()
    wait_until(lambda: lender.read_progress(loan).over)
    told = lender.read_progress(loan)
    assert told.state == "stopped"
    assert digest_of(lender.fetch_checkpoint(loan, told.best)) == told.best
    host.now_s = 11 + SILENT_S
    lender.read_progress(loan)
    host.desk.end_silent()
    with pytest.raises(GoneError):
        lender.read_progress(loan)


def test_an_accuracy_monitor_sets_the_epochs_over_http(model, lender, host) -> None:
    loan = lender.loan_id(4)
    lender.lend_share(4, LENT)
    host.machine.waits = {2}
    lender.begin_training(loan, pack_bundle(bundle_with(model)))
    lender.set_epochs(loan, 2)
    host.machine.goes_on.set()
    wait_until(lambda: lender.read_progress(loan).over)
    assert len(lender.read_progress(loan).epochs) == 2
