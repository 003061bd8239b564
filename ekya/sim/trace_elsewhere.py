"""Weights of a trace that need no share: from the cloud, or kept from an earlier window (paper §6.5)."""

from ekya.core.commands import StartRetraining
from ekya.core.configs import RetrainConfig
from ekya.core.elsewhere import CachedModel
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.profile import family_of
from ekya.core.trace import Origin, StreamTrace, StreamWindow, Training
from ekya.sim.trace_stream import TraceModel, told


class TraceArrival:
    """Weights on their way; how good they are is told when they are here.

    Args:
        command: what asked for them. ``elsewhere`` must be set.
        training: that made them; the best of γ's epochs comes.
        window: in which they are to serve.
        now_us: when they were asked for.
        exact: whether the truth is told.
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
        """The weights; None before they are here."""
        return self._model if self.due_us is None else None

    @property
    def best_accuracy(self) -> float:
        """What is told of them; 0 before they are here."""
        return self._accuracy if self.due_us is None else 0.0

    def resize(self, share_milli: int, now_us: int) -> None:
        """A share changes nothing."""

    def delay(self, delay_us: int) -> None:
        """What goes on here delays nothing."""

    def finish_epoch(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """What is told when they are here."""
        self.due_us = None
        return [
            RetrainProgress(now_us, self.stream, self.job, 1, self._accuracy, 0.0),
            RetrainFinished(now_us, self.stream, self.job, 0.0),
        ]


class TraceComingHome:
    """A recorded training on other servers, whose weights come home snapshot by snapshot.

    Args:
        command: what asked for it.
        training: from the weights that it began with.
        exact: whether the truth is told.
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
        """The best weights that are here, of equals the last; None before the first."""
        epoch = self._best[1]
        return TraceModel(self._window, self._training, epoch) if epoch else None

    @property
    def best_accuracy(self) -> float:
        """What was told of them; 0 before they are here."""
        return self._best[0]

    def resize(self, share_milli: int, now_us: int) -> None:
        """A share changes nothing."""

    def delay(self, delay_us: int) -> None:
        """What goes on here delays nothing."""

    def finish_epoch(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Nothing, since no epoch of it is due here."""
        return []

    def receive(self, epochs: int, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """What is told of these epochs: the last of them is here, or the best, where they end it."""
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
    """The model that a window leaves behind: of the most thorough γ recorded in it; None without one."""
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
    """The training behind a kept model: from the model of the window before, as nearly as was recorded."""
    return window.best_training(config, Origin(window.window - 1, family_of(config)))


def labelled_histogram(stream: StreamTrace, window: int) -> tuple[int, ...]:
    """The mix of classes in the labels of a window: they are a random sample of what arrived before it."""
    return stream.windows[window - 1].class_histogram if window > 0 else ()
