"""Updates of stores on virtual time: a real coordinator, servers that only have room, scripted trainings."""

import asyncio
import json
import threading
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pytest
from aiohttp.test_utils import TestClient, TestServer
from by_hand import Trainings
from peers_by_hand import Server
from waiting import wait_until

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.units import StreamId
from ekya.fleet.policy.loans import Links
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.policy.registry import TIERS
from ekya.fleet.run.coordinator import LoanCoordinator
from ekya.fleet.run.live import trained_elsewhere
from ekya.fleet.run.loan_file import UNDER_WAY, LoanFile, read_loans
from ekya.fleet.run.stores.folder_store import StoreSpec
from ekya.fleet.run.stores.rest import application
from ekya.fleet.run.stores.update_book import BACK_OFF_US, MOST_ATTEMPTS, UpdateBook
from ekya.fleet.run.stores.updates import DUE, StoreUpdates
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.fleet.run.training.protocol import Host

S = 1_000_000
CAM, GATE = StreamId("cam"), StreamId("gate")
EAST, WEST = SiteName("east"), SiteName("west")
CONFIG = RetrainConfig(12, 16, 0, 1, 1.0)


def spec(due_s=100, **trigger):
    return StoreSpec(samples="in", out="out", epochs=12, due_s=due_s, trigger=trigger or None)


@dataclass
class Store:
    """A store of ``new`` samples, of which its model gets ``right`` right; ``judged`` has who asked."""

    name: StreamId = CAM
    spec: StoreSpec = field(default_factory=spec)
    new: int = 0
    right: float = 0.8
    broken: str = ""
    came: list = field(default_factory=list)
    learnt: list = field(default_factory=list)
    judged: list = field(default_factory=list)
    read: int = 0

    def new_samples(self):
        return self.new

    def measure_accuracy(self, newest):
        self.judged.append((self.new, newest))
        return self.right

    def make_offer(self, epochs, weight, now_us, until_us):
        if self.broken:
            raise UserError(self.broken)
        config = replace(CONFIG, epochs=epochs)
        sizes = (1.0, 9.0, 4.0)
        return TrainingOffer(
            STORES, self.name, config, epochs, epochs, 0.1 * weight, 0.0, now_us, until_us, *sizes
        )

    def training_bundle(self, config):
        self.read, self.new = self.read + 1, 0
        return TrainingBundle(config, b"", None)

    def has_weights(self, digest):
        return bool(self.came) and sha256(self.came[-1][0]).hexdigest() == digest

    def store_weights(self, weights, accuracy):
        if self.broken:
            raise UserError(self.broken)
        self.came.append((weights, accuracy))

    def record_update(self, crop_gpu_s, gain):
        self.learnt.append((crop_gpu_s, gain))


class Lender(Server):
    """A server that trains, which nobody calls."""

    def loan_id(self, number):
        return f"stores-{number}"


class Above(LoanCoordinator):
    """An ``OwnCoordinator`` that asks its lenders whenever it decides, and for the stores alone."""

    def __init__(self, lenders, loans):
        for number, loan in enumerate(before := read_loans(loans)):
            if loan.outcome == UNDER_WAY:
                LoanFile(loans).record_lost(number)
        until = {"held_until": lambda loan: loan.offer.until_us, "first": len(before)}
        super().__init__(TIERS["net"], Links(), 0, LoanFile(loans), **until)
        self.coordinator, self.lenders = self, {one.site: one for one in lenders}
        for one in lenders:
            self.add_lender(one.site, one)

    def open_for(self, peer):
        self.add_borrower(STORES, peer)

    def lose_host(self, site, now_us=10 * S):
        self.on_server_death(site, now_us)
        self.add_lender(site, self.lenders[site])

    def close(self):
        pass


class Town:
    """Two servers, of which only east has room, and the stores of a run in ``folder``."""

    def __init__(self, folder, made, *stores):
        self.folder, self.made, self.stores = folder, made, {one.name: one for one in stores}
        self.east, self.west = Lender(EAST, 4), Lender(WEST, 0)
        self.now_us = 0
        self.begin()

    def begin(self):
        """Begins the driver, also again; hosts end the loans of the one before by themselves."""
        self.east.lent.clear()
        self.above = Above((self.east, self.west), self.folder / "loans.jsonl")
        # Trainings of the driver before have ended with it.
        self.trainings = self.made
        self.trainings.clear()
        self.book = UpdateBook(self.stores, self.folder / "updates.jsonl")
        self.updates = StoreUpdates(self.book, self.above)

    def borrowed(self):
        """Returns the loans under which updates run."""
        return [one.loan for one in self.book.updates.values() if one.loan is not None]

    def look(self, seconds=1):
        self.now_us += seconds * S
        self.updates.look_after_stores(self.now_us, {EAST: "running", WEST: "away"})

    def training(self, number=0):
        wait_until(lambda: len(self.trainings) > number)
        return self.trainings[number]

    def begun(self, store=CAM, **terms):
        """Returns the training of an update that was ordered."""
        self.ordered(store, **terms)
        self.look()
        return self.training()

    def ordered(self, store=CAM, **terms):
        return self.book.place_order(self.book.draft_update(store, **terms)[0])

    def outcomes(self):
        return [loan.outcome for loan in read_loans(self.folder / "loans.jsonl")]


@pytest.fixture
def town(monkeypatch, tmp_path):
    made = Trainings()
    monkeypatch.setattr(trained_elsewhere, "RemoteTraining", made)
    return lambda *stores: Town(tmp_path, made, *(stores or (Store(),)))


def test_what_is_ordered_trains_where_room_is_and_its_store_gets_the_best_weights(town) -> None:
    one = town()
    training = one.begun()
    assert training.hosts == [Host(EAST, "stores-0", 400, one.east)]
    assert (training.bundle.config, len(one.east.lent)) == (CONFIG, 1)
    assert one.updates.describe_updates()["updates"]["cam"]["host"] == EAST
    training.shows(0.7, 0.9, 0.8, *[0.8] * 9, state="done", crops=1200, share_s=12.0)
    one.look(10)
    store = one.stores[CAM]
    assert store.came == [(b"weights 2", 0.9)]
    assert store.learnt == [(pytest.approx(12.0 / 1200), pytest.approx(0.3))]
    assert (one.outcomes(), one.east.lent) == (["arrived"], {})
    (loan,) = read_loans(one.folder / "loans.jsonl")
    assert loan.came == pytest.approx(0.3 * (100 - 11), abs=1e-3)
    status = one.updates.describe_updates()
    assert (status["updates"], status["sites"]) == ({}, {EAST: "running", WEST: "away"})
    ended = {"update": 0, "ordered_by": "request", "epochs": 12, "accuracy": 0.9, "failures": 0, "reason": ""}
    assert status["ended"]["cam"] == ended
    one.look()
    assert len(one.trainings) == 1


def test_orders_have_terms_of_their_own(town) -> None:
    one = town()
    one.ordered(CAM, epochs=3, due_s=50, weight=2.5)
    with pytest.raises(UserError, match="cam: an update is wanted or under way"):
        one.ordered(CAM)
    with pytest.raises(UserError, match="there is no store moon; there is cam"):
        one.ordered("moon")
    (offer,) = one.book.offers()
    assert (offer.epochs, offer.until_us, offer.gain) == (3, 50 * S, pytest.approx(0.25))
    one.updates.kill_update(CAM)
    one.ordered(CAM)
    (offer,) = one.book.offers()
    assert (offer.epochs, offer.until_us, offer.gain) == (12, 100 * S, pytest.approx(0.1))


def test_a_trigger_orders_once_and_what_comes_meanwhile_counts_for_the_next(town, caplog) -> None:
    store = Store(spec=spec(new_samples=50))
    one = town(store)
    store.new = 49
    one.look()
    one.look(5)
    assert not one.book.updates
    store.new = 50
    one.look(5)
    assert one.updates.describe_updates()["updates"]["cam"]["ordered_by"] == "trigger"
    training = one.training()
    wait_until(lambda: store.read)
    store.new = 60
    one.look(5)
    assert len(one.trainings) == 1
    assert "WARNING" not in caplog.text
    training.shows(*[0.9] * 12, state="done")
    one.look()
    store.new = 0
    one.look(5)
    assert len(one.trainings) == 1
    store.new = 50
    one.look(5)
    one.training(1)


def test_a_model_that_is_right_often_enough_is_judged_again_when_as_many_more_have_come(town, caplog) -> None:
    store = Store(spec=spec(new_samples=100, accuracy=0.9), right=0.9)
    one = town(store)
    for new in (99, 100, 150, 199):
        store.new = new
        one.look(5)
    assert store.judged == [(100, 100)]
    store.new = 200
    one.look(5)
    assert store.judged == [(100, 100), (200, 100)]
    assert not one.book.updates
    store.new, store.right = 300, 0.89
    with caplog.at_level("INFO"):
        one.look(5)
    assert CAM in one.book.updates
    assert "300 new samples since the last update began, 89.0% of the newest 100 right" in caplog.text


def test_samples_that_are_deleted_or_an_update_on_request_count_anew(town) -> None:
    store = Store(spec=spec(new_samples=100, accuracy=0.9), new=150, right=0.9)
    one = town(store)
    one.look()
    store.new = 20
    one.look(5)
    store.new, store.right = 100, 0.5
    one.east.units = 0
    one.look(5)
    assert CAM in one.book.updates
    one.east.units = 4
    one.look(15)
    training = one.training()
    wait_until(lambda: store.read)
    one.look(5)
    training.shows(*[0.9] * 12, state="done")
    store.new = 99
    one.look()
    one.look(5)
    assert len(one.trainings) == 1
    store.new = 100
    one.look(5)
    one.training(1)


def test_two_stores_share_the_room_from_the_first_look_on(town) -> None:
    one = town(Store(), Store(GATE))
    one.east.units = 10
    one.ordered(CAM)
    one.ordered(GATE)
    one.look()
    lent = {loan.offer.stream: loan.share_milli for loan in one.borrowed()}
    assert lent == {CAM: 500, GATE: 500}
    wait_until(lambda: len(one.trainings) == 2)


def test_what_finds_no_room_says_why_and_begins_when_there_is_room(town) -> None:
    one = town()
    one.east.units = 0
    one.ordered(CAM)
    one.look()
    assert one.updates.describe_updates()["updates"]["cam"]["state"] == "waiting"
    assert one.updates.describe_updates()["updates"]["cam"]["why"] == "no other server has room"
    one.east.units = 4
    one.above.decide_again(2 * S)
    one.training()
    assert one.updates.describe_updates()["updates"]["cam"]["why"] == ""


def test_nobody_has_room_by_its_due_date_and_it_is_offered_on(town, caplog) -> None:
    one = town()
    one.east.units = 0
    one.ordered(CAM)
    one.look()
    one.east.units = 4
    one.look(100)
    one.training()
    assert "its update was not trained by its due date" in caplog.text
    assert one.book.updates[CAM].order.until_us == 201 * S


def test_the_accuracy_monitor_ends_what_does_not_rise_any_more(town) -> None:
    one = town()
    training = one.begun()
    training.shows(0.9, 0.9, 0.9, 0.9)
    one.look()
    assert training.epochs == [4]
    progress, outlook = one.updates.forecast(CAM)
    assert (progress.planned_epochs, outlook.epochs) == (4, 4)
    training.shows(0.9, 0.9, 0.9, 0.9, state="done")
    training.now = replace(training.now, epochs_home=1)  # not every epoch leaves a checkpoint
    one.look()
    assert one.updates.describe_updates()["ended"]["cam"]["reason"] == ""
    assert one.outcomes() == ["arrived"]


def test_a_host_that_dies_moves_it_from_its_last_snapshot(town) -> None:
    one = town()
    training = one.begun()
    training.shows(0.7, 0.75)
    one.west.units = 4
    one.above.lose_host(EAST)
    assert training.hosts[-1].site == WEST
    assert one.outcomes() == ["east died", UNDER_WAY]
    (loan,) = one.borrowed()
    assert (loan.host, loan.offer.epochs) == (WEST, 10)
    training.shows(*[0.9] * 12, state="done")
    one.look(20)
    assert one.outcomes() == ["east died", "arrived"]
    assert one.stores[CAM].came == [(b"weights 12", 0.9)]


def test_without_another_host_the_store_keeps_what_is_better_and_it_is_offered_again(town) -> None:
    one = town()
    training = one.begun()
    training.shows(0.7, 0.75)
    one.above.lose_host(EAST)
    one.east.units = 0
    one.look(10)
    assert one.stores[CAM].came == [(b"weights 2", 0.75)]
    assert training.stopped.is_set()
    said = one.updates.describe_updates()["updates"]["cam"]
    assert (said["state"], said["why"]) == ("waiting", "east died, and no other server has room")
    assert not one.stores[CAM].learnt
    one.west.units = 4
    one.look(5)
    assert len(one.trainings) == 1
    one.look(10)
    assert one.training(1).hosts[-1].site == WEST


def test_what_fails_is_offered_again_after_longer_and_longer_until_it_has_failed(town) -> None:
    store = Store(spec=spec(5000, new_samples=50))
    one = town(store)
    one.begun()
    for attempt in range(MOST_ATTEMPTS):
        training = one.training(attempt)
        training.shows(0.5, state="failed", reason="it did not fit")
        one.look()
        if attempt < MOST_ATTEMPTS - 1:
            one.look(BACK_OFF_US * 2**attempt // S - 1)
            assert len(one.trainings) == attempt + 1
            one.look(1)
    assert not store.came
    assert one.updates.describe_updates()["ended"]["cam"]["reason"] == "it did not fit"
    assert one.outcomes() == ["it did not fit"] * MOST_ATTEMPTS
    one.look(5)
    assert not one.book.updates


def test_at_its_due_date_it_ends_with_what_is_home(town) -> None:
    one = town()
    training = one.begun()
    training.shows(0.7)
    one.look(100)
    one.look()
    assert one.stores[CAM].came == [(b"weights 1", 0.7)]
    assert one.updates.describe_updates()["ended"]["cam"]["reason"] == DUE
    assert training.stopped.is_set()
    assert not one.east.lent


def test_weights_that_cannot_be_written_are_trained_again(town) -> None:
    one = town()
    training = one.begun()
    one.stores[CAM].broken = "the disk is full"
    training.shows(*[0.9] * 12, state="done")
    one.look()
    assert one.updates.describe_updates()["updates"]["cam"]["why"] == "the disk is full"
    one.look(15)
    assert len(one.trainings) == 1
    one.stores[CAM].broken = ""
    one.look(30)
    one.training(1)


def test_who_is_killed_is_gone_and_his_trigger_waits_for_as_many_again(town) -> None:
    store = Store(spec=spec(new_samples=50))
    one = town(store)
    one.east.units = 0
    store.new = 70
    one.look()
    one.updates.kill_update(CAM)
    one.look(5)
    assert not one.book.updates
    one.east.units = 4
    one.above.decide_again(one.now_us)
    assert not one.trainings
    store.new = 120
    one.look(5)
    training = one.training()
    one.updates.kill_update(CAM)
    assert training.stopped.is_set()
    assert (one.outcomes(), one.east.lent) == (["given up"], {})
    assert one.updates.describe_updates()["ended"]["cam"]["reason"] == "it was killed"
    with pytest.raises(UserError, match="no update of cam is wanted or under way; there is none"):
        one.updates.kill_update(CAM)


def test_a_grant_that_nobody_waits_for_is_given_up(town) -> None:
    one = town()
    training = one.begun()
    loan = one.book.updates[CAM].loan
    one.updates.kill_update(CAM)
    one.updates.grant_loan(loan)
    assert len(one.trainings) == 1
    assert training.stopped.is_set()
    one.ordered(epochs=5)
    one.updates.grant_loan(loan)
    assert one.borrowed() == []


def test_the_end_of_the_run_gives_all_up_and_refuses_more(town) -> None:
    one = town(Store(), Store(GATE))
    training = one.begun()
    one.ordered(GATE)
    for _ in range(2):
        one.updates.close()
    assert training.stopped.is_set()
    assert {ended.reason for ended in one.book.ended.values()} == {"the run has ended"}
    assert not one.east.lent
    with pytest.raises(UserError, match="cam: the run is ending"):
        one.ordered(CAM)
    one.look()
    assert len(one.trainings) == 1
    assert not UpdateBook(one.stores, one.folder / "updates.jsonl").updates


def test_a_new_driver_takes_up_what_was_not_over_and_hosts_get_their_shares_back(town) -> None:
    one = town(Store(), Store(GATE))
    one.begun(epochs=7)
    one.ordered(GATE, weight=2.0)
    assert one.east.lent
    one.begin()
    assert not one.east.lent
    assert one.outcomes() == ["lost with the coordinator"]
    assert {name: update.order.update for name, update in one.book.updates.items()} == {CAM: 0, GATE: 1}
    assert one.book.updates[GATE].order.weight == 2.0
    one.look()
    wait_until(lambda: len(one.trainings) == 2)
    assert {training.bundle.config.epochs for training in one.trainings} == {7, 12}
    assert {loan.offer.stream: loan.offer.epochs for loan in one.borrowed()} == {
        CAM: 7,
        GATE: 12,
    }
    one.updates.kill_update(CAM)
    assert one.ordered(CAM) == 2


@pytest.mark.parametrize("written", [True, False])
def test_a_driver_that_dies_as_the_weights_come_does_not_train_them_twice(written, town) -> None:
    one = town()
    one.begun()
    store, update = one.stores[CAM], one.book.updates[CAM]
    one.book.store_weights(update, b"weights", 0.9, last=True)
    if not written:
        store.came.clear()
    one.begin()
    assert (CAM in one.book.updates) is not written
    if written:
        assert (one.book.ended[CAM].accuracy, one.book.ended[CAM].reason) == (0.9, "")
        one.begin()
        assert not one.book.updates


def test_a_store_that_is_gone_from_the_file_ends_its_update(town) -> None:
    one = town(Store(), Store(GATE))
    one.ordered(GATE)
    del one.stores[GATE]
    one.begin()
    assert one.book.ended[GATE].reason == "its store is not in the file any more"
    assert not UpdateBook(one.stores, one.folder / "updates.jsonl").updates


def test_a_line_that_a_crash_cut_off_is_removed_and_a_damaged_one_refused(town) -> None:
    one = town()
    one.ordered(CAM)
    path = one.folder / "updates.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"update": 0, "end')
    assert list(UpdateBook(one.stores, path).updates) == [CAM]
    assert path.read_text() == whole
    path.write_text('{"of": "cam"}\n' + whole)
    with pytest.raises(UserError, match="line 1 is damaged"):
        UpdateBook(one.stores, path)


def test_one_look_that_fails_does_not_end_the_others(town, caplog) -> None:
    store = Store(spec=spec(new_samples=50))
    one = town(store)
    store.new = None
    one.look()
    assert "a look at the stores fails" in caplog.text
    store.new = 50
    one.look(5)
    one.training()


def test_a_store_that_cannot_be_read_is_reported_once(town, caplog) -> None:
    store = Store(spec=spec(new_samples=50), new=50, broken="its folder is gone")
    one = town(store)
    for _ in range(3):
        one.look(5)
    assert caplog.text.count("its trigger gets no update yet: its folder is gone") == 1


def asked(one, *requests, token=None, headers=None):
    """Returns status and JSON of each (method, path)."""

    async def ask():
        async with TestClient(TestServer(application(one.book, one.updates, token))) as client:
            said = []
            for method, path in requests:
                answer = await client.request(method, path, headers=headers)
                text = await answer.text()
                said.append((answer.status, json.loads(text) if text.startswith("{") else text))
            return said

    return asyncio.run(ask())


def test_updates_are_ordered_watched_and_killed_over_rest(town) -> None:
    one = town()
    solved, ordered, twice = asked(
        one,
        ("GET", "/solver?store=cam"),
        ("POST", "/launcher?store=cam&epochs=5&due_s=60&weight=3"),
        ("POST", "/launcher?store=cam"),
    )
    assert (solved[0], solved[1]["host"]) == (200, EAST)
    assert not one.trainings
    assert ordered == (200, {"update": 0})
    assert (one.book.updates[CAM].order.weight, one.book.updates[CAM].order.due_s) == (3.0, 60)
    assert (twice[0], twice[1]["error"][:13]) == (400, "cam: an updat")
    one.look()
    one.training().shows(0.7)
    monitor, accuracy, killed, gone = asked(
        one,
        ("GET", "/monitor"),
        ("GET", "/accuracy?task=cam"),
        ("DELETE", "/launcher?task=cam"),
        ("GET", "/accuracy?task=cam"),
    )
    assert (monitor[1]["updates"]["cam"]["epochs"], monitor[1]["sites"]["east"]) == (1, "running")
    assert accuracy[1] == {"start": 0.6, "accuracies": [0.7], "planned": 5, "outlook": None}
    assert (killed, gone[0]) == ((200, {}), 400)


def test_what_cannot_be_asked_is_said_and_nothing_starts(town) -> None:
    one = town()
    one.east.units = 0
    said = asked(
        one,
        ("POST", "/launcher"),
        ("POST", "/launcher?store=moon"),
        ("POST", "/launcher?store=cam&epochs=1.5"),
        ("POST", "/launcher?store=cam&due_s=0"),
        ("POST", "/launcher?store=cam&weight=nan"),
        ("GET", "/solver?store=cam"),
    )
    assert [status for status, _ in said] == [400] * 5 + [200]
    assert [text["error"].split(";")[0] for _, text in said[:5]] == [
        "store is missing",
        "there is no store moon",
        "epochs=1.5 is no whole number",
        "due_s=0 is no number above zero",
        "weight=nan is no number above zero",
    ]
    assert said[5][1] == {"host": None, "reason": "no other server has room"}
    assert not one.book.updates


def test_pages_of_browsers_and_clients_without_the_token_are_refused(town, monkeypatch) -> None:
    monkeypatch.setattr("ekya.fleet.run.stores.rest.WRONG_TOKEN_S", 0.01)
    one, order = town(), ("POST", "/launcher?store=cam")
    assert asked(one, order, headers={"Origin": "http://moon"})[0][0] == 403
    assert asked(one, order, token="secret")[0][0] == 401
    assert asked(one, order, token="secret", headers={"Authorization": "Bearer secre"})[0][0] == 401
    assert not one.book.updates
    assert asked(one, order, token="secret", headers={"Authorization": "Bearer secret"})[0][0] == 200


def test_orders_from_many_threads_make_one_update(town) -> None:
    one, refused = town(), []

    def order():
        try:
            one.ordered(CAM)
        except UserError as error:
            refused.append(error)

    threads = [threading.Thread(target=order) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(one.book.updates), len(refused)) == (1, 7)
