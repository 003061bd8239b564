"""One stream of a trace on virtual time: its serving model, accuracy and retraining."""

from dataclasses import dataclass

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.events import RetrainFinished, RetrainProgress
from ekya.core.profile import family_of
from ekya.core.speed import SpeedCurve
from ekya.core.trace import (
    BASE_WINDOW,
    Epoch,
    Origin,
    Predicted,
    Standing,
    StreamTrace,
    StreamWindow,
    Training,
)
from ekya.core.units import BASE_VERSION, JobId, ModelVersion, StreamId
from ekya.planning.schedulers.objective import analysed_part
from ekya.simulation.shares import ShareWork


@dataclass(frozen=True, slots=True)
class TraceModel:
    """A serving model: an epoch of a recorded training, or the base model."""

    trained_in: int
    training: Training | None = None
    epoch: int = 0

    @property
    def origin(self) -> Origin:
        """Origin of the model."""
        return Origin(self.trained_in, self.training.family if self.training else None)

    def standing_in(self, window: StreamWindow) -> Standing:
        """Returns its accuracy in a window; if not recorded, that of the nearest epoch or origin."""
        known = self.training.standing_in(self.epoch, window.window) if self.training else None
        return known or window.start_of(self.origin)


BASE_MODEL = TraceModel(BASE_WINDOW)


def training_for(window: StreamWindow, config: RetrainConfig, origin: Origin) -> Training | None:
    """Returns the recorded training of γ from a model of that origin, or one made from its prediction.

    None if the trace has neither.
    """
    recorded = window.best_training(config, origin)
    if recorded is not None:
        return recorded
    said = next((said for trial in window.trials for said in trial.predicted if said.config == config), None)
    return None if said is None else _as_predicted(window, said, origin)


def _as_predicted(window: StreamWindow, said: Predicted, origin: Origin) -> Training:
    """Returns a training of which only the end is known: before its last epoch it has gained nothing."""
    config, start = said.config, window.start_of(origin)
    end = Standing(window.window, said.accuracy, None)
    return Training(
        family_of(config),
        config.data_fraction,
        origin,
        tuple(
            Epoch(epoch, said.gpu_s * epoch / config.epochs, (end if epoch == config.epochs else start,))
            for epoch in range(1, config.epochs + 1)
        ),
    )


class TraceRetraining:
    """A recorded training that advances at the speed of its share."""

    def __init__(
        self,
        stream: StreamId,
        job: JobId,
        window: int,
        config: RetrainConfig,
        training: Training,
        work: ShareWork,
        exact: bool,
    ) -> None:
        self.stream, self.job, self.window = stream, job, window
        self._config = config
        self._training = training
        self._exact = exact
        self._done = 0
        self._best: tuple[float, int] | None = None
        self._work = work

    @property
    def due_us(self) -> int | None:
        """End of the current epoch; None while the share is 0."""
        return self._work.due_us

    def resize(self, share_milli: int, now_us: int) -> None:
        """Sets the share from ``now_us`` on."""
        self._work.resize(share_milli, now_us)

    def delay(self, delay_us: int) -> None:
        """Pauses the work, for example while a checkpoint is taken."""
        self._work.delay(delay_us)

    @property
    def best(self) -> TraceModel | None:
        """Weights of its best epoch so far, of equals the last; None before the first."""
        return None if self._best is None else TraceModel(self.window, self._training, self._best[1])

    @property
    def best_accuracy(self) -> float:
        """Reported accuracy of those weights; 0 before the first epoch."""
        return 0.0 if self._best is None else self._best[0]

    def finish_epoch(self, now_us: int) -> list[RetrainProgress | RetrainFinished]:
        """Ends the current epoch and returns its events."""
        self._done += 1
        epoch = self._training.epochs[self._done - 1]
        told_accuracy = told(epoch.standings[0], self._exact)
        self._best = max(self._best or (0.0, 0), (told_accuracy, self._done))
        events: list[RetrainProgress | RetrainFinished] = [
            RetrainProgress(now_us, self.stream, self.job, self._done, told_accuracy, epoch.gpu_s)
        ]
        if self._done == self._config.epochs:
            self._work.resize(0, now_us)
            events.append(RetrainFinished(now_us, self.stream, self.job, epoch.gpu_s))
        else:
            self._work.next_step(self._training.epochs[self._done].gpu_s - epoch.gpu_s, now_us)
        return events


def told(standing: Standing, exact: bool) -> float:
    """Returns the accuracy to report of a model: on validation, or for an oracle the true one."""
    return standing.served_accuracy if exact else standing.validation_accuracy


class TraceStream:
    """State of a stream, with its accuracy accumulated over time.

    Args:
        trace: the stream's.
        window_us: length of a window in this run.
        speed: of inference at a share.
    """

    def __init__(self, trace: StreamTrace, window_us: int, speed: SpeedCurve) -> None:
        self.trace = trace
        self.version: ModelVersion = BASE_VERSION
        self._window_us = window_us
        self._speed = speed
        self._model = BASE_MODEL
        self._inference: InferenceConfig | None = None
        self._share_milli = 0
        self._since_us = 0
        self._accuracy = [0.0] * len(trace.windows)
        self._kept: dict[int, float] = {}

    @property
    def origin(self) -> Origin:
        """Origin of the serving model."""
        return self._model.origin

    def standing(self, window: int) -> Standing:
        """Returns the accuracy of the serving model in a window."""
        return self._model.standing_in(self.trace.windows[window])

    def configure(self, config: InferenceConfig, share_milli: int, now_us: int) -> None:
        """Sets λ and share from ``now_us`` on."""
        self.advance(now_us)
        self._inference, self._share_milli = config, share_milli
        self._kept = {}

    def serve(self, model: TraceModel, now_us: int) -> None:
        """Serves other weights from ``now_us`` on."""
        self.advance(now_us)
        self._model, self.version = model, ModelVersion(self.version + 1)

    def advance(self, now_us: int) -> None:
        """Accumulates accuracy until ``now_us``; time after the last window does not count."""
        while self._since_us < now_us:
            window, into_us = divmod(self._since_us, self._window_us)
            if window >= len(self._accuracy):
                return
            weights = self.trace.windows[window].weights
            part = into_us * len(weights) // self._window_us
            # The first whole microsecond of the next part, at most the next window's start.
            part_end_us = -(-(part + 1) * self._window_us // len(weights))
            until_us = min(now_us, window * self._window_us + part_end_us)
            in_parts = (until_us - self._since_us) * len(weights) / self._window_us
            self._accuracy[window] += self._instantaneous(window, part) * weights[part] * in_parts
            self._since_us = until_us

    def mean_accuracy(self, window: int) -> float:
        """Returns the mean instantaneous inference accuracy over the objects of a past window."""
        return self._accuracy[window]

    def _instantaneous(self, window: int, part: int) -> float:
        if self._inference is None:
            return 0.0
        here = self.trace.windows[window]
        if window not in self._kept:
            option = next(option for option in here.inference if option.config == self._inference)
            self._kept[window] = analysed_part(option, self._share_milli, self._speed)
        return self.standing(window).served_in(part, len(here.weights)) * self._kept[window]
