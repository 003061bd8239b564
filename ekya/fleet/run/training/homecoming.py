"""Transfer of checkpoints home, one at a time, while the next epochs are trained."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ekya.fleet.policy.places import SiteName
from ekya.fleet.run.calls import CallError

_LOG = logging.getLogger(__name__)

ALWAYS = -1.0
"""Threshold below every accuracy."""


@dataclass(frozen=True, slots=True, eq=False)
class RemoteEpochCheckpoint:
    """A checkpoint at the host where its epoch ended.

    Attributes:
        site: its location.
        epochs: number of epochs that it contains.
        accuracy: on the validation crops.
        fetch: returns its data; raises CallError or TimeoutError where it is lost.
    """

    site: SiteName
    epochs: int
    accuracy: float
    fetch: Callable[[], bytes]


@dataclass(frozen=True, slots=True, eq=False)
class HomeCheckpoint:
    """A checkpoint at home.

    Attributes:
        epochs: number of epochs that it contains.
        accuracy: on the validation crops.
        data: snapshot to resume from.
    """

    epochs: int
    accuracy: float
    data: bytes


class Homecoming:
    """Transfers the checkpoints of one training, one after the other. Thread-safe.

    A slow link skips checkpoints and delays no epoch. The best that waits goes first, unless one at home
    is better: the best of all epochs up to the newest at home is then at home too, and can serve.

    Args:
        arrived: called by a separate thread for each checkpoint that has arrived, with its size in bytes.
        part: upper bound of the part of the time in which a transfer runs, except during ``wait_home``.
        clock: seconds.
    """

    def __init__(
        self,
        arrived: Callable[[RemoteEpochCheckpoint, int], None],
        part: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived, self._part, self._clock = arrived, part, clock
        self._changed = threading.Condition(threading.RLock())
        self._newest_there: RemoteEpochCheckpoint | None = None
        self._best_there: RemoteEpochCheckpoint | None = None
        self._under_way = False
        self._waits = 0
        self._rests = False
        self._stopped = False
        self._newest: HomeCheckpoint | None = None
        self._best: HomeCheckpoint | None = None

    @property
    def newest(self) -> HomeCheckpoint | None:
        """Checkpoint at home to resume from."""
        with self._changed:
            return self._newest

    @property
    def best(self) -> HomeCheckpoint | None:
        """Best checkpoint at home; of equals the last one."""
        with self._changed:
            return self._best

    @property
    def wanted_above(self) -> float:
        """Accuracy above which a checkpoint is worth making: between transfers only a new best is."""
        with self._changed:
            best = self._best_there or self._best
            return ALWAYS if best is None or not self._rests else best.accuracy

    def add_checkpoint(self, there: RemoteEpochCheckpoint) -> None:
        """Adds the checkpoint of an epoch that is over."""
        with self._changed:
            self._newest_there = there
            best = self._best_there or self._best
            if best is None or there.accuracy >= best.accuracy:
                self._best_there = there
            if self._under_way:
                return
            self._under_way = True
        threading.Thread(target=self._bring_all, name="checkpoints", daemon=True).start()

    def stop_transfers(self) -> None:
        """Starts no more transfers, except for ``wait_home``."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait_home(self) -> None:
        """Returns when the newest and the best are home, or lost; the others are dropped."""
        with self._changed:
            self._waits += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._under_way)
            self._waits -= 1
            waiting = {self._newest_there, self._best_there} - {None}
            self._newest_there = self._best_there = None
        for there in waiting:
            self._bring(there)

    def _bring_all(self) -> None:
        try:
            while (there := self._next()) is not None:
                began_s = self._clock()
                self._bring(there)
                if self._part < 1.0:
                    self._rest((self._clock() - began_s) * (1.0 / self._part - 1.0))
        except BaseException:
            self._end()
            raise

    def _rest(self, seconds: float) -> None:
        with self._changed:
            self._rests = True
            self._changed.wait_for(lambda: self._waits > 0 or self._stopped, seconds)
            self._rests = False

    def _next(self) -> RemoteEpochCheckpoint | None:
        """Returns the best, then the newest; None ends the transfers in the same critical section."""
        with self._changed:
            wanted = self._waits > 0 or not self._stopped
            for there in (self._best_there, self._newest_there) if wanted else ():
                if there is not None and not self._is_home(there):
                    return there
            self._end()
            return None

    def _end(self) -> None:
        with self._changed:
            self._under_way = False
            self._changed.notify_all()

    def _bring(self, there: RemoteEpochCheckpoint | None) -> None:
        """Fetches a checkpoint unless it is home or lost."""
        with self._changed:
            if there is None or self._is_home(there):
                return
        try:
            # Without the lock, which epochs need to add theirs: a slow link takes long.
            data = there.fetch()
        except (CallError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            _LOG.warning("the checkpoint after epoch %d is lost: %s", there.epochs, why)
            with self._changed:
                self._newest_there = _unless(there, self._newest_there)
                self._best_there = _unless(there, self._best_there)
            return
        home = HomeCheckpoint(there.epochs, there.accuracy, data)
        with self._changed:
            if self._newest is None or home.epochs > self._newest.epochs:
                self._newest = home
            best = self._best
            if best is None or (home.accuracy, home.epochs) > (best.accuracy, best.epochs):
                self._best = home
        self._arrived(there, len(data))

    def _is_home(self, there: RemoteEpochCheckpoint) -> bool:
        """Returns whether a checkpoint is home.

        The epochs tell: an older one comes after a newer one only if it is the best, which none resumes from.
        """
        return any(home is not None and home.epochs == there.epochs for home in (self._newest, self._best))


def _unless(lost: RemoteEpochCheckpoint, there: RemoteEpochCheckpoint | None) -> RemoteEpochCheckpoint | None:
    return None if there is lost else there
