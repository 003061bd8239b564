"""One stream of a trace on virtual time: its serving model, its accuracy and its trainings."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.profile import family_of
from ekya.core.speed import SpeedCurve
from ekya.core.trace import (
    BASE_WINDOW,
    Epoch,
    Origin,
    Predicted,
    RecordedTraining,
    Standing,
    StreamTrace,
    StreamWindow,
)
from ekya.core.units import BASE_VERSION, ModelVersion
from ekya.core.view import InferenceOption
from ekya.core.weights import CachedModel
from ekya.planning.schedulers.objective import analysed_part
from ekya.simulation.retraining import EpochEnd, TrainingStep


@dataclass(frozen=True, slots=True)
class TraceModel:
    """A serving model: an epoch of a recorded training, or the base model."""

    trained_in: int
    training: RecordedTraining | None = None
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


def training_for(window: StreamWindow, config: RetrainConfig, origin: Origin) -> RecordedTraining | None:
    """Returns the recorded training of γ from a model of that origin, or one made from its prediction.

    None if the trace has neither.
    """
    recorded = window.best_training(config, origin)
    if recorded is not None:
        return recorded
    said = next((said for trial in window.trials for said in trial.predicted if said.config == config), None)
    return None if said is None else _as_predicted(window, said, origin)


def _as_predicted(window: StreamWindow, said: Predicted, origin: Origin) -> RecordedTraining:
    """Returns a training of which only the end is known: before its last epoch it has gained nothing."""
    config, start = said.config, window.start_of(origin)
    end = Standing(window.window, said.accuracy, None)
    return RecordedTraining(
        family_of(config),
        config.data_fraction,
        origin,
        tuple(
            Epoch(epoch, said.gpu_s * epoch / config.epochs, (end if epoch == config.epochs else start,))
            for epoch in range(1, config.epochs + 1)
        ),
    )


def recorded_steps(
    training: RecordedTraining, config: RetrainConfig, window: int, exact: bool
) -> Iterator[TrainingStep[TraceModel]]:
    """Yields the epochs of γ in a recorded training; ``exact`` gives their true accuracies."""

    def end_of(epoch: Epoch) -> EpochEnd[TraceModel]:
        model = TraceModel(window, training, epoch.epoch)
        return EpochEnd(epoch.epoch, reported_accuracy(epoch.standings[0], exact), epoch.gpu_s, lambda: model)

    before_gpu_s = 0.0
    for epoch in training.epochs[: config.epochs]:
        yield TrainingStep(epoch.gpu_s - before_gpu_s, partial(end_of, epoch))
        before_gpu_s = epoch.gpu_s


def kept_steps(
    stream: StreamTrace, config: RetrainConfig, trained_in: int, window: int, exact: bool
) -> Iterator[TrainingStep[TraceModel]] | None:
    """Returns a kept model as the only step of a training, with its accuracy in a later window.

    It is the best of its training's epochs, preferably of the one that began with the previous window's
    model. None without a recording.
    """
    training = stream.windows[trained_in].best_training(config, Origin(trained_in - 1, family_of(config)))
    if training is None:
        return None
    epochs = training.epochs[: config.epochs]
    best = max(epochs, key=lambda epoch: (reported_accuracy(epoch.standings[0], exact), epoch.epoch))
    model = TraceModel(trained_in, training, best.epoch)
    end = EpochEnd(1, reported_accuracy(model.standing_in(stream.windows[window]), exact), 0.0, lambda: model)
    return iter([TrainingStep(0.0, lambda: end)])


def reported_accuracy(standing: Standing, exact: bool) -> float:
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
        self._kept: dict[int, tuple[InferenceOption, float]] = {}

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
            self._kept[window] = option, analysed_part(option, self._share_milli, self._speed)
        option, kept = self._kept[window]
        return option.full_accuracy(self.standing(window).served_in(part, len(here.weights))) * kept


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


def labelled_histogram(stream: StreamTrace, window: int) -> tuple[int, ...]:
    """Returns the class mix of a window's labels, which are a random sample of the window before."""
    return stream.windows[window - 1].class_histogram if window > 0 else ()
