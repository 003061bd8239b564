"""Handles whose objects are in this process, scripted trainings, and doors without a network."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from ekya.core.errors import UserError
from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.run.calls import CallError
from ekya.fleet.run.sites.client import SiteHandle
from ekya.fleet.run.training.protocol import TrainingProgress
from ekya.models.training.trainer import EpochResult


class ByHand:
    """A ``Handle``; calls run in parallel on ``threads`` threads, or without any before ``call`` returns.

    A call to a ``dead`` object raises an error; a ``silent`` one never replies. ``called`` has the names
    of all methods that were called.
    """

    def __init__(self, kept, threads=16):
        self.kept, self.dead, self.silent = kept, False, False
        self._pool = ThreadPoolExecutor(threads) if threads else None
        self._open, self.called = [], []

    def call(self, method, *arguments):
        answer = Future()
        self._open.append(answer)
        self.called.append(method)
        if self.dead:
            answer.set_exception(CallError("nobody is there"))
        elif self.silent:
            pass
        elif self._pool is None:
            self._work(answer, method, arguments)
        else:
            self._pool.submit(self._work, answer, method, arguments)
        return answer

    def end_process(self):
        self.die()

    def die(self):
        """Fails all open calls."""
        self.dead = True
        for answer in self._open:
            if not answer.done():
                answer.set_exception(CallError("it died"))

    def begin_again(self, kept):
        """Starts again after ``die``; callers keep their handle."""
        self.kept, self.dead, self._open = kept, False, []

    def _work(self, answer, method, arguments):
        try:
            told, raised = getattr(self.kept, method)(*arguments), None
        except (UserError, CallError) as error:
            told, raised = None, error
        except Exception as error:
            told, raised = None, CallError(f"{type(error).__name__}: {error}")
        if answer.done():
            return
        if raised is not None:
            answer.set_exception(raised)
        else:
            answer.set_result(told)


class Doors:
    """A ``SiteServer`` that nobody reaches; ``offered`` has the handles of what it offers at the moment."""

    def __init__(self):
        self.offered = {}

    def offer_object(self, name, handle, methods):
        assert methods
        self.offered[name] = handle
        return SiteHandle("here:1", name, "")

    def withdraw_object(self, name):
        self.offered.pop(name, None)


class ScriptedTraining:
    """A training whose progress, ``now``, tests set; ``steps_on`` is called in ``wait``, after a stop."""

    def __init__(self, bundle, host, home):
        self.bundle, self.hosts, self.home, self.epochs = bundle, [host], home, []
        self.now = TrainingProgress("training", bundle.config.epochs, 0.6)
        self.stopped, self.steps_on = threading.Event(), lambda: None

    def start_thread(self):
        pass

    def poll(self):
        return self.now

    def move_to(self, host):
        self.hosts.append(host)

    def set_epochs(self, epochs):
        self.epochs.append(epochs)
        self.now = replace(self.now, planned_epochs=epochs)

    def stop_training(self):
        self.stopped.set()

    def wait(self, timeout_s=None):
        self.steps_on()
        return True

    def best_yet(self):
        best = max(self.now.epochs, key=lambda epoch: (epoch.validation_accuracy, epoch.epoch))
        return RemoteCheckpoint(f"weights {best.epoch}".encode(), best.validation_accuracy, best.epoch)

    def shows(self, *accuracies, **changes):
        """Has done epochs of these accuracies, and sent all of them home."""
        epochs = tuple(EpochResult(epoch, accuracy, 0.1) for epoch, accuracy in enumerate(accuracies, 1))
        self.now = replace(self.now, epochs=epochs, epochs_home=len(epochs), **changes)


class Trainings(list):
    """Makes scripted trainings in the place of ``RemoteTraining``."""

    def __call__(self, name, bundle, host, processes, home):
        self.append(ScriptedTraining(bundle, host, home))
        return self[-1]
