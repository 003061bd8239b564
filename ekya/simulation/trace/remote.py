"""Weights of a trace without a local share: from the cloud, or kept from an earlier window (paper §6.5)."""

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.profile import family_of
from ekya.core.trace import Origin, StreamTrace, StreamWindow, Training
from ekya.core.weights import CachedModel
from ekya.simulation.trace.stream import TraceModel, told


class TraceArrival:
    """Weights that are on their way; their accuracy is reported on arrival.

    Args:
        command: the command that requested them. ``elsewhere`` must be set.
        training: the training that made them; the best of γ's epochs arrives.
        window: in which they are to serve.
        now_us: time of the command.
        exact: report the true accuracy.
    """

    def __init__(
        self, command: StartRetraining, training: Training, window: StreamWindow, now_us: int, exact: bool
    ) -> None:
        if command.elsewhere is None:
            raise ValueError("a retraining on the GPUs here arrives nowhere")
        trained_in = command.elsewhere.trained_in
        self.stream, self.job = command.stream, command.job
        self.due_us: int | None = max(command.elsewhere.arrives_us, now_us)
        epochs = training.epochs[: command.config.epochs]
        best = max(epochs, key=lambda epoch: (told(epoch.standings[0], exact), epoch.epoch))
        self._model = TraceModel(command.window if trained_in is None else trained_in, training, best.epoch)
        self._accuracy = told(self._model.standing_in(window), exact)

    @property
    def best(self) -> TraceModel | None:
        """The weights; None before they arrive."""
        return self._model if self.due_us is None else None

    @property
    def best_accuracy(self) -> float:
        """Their reported accuracy; 0 before they arrive."""
        return self._accuracy if self.due_us is None else 0.0

    def resize(self, share_milli: int, now_us: int) -> None:
        """Does nothing: the retraining holds no share."""

    def delay(self, delay_us: int) -> None:
        """Does nothing: local work does not delay it."""

    def finish_epoch(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Returns the events of the arrival."""
        self.due_us = None
        return [
            RetrainProgress(now_us, self.stream, self.job, 1, self._accuracy, 0.0),
            RetrainFinished(now_us, self.stream, self.job, 0.0),
        ]


class TraceComingHome:
    """A recorded training on other servers, whose weights come home snapshot by snapshot.

    Args:
        command: the command that started it.
        training: from the weights that served at the command.
        exact: report the true accuracy.
    """

    due_us: int | None = None

    def __init__(self, command: StartRetraining, training: Training, exact: bool) -> None:
        self.stream, self.job = command.stream, command.job
        self._window, self._config = command.window, command.config
        self._training, self._exact = training, exact
        self._done = 0
        self._best = (0.0, 0)

    @property
    def best(self) -> TraceModel | None:
        """The best weights that have arrived, of equals the last; None before the first."""
        epoch = self._best[1]
        return TraceModel(self._window, self._training, epoch) if epoch else None

    @property
    def best_accuracy(self) -> float:
        """Their reported accuracy; 0 before they arrive."""
        return self._best[0]

    def resize(self, share_milli: int, now_us: int) -> None:
        """Does nothing: the retraining holds no share."""

    def delay(self, delay_us: int) -> None:
        """Does nothing: local work does not delay it."""

    def finish_epoch(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Returns no events, since no epoch is due locally."""
        return []

    def receive(self, epochs: int, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Returns the events of a snapshot: the last of these epochs, or at the end the best new one."""
        ends = epochs == self._config.epochs
        new = self._training.epochs[self._done if ends else max(self._done, epochs - 1) : epochs]
        self._done = epochs
        if not new:
            return []
        accuracy, epoch = max((told(one.standings[0], self._exact), one.epoch) for one in new)
        self._best = max(self._best, (accuracy, epoch))
        events: list[RetrainProgress | RetrainFinished] = [
            RetrainProgress(now_us, self.stream, self.job, epoch, accuracy, 0.0)
        ]
        if ends:
            events.append(RetrainFinished(now_us, self.stream, self.job, 0.0))
        return events


def cached_model(stream: StreamTrace, window: int) -> CachedModel | None:
    """Returns the model of a window's most thorough recorded γ; None without a recording."""
    known = {
        RetrainConfig(
            len(training.epochs),
            training.family.batch_size,
            training.family.head_width,
            training.family.trainable_blocks,
            training.data_fraction,
        )
        for training in stream.windows[window].trainings
    }
    if not known:
        return None
    thorough = max(known, key=lambda config: config.thoroughness)
    return CachedModel(thorough, window, labelled_histogram(stream, window))


def kept_training(window: StreamWindow, config: RetrainConfig) -> Training | None:
    """Returns the training of a kept model, preferably started from the previous window's model."""
    return window.best_training(config, Origin(window.window - 1, family_of(config)))


def labelled_histogram(stream: StreamTrace, window: int) -> tuple[int, ...]:
    """Returns the class mix of a window's labels, which are a random sample of the window before."""
    return stream.windows[window - 1].class_histogram if window > 0 else ()
