"""Estimates of γ in the trace world: from the trace's trials, or the truth with or without an error."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekya.core.configs import RetrainConfig
from ekya.core.events import ProfileReady, RetrainProfiled
from ekya.core.profile import Family, FamilyCurve, Profiler, family_of
from ekya.core.trace import Epoch, Origin, StreamWindow, Trial
from ekya.core.units import StreamId
from ekya.core.view import RetrainOption
from ekya.simulation.trace.stream import reported_accuracy, training_for


@dataclass(frozen=True, slots=True)
class Estimates:
    """Source of estimates.

    The micro-profiler's recorded results are used if the trace has them and no error is requested;
    otherwise the true accuracy on the labels' validation part, with that error. The seed draws one number
    per γ of a stream's window, which the error scales, so that a larger error is the same one scaled.

    Attributes:
        error_sd: standard deviation of a Gaussian error of each accuracy (paper Figure 11b), where 0 gives
            exact estimates; None uses the trace's trials.
        relative_error: each accuracy is off by this part of it, up or down with equal probability.
        exact: the truth, on all objects and at no cost: for schedulers that need the true profile.
        seed: of the errors.
        profiler: method by which γ are tried.
    """

    error_sd: float | None = None
    relative_error: float = 0.0
    exact: bool = False
    seed: int = 0
    profiler: Profiler = Profiler.EKYA

    def trial(self, family: Family, window: StreamWindow, origin: Origin) -> Trial | None:
        """Returns the recorded trial of a family from a model of that origin; None without one."""
        return window.best_trial(family, origin, self.profiler)

    @property
    def _as_recorded(self) -> bool:
        return not self.exact and self.error_sd is None and self.relative_error == 0.0

    def of_family(
        self,
        family: Family,
        configs: tuple[RetrainConfig, ...],
        window: StreamWindow,
        stream: StreamId,
        place: int,
        origin: Origin,
        t_us: int,
    ) -> ProfileReady | RetrainProfiled:
        """Returns the event of micro-profiling a family.

        Args:
            family: the family.
            configs: Γ, sorted.
            window: the stream's window.
            stream, place: the stream, and its position among all streams.
            origin: of the serving model.
            t_us: time of the event.
        """
        trial = self.trial(family, window, origin) or Trial(family, 0.0)
        if self._as_recorded and trial.curve is not None:
            curve = _from_serving(trial, trial.curve, window, origin)
            return ProfileReady(t_us, stream, window.window, curve, trial.gpu_s)
        if self._as_recorded and trial.predicted:
            options = tuple(
                RetrainOption(said.config, said.accuracy, said.gpu_s)
                for said in trial.predicted
                if said.config in configs
            )
        else:
            options = self._with_errors(family, configs, window, place, origin)
        gpu_s = 0.0 if self.exact else trial.gpu_s
        return RetrainProfiled(t_us, stream, window.window, options, gpu_s)

    def _with_errors(
        self,
        family: Family,
        configs: tuple[RetrainConfig, ...],
        window: StreamWindow,
        place: int,
        origin: Origin,
    ) -> tuple[RetrainOption, ...]:
        gaussian, sign = self._drawn(len(configs), window.window, place)
        options = []
        for index, config in enumerate(configs):
            training = training_for(window, config, origin) if family_of(config) == family else None
            if training is None:
                continue
            epoch = training.epochs[config.epochs - 1]
            truth = reported_accuracy(epoch.standings[0], self.exact)
            error = (self.error_sd or 0.0) * gaussian[index] + self.relative_error * sign[index] * truth
            accuracy = truth if self.exact else min(1.0, max(0.0, truth + float(error)))
            before = reported_accuracy(window.start_of(origin), self.exact)
            course = training.epochs[: config.epochs]
            options.append(
                RetrainOption(
                    config, accuracy, epoch.gpu_s, early_part=_early_part(course, before, self.exact)
                )
            )
        return tuple(options)

    def _drawn(self, count: int, window: int, place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rng = np.random.default_rng((self.seed, place, window))
        return rng.standard_normal(count), rng.choice(np.array([-1.0, 1.0]), count)


def _from_serving(trial: Trial, curve: FamilyCurve, window: StreamWindow, origin: Origin) -> FamilyCurve:
    """Returns a trial's curve as one that begins with the serving model, which a trial measures first.

    Where its trial was not recorded, that of the nearest model begins with another accuracy, and a model that
    a drift left behind would seem as good as one that was retrained since.
    """
    serving = window.start_of(origin)
    if serving == window.start_of(trial.started_from) or not curve.accuracies:
        return curve
    return replace(curve, accuracies=(reported_accuracy(serving, exact=False), *curve.accuracies[1:]))


def _early_part(course: Sequence[Epoch], before: float, exact: bool) -> float:
    """Returns the part of a training's gain that its best epoch so far has, averaged over GPU-seconds."""
    gain = reported_accuracy(course[-1].standings[0], exact) - before
    if gain <= 0.0:
        return 0.0
    best, area, since_gpu_s = before, 0.0, 0.0
    for epoch in course:
        reached = max(best, reported_accuracy(epoch.standings[0], exact))
        area += ((best + reached) / 2.0 - before) * (epoch.gpu_s - since_gpu_s)
        best, since_gpu_s = reached, epoch.gpu_s
    return min(area / (gain * since_gpu_s), 1.0) if since_gpu_s > 0.0 else 0.0
