"""Updates of stored models, trained like streams' retrainings on servers that lend for them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ekya.core.commands import StartRetraining
from ekya.core.errors import UserError
from ekya.core.units import US_PER_S, JobId, StreamId
from ekya.core.weights import Elsewhere, RemoteCheckpoint
from ekya.fleet.policy.deep_edge.stopping import Outlook, outlook
from ekya.fleet.policy.loans import Loan
from ekya.fleet.policy.places import STORES, SiteName
from ekya.fleet.run.elsewhere import Came, Interrupted
from ekya.fleet.run.lending import ARRIVED, GIVEN_UP, Answer
from ekya.fleet.run.live.own_coordinator import OwnCoordinator
from ekya.fleet.run.live.trained_elsewhere import TrainedElsewhere
from ekya.fleet.run.stores.update_book import Update, UpdateBook, crop_gpu_s
from ekya.fleet.run.training.bundle_file import TrainingBundle
from ekya.fleet.run.training.protocol import TrainingProgress

_LOG = logging.getLogger(__name__)

ASK_AGAIN_US = 15 * US_PER_S
"""Time until the coordinator is asked again about the same offers."""

DUE = "its due date has come"


class StoreUpdates:
    """Offers updates and trains them. It ``Borrows``. Thread-safe.

    Args:
        book: of the updates.
        above: finds loans for them; closed with this.
    """

    def __init__(self, book: UpdateBook, above: OwnCoordinator) -> None:
        self._book, self._above = book, above
        self._elsewhere = TrainedElsewhere(
            STORES,
            above.lenders,
            self._gather,
            self._bring,
            above.lose_host,
        )
        self._sites: Mapping[SiteName, str] = {}
        self._offered: object = ()
        self._asked_us = 0
        self._closed = False
        self._above.open_for(self)

    # Called by the driver.

    def look_after_stores(self, now_us: int, sites: Mapping[SiteName, str]) -> None:
        """Watches stores, follows trainings and offers what is wanted; to be called once a second.

        Args:
            now_us: run time.
            sites: state of each server, in words.
        """
        if self._closed:
            return
        self._sites = sites
        try:
            self._book.check_triggers(now_us)
            for came in self._elsewhere.take_home(now_us):
                if came.over:
                    self._end(came, now_us)
            with self._book.lock:
                running = [one for one in self._book.updates.values() if one.loan is not None]
            for one in running:
                self._follow(one, now_us)
            self._offer(now_us)
        except Exception:
            # One failed look must not end the others.
            _LOG.exception("a look at the stores fails, and is repeated")

    def close(self) -> None:
        """Gives up all updates and refuses new ones. May be called twice."""
        with self._book.lock:
            if self._closed:
                return
            self._closed = True
            for one in list(self._book.updates.values()):
                self._give_up(one, "the run has ended")
            self._book.close()
        self._elsewhere.close()
        self._above.close()

    # Called by users.

    def kill_update(self, store: StreamId) -> None:
        """Ends an update; the store keeps its weights.

        Raises:
            UserError: there is none of this store.
        """
        with self._book.lock:
            self._give_up(self._book.update(store), "it was killed")

    def would_get(self, store: StreamId) -> Answer:
        """Returns what the coordinator would decide about an update of a store now; nothing starts.

        Raises:
            UserError: as in ``UpdateBook.draft_update``.
        """
        _, offer = self._book.draft_update(store)
        return self._above.coordinator.would_get(self._book.now_us, offer)

    def forecast(self, store: StreamId) -> tuple[TrainingProgress | None, Outlook | None]:
        """Returns the progress of an update and the accuracy monitor's estimate.

        Raises:
            UserError: there is none of this store.
        """
        one = self._book.update(store)
        return self._progress(one), one.outlook

    def describe_updates(self) -> dict[str, Any]:
        """Returns servers by state, updates that are wanted or under way, and past ones, for JSON."""
        with self._book.lock:
            return {
                "sites": dict(self._sites),
                "updates": {name: self._status(one) for name, one in self._book.updates.items()},
                "ended": {name: asdict(ended) for name, ended in self._book.ended.items()},
            }

    # Called by the coordinator.

    def grant_loan(self, loan: Loan) -> None:
        """Begins an update under a loan, or gives the loan up where it is not awaited any more."""
        stream = loan.offer.stream
        with self._book.lock:
            one = self._book.updates.get(stream)
            if one is not None and one.loan is not None and one.loan.number > loan.number:
                return  # It was moved already.
            offer = None if one is None or one.loan is not None else one.offer
            if one is None or offer is None or offer.config != loan.offer.config:
                self._above.coordinator.end_loan(STORES, stream, self._book.now_us, GIVEN_UP, {})
                return
            one.loan, one.why, one.judged, one.outlook, one.result = loan, "", 0, None, None
            job, arrives = JobId(one.order.update), Elsewhere(loan.arrives_us)
            command = StartRetraining(stream, job, 0, offer.config, 0, 0.0, offer.gpu_s, arrives)
            self._elsewhere.begin_training(command, loan)
        _LOG.info("%s: its update trains on %s", stream, loan.where)

    def training_so_far(self, stream: StreamId, now_us: int) -> Interrupted:
        """Returns the progress of an update one of whose hosts has died."""
        return self._elsewhere.training_so_far(stream, now_us)

    def continue_training(self, stream: StreamId, loan: Loan) -> None:
        """Continues an update under another loan."""
        with self._book.lock:
            one = self._book.updates.get(stream)
            if one is not None and one.loan is not None:
                one.loan = loan
                self._elsewhere.continue_training(stream, loan)
                return
        self.grant_loan(loan)

    def fail_training(self, stream: StreamId, reason: str, now_us: int) -> None:
        """Ends an attempt; what is home of it counts."""
        self._elsewhere.fail_training(stream, reason, now_us)

    def _gather(self, command: StartRetraining) -> Callable[[], TrainingBundle]:
        store = self._book.store(command.stream)
        return lambda: store.training_bundle(command.config)

    def _bring(
        self,
        command: StartRetraining,
        _accuracies: Sequence[float],
        best: Callable[[], RemoteCheckpoint],
        over: bool,
    ) -> None:
        """Keeps the best weights of a training that is over."""
        training = self._elsewhere.find_training(command.stream)
        with self._book.lock:
            one = self._book.updates.get(command.stream)
        if over and one is not None and training is not None:
            one.result = best(), training.poll()

    def _follow(self, one: Update, now_us: int) -> None:
        """Ends an update that is due, and lets the accuracy monitor set the epochs of the others."""
        if now_us >= one.order.until_us:
            self._elsewhere.fail_training(one.order.store, DUE, now_us)
        training = self._elsewhere.find_training(one.order.store)
        progress = None if training is None else training.poll()
        if training is None or progress is None or progress.start_accuracy is None:
            return
        if len(progress.epochs) <= one.judged:
            return
        one.judged = len(progress.epochs)
        measured = [progress.start_accuracy, *(epoch.validation_accuracy for epoch in progress.epochs)]
        one.outlook = outlook(measured, one.order.epochs)
        if one.outlook.epochs != progress.planned_epochs:
            _LOG.info("%s: %s", one.order.store, one.outlook.reason)
            training.set_epochs(one.outlook.epochs)

    def _offer(self, now_us: int) -> None:
        """Offers all updates that wait, where there are others than before or some time has passed.

        Of several loans for one site only one is made at a time.
        """
        while not self._closed:
            offers = self._book.offers()
            offered = {(offer.stream, offer.until_us, offer.config) for offer in offers}
            if offered == self._offered and (not offers or now_us - self._asked_us < ASK_AGAIN_US):
                return
            self._offered, self._asked_us = offered, now_us
            answer = self._above.coordinator.answer_offers(STORES, now_us, offers)
            with self._book.lock:
                for stream, why in answer.why_not.items():
                    if stream in self._book.updates:
                        self._book.updates[stream].why = why
            if answer.loan is None:
                return
            self.grant_loan(answer.loan)

    def _end(self, came: Came, now_us: int) -> None:
        """Handles the end of an attempt: the store gets what is home of it, if it is whole or better."""
        stream, reason = came.command.stream, came.failed
        with self._book.lock:
            one = self._book.updates.get(stream)
            if one is None or one.loan is None:
                return
            loan, one.loan = one.loan, None
        self._above.coordinator.end_loan(STORES, stream, now_us, reason or ARRIVED, dict(came.moved_mb))
        best, progress = one.result or (None, None)
        gain = 0.0
        if best is None or progress is None:
            self._book.offer_later(one, reason or "no weights have come")
        else:
            better = best.accuracy - (progress.start_accuracy or 0.0)
            takes, last = not reason or better > 0.0, reason in ("", DUE)
            try:
                if takes:
                    self._book.store_weights(one, best.weights, best.accuracy, last)
                    gain = better
            except UserError as error:
                reason, takes = str(error), False
            took_s = crop_gpu_s(progress)
            if not reason and took_s is not None:
                self._book.store(stream).record_update(took_s, gain)
            if takes and last:
                self._book.end_update(one, reason, best.accuracy, progress)
            else:
                self._book.offer_later(one, reason, progress)
        self._above.coordinator.record_gain(
            loan, round(loan.offer.measured_gain(gain, now_us), 6), 0 if gain else None
        )

    def _give_up(self, one: Update, reason: str) -> None:
        store, progress = one.order.store, self._progress(one)
        if one.loan is not None:
            moved_mb = self._elsewhere.stop_training(store, self._book.now_us)
            self._above.coordinator.end_loan(STORES, store, self._book.now_us, GIVEN_UP, dict(moved_mb))
        self._book.end_update(one, reason, None, progress)

    def _status(self, one: Update) -> dict[str, Any]:
        progress = self._progress(one)
        return {
            "update": one.order.update,
            "ordered_by": one.order.ordered_by,
            "state": "waiting" if progress is None else progress.state,
            "why": one.why,
            "epochs": 0 if progress is None else len(progress.epochs),
            "host": None if one.loan is None else one.loan.host,
            "failures": [] if progress is None else progress.failures,
            "due_in_s": (one.order.until_us - self._book.now_us) / US_PER_S,
        }

    def _progress(self, one: Update) -> TrainingProgress | None:
        training = self._elsewhere.find_training(one.order.store)
        return None if training is None else training.poll()
