"""Generates traces of any size from a seed, with the spread that the paper shows (Figures 2b, 3 and 4).

**Scenes.** A stream's class mix is the softmax of numbers that fluctuate around a fixed mean, in some
streams not at all and in others widely. The accuracy of a model trained in window u drops in window w in
proportion to the distance of the two mixes (half the sum of the differences), and slightly with each window.
So earlier scenes return, and some streams gain nothing.

**Trainings.** After x = epochs · data fraction passes over all data, from start accuracy s,

    accuracy(x) = s + (ceiling − s) · (1 − (1 + x / κ)^−1.5)

so each epoch gains less than the one before. Families differ in κ and in the ceiling: one that trains the
head alone rises sooner and ends lower, and the curves cross. The error under the ceiling grows by
fraction^−0.35 with less data. Cost is proportional to epochs, data and family: by default the most expensive
of 18 γ costs 210 times the cheapest.

**Trials.** Each family is micro-profiled from each model that may serve, as in the paper: for five epochs on
a tenth of the labels. The curve follows the law above, with the lower ceiling of less data, and all its
points are measured on the same few objects.

**λ** that analyses every k-th frame keeps k^−m of the accuracy and needs 1/k of the share; half the
resolution keeps a fixed part and needs about a third. m is spread as on the five real cameras that the
public implementation measured.
"""

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekya.core.profile import FamilyCurve, Profiler
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.trace import (
    BASE,
    BASE_WINDOW,
    Epoch,
    Origin,
    RecordedStart,
    RecordedTraining,
    Standing,
    StreamTrace,
    StreamWindow,
    Trace,
    Trial,
)
from ekya.core.units import FULL_GPU_MILLI, StreamId, seconds_to_us
from ekya.core.view import InferenceOption
from ekya.planning.profiling.inference_profile import oldest_result_us
from ekya.simulation.trace.generator_parameters import (
    DEFAULT_PARAMETERS,
    TRIAL_EPOCHS,
    TRIAL_PART,
    GeneratorParameters,
    Range,
)

Floats = NDArray[np.float64]

_EXPONENT = 1.5
_DATA_EXPONENT = 0.35
_HALF_RESOLUTION_COST = 0.35
_OBJECTS = 3000
_FOR_STREAM, _FOR_SCENES, _FOR_WINDOWS, _FOR_TRIALS = 0, 1, 2, 3


def generate_trace(
    seed: int,
    streams: int,
    windows: int,
    parameters: GeneratorParameters = DEFAULT_PARAMETERS,
    training_speed: SpeedCurve = LINEAR,
) -> Trace:
    """Generates a trace of ``streams`` streams, ``cam-1`` onwards.

    A stream does not depend on the number of streams, and, without validation noise, its windows do not
    depend on the number of windows.

    Args:
        seed: seed of all random draws.
        streams, windows: numbers of them; window 0 trains nothing.
        parameters: of the trace.
        training_speed: speed of a retraining at a share.
    """
    digits = len(str(streams))
    made = [
        _Stream(parameters, (seed, place), windows).trace(StreamId(f"cam-{place:0{digits}d}"))
        for place in range(1, streams + 1)
    ]
    return Trace(
        window_us=seconds_to_us(parameters.window_s),
        gpu=f"generated, seed {seed}",
        classes=tuple(f"class-{index}" for index in range(1, parameters.classes + 1)),
        retrain_configs=parameters.retrain_configs(),
        inference_configs=parameters.inference_configs(),
        streams=tuple(made),
        training_speed=training_speed,
    )


class _Stream:
    """Generates one stream, window by window."""

    def __init__(self, parameters: GeneratorParameters, seed: tuple[int, int], windows: int) -> None:
        self._parameters = parameters
        self._seed = seed
        self._rng = np.random.default_rng((*seed, _FOR_STREAM))
        self._windows = windows
        self._fps = 30.0
        self._dearest_gpu_s = self._draw(parameters.dearest_gpu_s)
        self._best = self._draw(parameters.best_accuracy)
        self._base = min(self._draw(parameters.base_accuracy), self._best)
        still = self._rng.random() < parameters.still_part
        drift = self._draw(parameters.drift)
        self._mixes = self._scenes(0.0 if still else drift)
        self._lost = self._losses()
        self._ceilings = [self._draw(of.ceiling) for of in parameters.families]
        self._passes = [self._draw(of.passes) for of in parameters.families]
        self._inference = self._inference_options()
        dearest = max(of.cost for of in parameters.families) * max(parameters.epochs)
        dearest *= max(parameters.data_fractions)
        self._epoch_gpu_s = [of.cost * self._dearest_gpu_s / dearest for of in parameters.families]
        # Accuracy, in each past window, of the model that later windows start from.
        self._chain: list[float] = [self._base]

    def trace(self, stream: StreamId) -> StreamTrace:
        """Generates the stream over all its windows."""
        return StreamTrace(stream, self._fps, tuple(self._window(index) for index in range(self._windows)))

    def _draw(self, bounds: Range) -> float:
        return float(self._rng.uniform(*bounds))

    def _scenes(self, drift: float) -> Floats:
        """Returns the class mix in each window, followed by the mean mix: (W + 1, C)."""
        rng = np.random.default_rng((*self._seed, _FOR_SCENES))
        middle = rng.normal(0.0, 1.0, self._parameters.classes)
        offset = np.zeros_like(middle)
        mixes = []
        for _ in range(self._windows):
            offset = 0.8 * offset + rng.normal(0.0, 1.0, len(middle)) * drift
            mixes.append(_softmax(middle + offset))
        return np.array([*mixes, _softmax(middle)])

    def _losses(self) -> list[list[float]]:
        """Returns the accuracy that a model trained in window u (base model: -1) loses by w: ``[u][w]``."""
        parameters, mixes = self._parameters, self._mixes
        apart = 0.5 * np.abs(mixes[:, None] - mixes[None, :-1]).sum(axis=2)
        age = np.maximum(np.arange(self._windows)[None, :] - np.arange(self._windows + 1)[:, None], 0)
        # The base model, in the last row, belongs to no window and does not wear.
        losses: list[list[float]] = (parameters.sensitivity * apart + parameters.wear * age).tolist()
        return losses

    def _inference_options(self) -> tuple[InferenceOption, ...]:
        parameters = self._parameters
        loss, half = self._draw(parameters.frame_rate_loss), self._draw(parameters.half_resolution)
        needed = self._draw(parameters.share_needed)
        finest = max(parameters.resolutions)
        options = []
        for config in parameters.inference_configs():
            halvings = float(np.log2(finest / config.resolution))
            relative = config.every**-loss * half**halvings
            frame_gpu_s = needed / self._fps * _HALF_RESOLUTION_COST**halvings
            share_milli = int(np.ceil(frame_gpu_s * self._fps / config.every * FULL_GPU_MILLI))
            age_us = oldest_result_us(config, share_milli, frame_gpu_s, self._fps)
            options.append(InferenceOption(config, round(relative, 6), share_milli, age_us))
        return tuple(options)

    def _aged(self, accuracy: float, trained_in: int, window: int) -> float:
        """Returns the accuracy in a window of a model that had ``accuracy`` where it was trained."""
        return max(accuracy - self._lost[trained_in][window], min(accuracy, self._parameters.least_accuracy))

    def _window(self, index: int) -> StreamWindow:
        parameters = self._parameters
        self._rng = np.random.default_rng((*self._seed, _FOR_WINDOWS, index))
        counts = self._rng.multinomial(_OBJECTS, self._mixes[index])
        starts = [RecordedStart(BASE, self._standing(index, self._aged(self._base, BASE_WINDOW, index)))]
        starts += [
            RecordedStart(
                Origin(earlier), self._standing(index, self._aged(self._chain[earlier], earlier, index))
            )
            for earlier in range(1, index)
        ]
        trainings: list[RecordedTraining] = []
        trials: list[Trial] = []
        if index > 0:
            # Window 0 trains no model: window 1 starts from the base model.
            started_from = starts[-1].origin
            accuracy = starts[-1].standing.served_accuracy
            best = min(self._best + self._rng.normal(0.0, 0.02), 0.99)
            trainings = self._trainings(index, started_from, accuracy, best)
            trials = self._trials(index, starts, best)
            self._chain.append(self._usual(trainings, index, accuracy))
        crops = parameters.crops if index > 0 else 0
        return StreamWindow(
            window=index,
            class_histogram=tuple(int(count) for count in counts),
            training_crops=crops - crops // 5,
            validation_crops=crops // 5,
            labelling_gpu_s=parameters.labelling_gpu_s,
            inference_gpu_s=parameters.inference_profiling_gpu_s,
            inference=self._inference,
            inference_profiled=(),
            starts=tuple(starts),
            trainings=tuple(trainings),
            trials=tuple(trials),
        )

    def _usual(self, trainings: list[RecordedTraining], window: int, before: float) -> float:
        """Returns the accuracy at the end of a window that runs its most expensive γ."""
        dearest = max(trainings, key=lambda training: training.epochs[-1].gpu_s)
        standing = dearest.standing_in(len(dearest.epochs), window)
        return before if standing is None else max(before, standing.served_accuracy)

    def _trainings(
        self, window: int, started_from: Origin, start: float, best: float
    ) -> list[RecordedTraining]:
        parameters = self._parameters
        last = max(parameters.epochs)
        made = []
        for (which, of), fraction in product(enumerate(parameters.families), parameters.data_fractions):
            ceiling = self._ceiling(which, fraction, best) + self._rng.normal(0.0, parameters.training_noise)
            rise = self._rise(which, np.arange(1, last + 1) * fraction)
            wobble = self._rng.normal(0.0, parameters.training_noise / 4, last)
            accuracies = np.clip(start + (ceiling - start) * rise + wobble, 0.0, 1.0).tolist()
            epochs = tuple(
                Epoch(
                    epoch,
                    epoch * fraction * self._epoch_gpu_s[which],
                    self._standings(window, accuracy, epoch in parameters.epochs),
                )
                for epoch, accuracy in enumerate(accuracies, start=1)
            )
            made.append(RecordedTraining(of.family, fraction, started_from, epochs))
        return made

    def _trials(self, window: int, starts: list[RecordedStart], best: float) -> list[Trial]:
        """Returns the micro-profiles from each start, all measured on the same objects."""
        parameters = self._parameters
        # Numbers of their own: no trial changes what is true.
        rng = np.random.default_rng((*self._seed, _FOR_TRIALS, window))
        luck = rng.standard_normal()
        labels = parameters.crops - parameters.crops // 5
        made = []
        epochs, fraction = TRIAL_EPOCHS, TRIAL_PART
        for which, of in enumerate(parameters.families):
            subset = max(1, round(fraction * labels))
            rise = self._rise(which, np.arange(epochs + 1) * fraction)
            wobble = rng.normal(0.0, parameters.training_noise, epochs + 1)
            for start in starts:
                before = start.standing.served_accuracy
                true = np.clip(before + (self._ceiling(which, fraction, best) - before) * rise, 0.0, 1.0)
                chance = luck * np.sqrt(true * (1.0 - true) / parameters.objects)
                curve = FamilyCurve(
                    batch_size=of.batch_size,
                    head_width=of.head_width,
                    trainable_blocks=of.trainable_blocks,
                    subset_crops=subset,
                    accuracies=tuple(np.clip(true + chance + wobble, 0.0, 1.0).tolist()),
                    epoch_gpu_s=subset / labels * self._epoch_gpu_s[which],
                    prepare_gpu_s=0.0,
                    validation_crops=parameters.objects,
                )
                gpu_s = parameters.trial_part * self._epoch_gpu_s[which]
                made.append(
                    Trial(of.family, gpu_s, curve, started_from=start.origin, profiler=Profiler.PAPER)
                )
        return made

    def _ceiling(self, which: int, fraction: float, best: float) -> float:
        """Returns the accuracy that a family nears on a part of the data."""
        return float(1.0 - (1.0 - best * self._ceilings[which]) * fraction**-_DATA_EXPONENT)

    def _rise(self, which: int, passes: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Returns the part of the way to its ceiling that a family has gone after passes over all data."""
        risen: NDArray[np.floating[Any]] = 1.0 - (1.0 + passes / self._passes[which]) ** -_EXPONENT
        return risen

    def _standings(self, window: int, accuracy: float, may_stay: bool) -> tuple[Standing, ...]:
        later = range(window + 1, self._windows) if may_stay else ()
        return (
            self._standing(window, accuracy),
            *(self._standing(at, self._aged(accuracy, window, at)) for at in later),
        )

    def _standing(self, window: int, accuracy: float) -> Standing:
        noise = self._parameters.validation_noise
        measured = accuracy if noise == 0.0 else accuracy + noise * float(self._rng.standard_normal())
        return Standing(window, min(max(measured, 0.0), 1.0), accuracy)


def _softmax(values: Floats) -> Floats:
    raised = np.exp(values - values.max())
    mix: Floats = raised / raised.sum()
    return mix
