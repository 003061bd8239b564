"""Hosts of trainings whose processes are threads here, and which are off, fail, or wait."""

import threading
from itertools import count
from pathlib import Path
from tempfile import mkdtemp

from bundles import Shares
from waiting import HANG_GUARD_S

from ekya.core.errors import UserError
from ekya.fleet.run.training.lent_training import LentTraining
from ekya.fleet.run.training.processes import TrainingActor
from ekya.fleet.run.training.protocol import CallError, GoneError


class Process:
    """A ``Process`` in this one. It dies in the epochs of ``fails``, and waits in those of ``waits``."""

    def __init__(self, machine):
        self._actor, self._machine, self._epochs = TrainingActor("a guest", machine.shares), machine, 0
        self.dead = False

    def ask(self, method, *arguments, within_s=None):
        if method == "run_epoch":
            self._epochs += 1
            if self._epochs in self._machine.fails:
                self.end_process()
            if self._epochs in self._machine.waits:
                assert self._machine.goes_on.wait(HANG_GUARD_S)
        if self.dead:
            raise CallError("its process has died")
        try:
            return getattr(self._actor, method)(*arguments)
        except UserError:
            raise
        except Exception as error:
            raise CallError(f"{type(error).__name__}: {error}") from error

    def tell(self, method, *arguments):
        if not self.dead:
            self.ask(method, *arguments)

    def end_process(self):
        self.dead = True
        self._machine.ended += 1


class Machine:
    """A ``ProcessSource``, and a ``TrainingHost`` that is called without a link.

    ``taken``, ``given_back`` and ``ended`` count processes; ``ends`` has the loans that were ended.
    """

    def __init__(self, fails=(), waits=()):
        self.fails, self.waits, self.goes_on = set(fails), set(waits), threading.Event()
        self.shares, self.taken, self.given_back, self.ended = Shares(), 0, 0, 0
        self.off, self.forgets, self.garbles = False, False, 0
        self.trainings, self.sent, self.begun, self.ends, self._files = {}, [], count(), [], Path(mkdtemp())

    def take_process(self):
        self.taken += 1
        return Process(self)

    def give_back_process(self, process):
        process.ask("release_training")
        self.given_back += 1

    def begin_training(self, loan, bundle, share_milli=300):
        self._reached()
        if loan not in self.trainings:
            self.sent.append(len(bundle))
            file = self._files / f"{next(self.begun)}"
            file.write_bytes(bundle)
            self.trainings[loan] = LentTraining(loan, file, share_milli, self, lambda: None)

    def read_progress(self, loan):
        self._reached()
        return self.trainings[loan].poll()

    def set_epochs(self, loan, epochs):
        self._reached()
        self.trainings[loan].set_epochs(epochs)

    def fetch_checkpoint(self, loan, digest):
        self._reached()
        if self.garbles:
            self.garbles -= 1
            raise CallError("a checkpoint does not match its SHA-256; it is not used")
        return self.trainings[loan].read_checkpoint(digest)

    def end_training(self, loan):
        self.ends.append(loan)
        if loan in self.trainings:
            self.trainings[loan].stop()

    def _reached(self):
        if self.off:
            raise CallError("it is off")
        if self.forgets:
            raise GoneError("there is no such loan")
