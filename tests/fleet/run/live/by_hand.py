"""Scripted trainings."""

import threading
from dataclasses import replace

from ekya.core.weights import RemoteCheckpoint
from ekya.fleet.run.training.protocol import TrainingProgress
from ekya.models.training.trainer import EpochResult


class ScriptedTraining:
    """A training whose progress, ``now``, tests set; ``steps_on`` is called in ``wait``, after a stop."""

    def __init__(self, gather, epochs, host, home):
        self.bundle, self.hosts, self.home, self.epochs = gather(), [host], home, []
        self.now = TrainingProgress("training", epochs, 0.6)
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

    def __call__(self, name, gather, epochs, host, home, lost):
        self.append(ScriptedTraining(gather, epochs, host, home))
        return self[-1]
