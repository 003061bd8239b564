"""Checkpoints on their way home, one at a time, while the next epochs are trained."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ray.exceptions import RayError

from ekya.fleet.policy.names import NodeName
from ekya.fleet.run.training.messages import ALWAYS
from ekya.runtime.complaining import in_words

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointThere:
    """A checkpoint that lies where its epoch ended.

    Attributes:
        node: where that is.
        epochs: that it comes after.
        accuracy: on the validation crops.
        fetch: brings it; raises RayError where it is lost.
    """

    node: NodeName
    epochs: int
    accuracy: float
    fetch: Callable[[], bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One that is home.

    Attributes:
        epochs: that it comes after.
        accuracy: on the validation crops.
        data: what to go on from.
    """

    epochs: int
    accuracy: float
    data: bytes


class Homecoming:
    """Of one training. A checkpoint sets out when its epoch is over and the one before is home.

    So a slow link leaves some behind, and holds up no epoch. The best that waits goes first, if none at home
    is better: then of all epochs up to the newest at home the best is there too, and can serve. Methods may
    be called by any thread.

    Args:
        arrived: told of each one by a thread of its own, when it is home.
        part: of the time at most so much passes with one on its way, unless somebody waits.
        clock: seconds.
    """

    def __init__(
        self,
        arrived: Callable[[CheckpointThere, int], None],
        part: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arrived, self._part, self._clock = arrived, part, clock
        self._changed = threading.Condition(threading.RLock())
        self._newest_there: CheckpointThere | None = None
        self._best_there: CheckpointThere | None = None
        self._under_way = False
        self._waits = 0
        self._rests = False
        self._stopped = False
        self._newest: Checkpoint | None = None
        self._best: Checkpoint | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """Of those at home the one to go on from."""
        with self._changed:
            return self._newest

    @property
    def best(self) -> Checkpoint | None:
        """Of those at home; of equals the last one."""
        with self._changed:
            return self._best

    @property
    def wanted_above(self) -> float:
        """What an epoch must exceed for its checkpoint to be of use: the best, while none may set out."""
        with self._changed:
            best = self._best_there or self._best
            return ALWAYS if best is None or not self._rests else best.accuracy

    def add(self, there: CheckpointThere) -> None:
        """An epoch is over."""
        with self._changed:
            self._newest_there = there
            best = self._best_there or self._best
            if best is None or there.accuracy >= best.accuracy:
                self._best_there = there
            if self._under_way:
                return
            self._under_way = True
        threading.Thread(target=self._bring_all, name="checkpoints", daemon=True).start()

    def stop(self) -> None:
        """Nothing sets out any more, unless somebody waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def wait_home(self) -> None:
        """Returns when the newest and the best are home, or lost; what else there is stays behind."""
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

    def _next(self) -> CheckpointThere | None:
        """The best, then the newest; where there is none, nothing is under way from this very moment on."""
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

    def _bring(self, there: CheckpointThere | None) -> None:
        """Unless it is home, or lost."""
        with self._changed:
            if there is None or self._is_home(there):
                return
        try:
            data = there.fetch()
        except RayError as error:
            _LOG.warning("the checkpoint after epoch %d is lost: %s", there.epochs, in_words(error))
            with self._changed:
                self._newest_there = _unless(there, self._newest_there)
                self._best_there = _unless(there, self._best_there)
            return
        home = Checkpoint(there.epochs, there.accuracy, data)
        with self._changed:
            if self._newest is None or home.epochs > self._newest.epochs:
                self._newest = home
            best = self._best
            if best is None or (home.accuracy, home.epochs) > (best.accuracy, best.epochs):
                self._best = home
        self._arrived(there, len(data))

    def _is_home(self, there: CheckpointThere) -> bool:
        """Newer ones never come before older ones but for the best, which nobody goes on from."""
        return any(home is not None and home.epochs == there.epochs for home in (self._newest, self._best))


def _unless(lost: CheckpointThere, there: CheckpointThere | None) -> CheckpointThere | None:
    return None if there is lost else there
