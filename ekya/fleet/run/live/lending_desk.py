"""Lends to other services that borrow of this one, behind the routes ``/api/v1/lending`` of its API."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree

from ekya.core.errors import NotThereError, UserError
from ekya.core.units import US_PER_S
from ekya.fleet.policy.rooms import Room
from ekya.fleet.run.lending import Lent
from ekya.fleet.run.server import LendingServer
from ekya.fleet.run.training.lent_training import LentTraining
from ekya.fleet.run.training.processes import ProcessSource
from ekya.fleet.run.training.protocol import LentProgress
from ekya.system.files import user_errors

SILENT_S = 60.0
"""A borrower that was not heard of for this long has ended, or the link is cut: its loan ends."""

_LOAN = re.compile(r"([0-9a-f]{16})-[0-9]{1,12}")


@dataclass(slots=True, eq=False)
class _Lent:
    """A loan of this server.

    Attributes:
        share_milli: that it holds.
        until_s: its end.
        heard_s: when its borrower was heard of last.
        training: None before it begins.
    """

    share_milli: int
    until_s: float
    heard_s: float
    training: LentTraining | None = None

    @property
    def holds_milli(self) -> int:
        """The share that is not free again."""
        return 0 if self.training is not None and self.training.poll().over else self.share_milli


class LendingDesk:
    """Lends shares and trains under them. Thread-safe.

    Each request may come again: a loan is made once, and has one training. Times are since the request, so
    clocks need not agree. A loan's id is that of its borrower, 16 hexadecimal digits, and a number.

    Args:
        folder: where trainings lie while they run; emptied.
        processes: of the trainings.
        now_us: run time.
        now_s: a clock that is never set.

    Raises:
        UserError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        processes: ProcessSource,
        now_us: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self._processes, self._now_us, self._now_s = folder, processes, now_us, now_s
        self._server: LendingServer | None = None
        self._loans: dict[str, _Lent] = {}
        self._lock = threading.RLock()
        with user_errors(folder):
            rmtree(folder, ignore_errors=True)  # what a process that was killed has left
            folder.mkdir(exist_ok=True)

    def open_for(self, server: LendingServer) -> None:
        """Lends what this server can spare from now on."""
        self._server = server

    def spare_room(self, borrower: str, left_us: int) -> Room | None:
        """Returns what it could lend to a borrower, with what that has already; None: nothing.

        Args:
            borrower: its id.
            left_us: time until the end of the borrower's window.
        """
        with self._lock:
            for loan, lent in self._loans.items():
                if _borrower_of(loan) == borrower:
                    lent.heard_s = self._now_s()
            others = sum(
                lent.holds_milli for loan, lent in self._loans.items() if _borrower_of(loan) != borrower
            )
        room = self._room(left_us)
        room = None if room is None else room.beside_share(others)
        return room if room is not None and room.loss else None

    def lend_share(self, loan: str, share_milli: int, lasts_us: int) -> None:
        """Lends a share for a time.

        Raises:
            UserError: it is not free, or the id is none.
        """
        _borrower_of(loan)
        room, now_s = self._room(lasts_us), self._now_s()
        with self._lock:
            if loan in self._loans:
                return
            has = 0 if room is None else len(room.loss) * room.step_milli
            free = has - sum(lent.holds_milli for lent in self._loans.values())
            if share_milli > free or self._server is None:
                raise UserError(f"{share_milli / 1000:g} of a GPU is not free any more; {free / 1000:g} is")
            self._loans[loan] = _Lent(share_milli, now_s + lasts_us / US_PER_S, now_s)
            now_us = self._now_us()
            self._server.executor.lend_share(loan, Lent(share_milli, now_us, now_us + lasts_us))

    def begin_training(self, loan: str, bundle: Path) -> None:
        """Begins a loan's training, unless it has begun; takes the file.

        Raises:
            NotThereError: there is no such loan.
        """
        with self._lock:
            lent = self._known(loan)
            if lent.training is not None:
                bundle.unlink()
                return
            own = self.folder / f"{loan}.safetensors"
            bundle.rename(own)
            lent.training = LentTraining(
                loan, own, lent.share_milli, self._processes, lambda: self._free(loan)
            )

    def read_progress(self, loan: str) -> LentProgress:
        """Returns the progress of a loan's training.

        Raises:
            NotThereError: there is none; as of all that follow.
        """
        return self._training(loan).poll()

    def set_epochs(self, loan: str, epochs: int) -> None:
        """Sets its number of epochs in total."""
        self._training(loan).set_epochs(epochs)

    def read_checkpoint(self, loan: str, digest: str) -> bytes:
        """Returns its best checkpoint, which has this SHA-256."""
        return self._training(loan).read_checkpoint(digest)

    def give_back(self, loan: str) -> None:
        """Ends a loan, if it is there."""
        self._free(loan)
        with self._lock:
            lent = self._loans.pop(loan, None)
        if lent is not None and lent.training is not None:
            lent.training.stop()

    def end_silent(self) -> None:
        """Ends loans whose borrowers were not heard of, and trainings whose time is over."""
        now_s = self._now_s()
        with self._lock:
            loans = list(self._loans.items())
        for loan, lent in loans:
            # After its time a checkpoint may still be on its way.
            if now_s - lent.heard_s > SILENT_S or now_s - lent.until_s > SILENT_S:
                self.give_back(loan)
            elif now_s > lent.until_s and lent.training is not None and not lent.training.poll().over:
                lent.training.stop()

    def close(self) -> None:
        """Ends all loans, and makes no more."""
        with self._lock:
            loans, self._server = list(self._loans), None
        for loan in loans:
            self.give_back(loan)

    def _room(self, left_us: int) -> Room | None:
        server, now_us = self._server, self._now_us()
        # Whole seconds: the price of the same window is not computed anew for each borrower and request.
        until_us = -(-(now_us + left_us) // US_PER_S) * US_PER_S
        return None if server is None else server.spare_room(now_us, until_us)

    def _free(self, loan: str) -> None:
        server = self._server
        if server is not None:
            server.executor.take_back_share(loan, self._now_us())

    def _known(self, loan: str) -> _Lent:
        lent = self._loans.get(loan)
        if lent is None:
            raise NotThereError(f"there is no loan {loan} here; it has ended, or this service was restarted")
        lent.heard_s = self._now_s()
        return lent

    def _training(self, loan: str) -> LentTraining:
        with self._lock:
            training = self._known(loan).training
        if training is None:
            raise NotThereError(f"the training of loan {loan} has not come yet")
        return training


def _borrower_of(loan: str) -> str:
    found = _LOAN.fullmatch(loan)
    if found is None:
        raise UserError(f"{loan!r} is no id of a loan: 16 hexadecimal digits, '-' and a number")
    return found[1]
