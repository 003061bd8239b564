"""Book of a run's updates, `updates.jsonl`: who wants which, when they are offered, and how they ended."""

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, StreamId
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.policy.deep_edge.stopping import Outlook
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.offers import TrainingOffer
from ekya.fleet.run.stores.folder_store import FolderStore
from ekya.fleet.run.training.protocol import TrainingProgress
from ekya.system.json_lines import JsonLines, read_json_lines

OrderedBy = Literal["request", "trigger"]
"""Origin of an update: a request over REST or in Python, or the store's own trigger."""


@dataclass(frozen=True, slots=True)
class UpdateOrder:
    """An update that is wanted.

    Attributes:
        update: its number in the run.
        store: its store.
        ordered_by: who wants it.
        epochs: upper bound.
        due_s: time from the order until it is due.
        weight: of its store's accuracy.
        until_us: run time at which it is due.
    """

    update: int
    store: StreamId
    ordered_by: OrderedBy
    epochs: int
    due_s: float
    weight: float
    until_us: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of an update.

    Attributes:
        update: its number.
        ordered_by: as in ``UpdateOrder``.
        epochs: that were done in its last attempt.
        accuracy: of the weights given to the store, on its held-out samples; None without weights.
        failures: processes and machines that died during that.
        reason: why it ended early, or without weights; empty otherwise.
    """

    update: int
    ordered_by: OrderedBy
    epochs: int
    accuracy: float | None
    failures: int
    reason: str


@dataclass(slots=True, eq=False)
class Update:
    """An update that is wanted or under way.

    Attributes:
        order: the update.
        offer: None before it is known.
        attempts: that failed.
        again_us: run time before which it is not offered.
        loan: under which it runs.
        why: reason why it does not run.
        judged: number of epochs that the accuracy monitor has seen.
        outlook: its last estimate.
        result: its best weights when its training was over, and the progress then.
    """

    order: UpdateOrder
    offer: TrainingOffer | None
    attempts: int = 0
    again_us: int = 0
    loan: Loan | None = None
    why: str = ""
    judged: int = 0
    outlook: Outlook | None = None
    result: tuple[RemoteCheckpoint, TrainingProgress] | None = None


def crop_gpu_s(progress: TrainingProgress) -> float | None:
    """Returns the GPU-seconds that a sample has taken, by its hosts' shares; None where it is unknown."""
    return progress.share_s / progress.crops if progress.crops else None


_LOG = logging.getLogger(__name__)

WATCH_EVERY_US = 5 * US_PER_S

BACK_OFF_US, MOST_BACK_OFF_US = 15 * US_PER_S, 600 * US_PER_S
"""Time after a failure before an update is offered again; it doubles each time."""

MOST_ATTEMPTS = 5


class UpdateBook:
    """At most one update of each store. Each is on disk before anyone acts on it. Thread-safe.

    Args:
        stores: by name.
        path: of the file; updates in it that have not ended go on.

    Attributes:
        updates: that are wanted or under way; to be read under the lock.
        ended: the outcome of each store's last update; the same.
        lock: for both.
        now_us: time of the last look.

    Raises:
        UserError: the file is damaged, or cannot be written.
    """

    def __init__(self, stores: Mapping[StreamId, FolderStore], path: Path) -> None:
        self._stores, self._lines, self._made, self._closed = stores, JsonLines(path), 0, False
        self._watched_us: int | None = None
        self._judged: dict[StreamId, int] = {}
        self._said: dict[StreamId, str] = {}
        self.lock = threading.RLock()
        self.now_us = 0
        self.updates: dict[StreamId, Update] = {}
        self.ended: dict[StreamId, Ended] = {}
        homes: dict[StreamId, dict[str, Any]] = {}

        def take(said: dict[str, Any]) -> None:
            if "store" in said:
                order = UpdateOrder(**said)
                self._made = order.update + 1
                self.updates[order.store] = Update(order, None)
            elif "weights" in said:
                homes[said["of"]] = said
            else:
                del self.updates[said["of"]]

        read_json_lines(path, take)
        for name, update in list(self.updates.items()):
            home = homes.get(name, {})
            if name not in stores:
                self.end_update(update, "its store is not in the file any more")
            elif home.get("update") == update.order.update and stores[name].has_weights(home["weights"]):
                self.end_update(update, "", home["accuracy"])

    def store(self, name: StreamId) -> FolderStore:
        """Returns a store.

        Raises:
            UserError: there is none of this name.
        """
        if name not in self._stores:
            raise UserError(f"there is no store {name}; there is {', '.join(self._stores)}")
        return self._stores[name]

    def update(self, store: StreamId) -> Update:
        """Returns the update of a store.

        Raises:
            UserError: none is wanted or under way.
        """
        with self.lock:
            if store not in self.updates:
                known = ", ".join(self.updates) or "none"
                raise UserError(f"no update of {store} is wanted or under way; there is {known}")
            return self.updates[store]

    def draft_update(
        self,
        store: StreamId,
        ordered_by: OrderedBy = "request",
        epochs: int | None = None,
        due_s: float | None = None,
        weight: float | None = None,
    ) -> tuple[Update, TrainingOffer]:
        """Returns an update that is not ordered yet, and its offer; it may take long to measure the model.

        Args:
            store: its name.
            ordered_by: who wants it.
            epochs, due_s, weight: instead of the store's.

        Raises:
            UserError: there is no such store, it has no samples, or one of its updates is not over.
        """
        its = self.store(store).spec
        with self.lock:
            self._require_none(store)
        due_s = due_s or its.due_s
        until_us = self.now_us + round(due_s * US_PER_S)
        order = UpdateOrder(
            self._made, store, ordered_by, epochs or its.epochs, due_s, weight or its.weight, until_us
        )
        offer = self._offer(order)
        return Update(order, offer), offer

    def place_order(self, update: Update) -> int:
        """Orders a new update and returns its number.

        Raises:
            UserError: one of its store is not over.
        """
        with self.lock:
            self._require_none(update.order.store)
            update.order = replace(update.order, update=self._made)
            self._lines.append_records(asdict(update.order))
            self._made += 1
            self.updates[update.order.store] = update
            return update.order.update

    def check_triggers(self, now_us: int) -> None:
        """Checks all triggers, where some time has passed since the last time."""
        self.now_us = now_us
        if self._watched_us is not None and now_us - self._watched_us < WATCH_EVERY_US:
            return
        self._watched_us = now_us
        for name, store in self._stores.items():
            with self.lock:
                if name in self.updates:
                    self._judged.pop(name, None)
                    continue
            try:
                if why := self._due(store):
                    self.place_order(self.draft_update(name, "trigger")[0])
                    _LOG.info("%s: its trigger orders an update: %s", name, why)
                self._said.pop(name, None)
            except UserError as error:
                if self._said.get(name) != str(error):
                    _LOG.warning("%s: its trigger gets no update yet: %s", name, error)
                self._said[name] = str(error)

    def offers(self) -> list[TrainingOffer]:
        """Returns the offers of the updates that wait."""
        with self.lock:
            waiting = [
                one for one in self.updates.values() if one.loan is None and one.again_us <= self.now_us
            ]
        for one in waiting:
            if one.order.until_us <= self.now_us:
                until_us = self.now_us + round(one.order.due_s * US_PER_S)
                one.order, one.offer = replace(one.order, until_us=until_us), None
                _LOG.warning("%s: its update was not trained by its due date; it waits", one.order.store)
            if one.offer is None:
                try:
                    one.offer = self._offer(one.order)
                except UserError as error:
                    self.offer_later(one, str(error))
        with self.lock:
            return [one.offer for one in waiting if one.loan is None and one.offer is not None]

    def store_weights(self, update: Update, weights: bytes, accuracy: float, last: bool) -> None:
        """Gives weights to a store; the last ones end its update.

        Raises:
            UserError: they cannot be written.
        """
        if last:
            # On disk before the weights: who reads the book after a crash in between compares the hash and
            # trains again. In the other order it would train a second time what the store has already.
            home = {"of": update.order.store, "update": update.order.update, "accuracy": accuracy}
            self._lines.append_records({**home, "weights": sha256(weights).hexdigest()})
        self.store(update.order.store).store_weights(weights, accuracy)

    def offer_later(self, update: Update, reason: str, progress: TrainingProgress | None = None) -> None:
        """Lets an update be offered again after a while, or ends it after too many attempts."""
        update.attempts += 1
        if update.attempts >= MOST_ATTEMPTS:
            self.end_update(update, reason, None, progress)
            return
        back_off_us = min(BACK_OFF_US * 2 ** (update.attempts - 1), MOST_BACK_OFF_US)
        update.again_us, update.why, update.offer = self.now_us + back_off_us, reason, None
        after_s = back_off_us // US_PER_S
        _LOG.warning("%s: its update is offered again in %d s: %s", update.order.store, after_s, reason)

    def end_update(
        self,
        update: Update,
        reason: str,
        accuracy: float | None = None,
        progress: TrainingProgress | None = None,
    ) -> None:
        """Ends an update, with the reason why it was not done or not whole."""
        order, name = update.order, update.order.store
        epochs, failures = (0, 0) if progress is None else (len(progress.epochs), len(progress.failures))
        ended = Ended(order.update, order.ordered_by, epochs, accuracy, failures, reason)
        if reason:
            _LOG.warning("%s: its update has ended: %s", name, reason)
        with self.lock:
            self._lines.append_records({"of": name, **asdict(ended)})
            self.ended[name] = ended
            self.updates.pop(name, None)
        if accuracy is None and name in self._stores:
            with suppress(UserError):  # As many samples have to come again.
                self._judged[name] = self._stores[name].new_samples()

    def close(self) -> None:
        """Refuses further orders."""
        with self.lock:
            self._closed = True
            self._lines.close()

    def _offer(self, order: UpdateOrder) -> TrainingOffer:
        return self.store(order.store).make_offer(order.epochs, order.weight, self.now_us, order.until_us)

    def _due(self, store: FolderStore) -> str:
        """Returns why the trigger orders an update; empty where it does not."""
        trigger, name = store.spec.trigger, store.name
        if trigger is None:
            return ""
        new = store.new_samples()
        judged = self._judged.get(name, 0)
        if new < judged:  # samples were deleted
            judged = self._judged[name] = 0
        if new < judged + trigger.new_samples:
            return ""
        why = f"{new} new samples since the last update began"
        if trigger.accuracy is not None:
            accuracy = store.measure_accuracy(trigger.new_samples)
            why += f", {accuracy:.1%} of the newest {trigger.new_samples} right"
            if accuracy >= trigger.accuracy:
                self._judged[name] = new
                _LOG.info("%s: its trigger waits for %d more: %s", name, trigger.new_samples, why)
                return ""
        return why

    def _require_none(self, store: StreamId) -> None:
        if self._closed:
            raise UserError(f"{store}: the run is ending; start it again, and ask then")
        if store in self.updates:
            raise UserError(f"{store}: an update is wanted or under way; wait for its end, or kill it")
