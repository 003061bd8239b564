"""Estimates the options that a scheduler chooses from, from measured family curves (paper §4.3).

Two estimators:

- ``paper``: Optimus' curve through each family's points, at the crops that γ sees.
- ``ekya``, the default. On the labels of one window a curve is mostly noise: sixteen validation crops miss
  by ten points, while the γ of one stream differ by less. The differences between γ are much the same in
  every window, though: ``expected_error`` models them with three exponents, of which that of the blocks
  grows with the number of objects to learn from. So the curves of all families together first determine the
  *level*: the error that all labels, ``USUAL_EPOCHS`` and the head alone leave on this scene. Then each
  family's own curve moves its γ away from what is expected of them, as far as its noise allows:

      accuracy(γ) = (1 − κ) · (1 − level · expected_error(γ)) + κ · curve(γ)
      κ = FAMILY_SD² / (FAMILY_SD² + variance of the curve)

  Both parts rise with epochs and with data and lie in [0, 1], so their mixture does.

The variance of an estimate adds up the uncertainty of level, curve and shape, and ``OUTCOME_SD``: the model
will run on the next window's objects, not on those that were labelled. This part grows where past estimates
were further off than expected (``outcome_sd``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, FamilyCurve, Profiler, family_of
from ekya.core.view import RetrainOption
from ekya.planning.profiling.history import ProfileHistory, bias_correction
from ekya.planning.profiling.learning_curve import LEAST_NOISE, LearningCurve, fit_mixture, fit_optimus

EMPTY_HISTORY = ProfileHistory()

DATA_EXPONENT = 0.35
"""Exponent of the error in the number of labels: error ~ labels^-0.35, as learning curves of deep networks
do at their steepest. A curve counts how often crops were seen, and not how many different ones there were:
without this, half of the labels seen twice would be as good as all of them."""


EPOCHS_EXPONENT = 0.1
"""Exponent of the error in epochs between 4 and 16, measured on streets that no reported figure uses."""

USUAL_OBJECTS = 15
"""Independent objects that the labels of a short window show."""

DEPTH_EXPONENT, DEPTH_GROWTH = 0.15, 0.3
"""Exponent of the error in 1 + trained blocks where labels show ``USUAL_OBJECTS`` independent objects, and
its increase with each e-fold of them: from many objects blocks learn what a head cannot."""

USUAL_EPOCHS = 16
"""Epochs that the level refers to."""

USUAL_LEVEL, LEVEL_SD = 0.3, 0.06
"""The level before any curve is seen, and its standard deviation between streams: about the noise of an
accuracy on fifty independent objects."""

LEFT_PART, MOST_LEFT = 0.8, 0.9
"""Upper bounds of the level, as parts of the error before a retraining: of the usual level, and of the
estimated level, since few labels may show too much. Where a retraining would leave more, the current model
goes on to serve."""

FAMILY_SD = 0.04
"""Standard deviation of a family's γ from what is expected of them, beside that of the level."""

SHAPE_SD = 0.03
"""Standard deviation of a single γ from its family."""

OUTCOME_SD, CHANGE_SD = 0.12, 0.05
"""Standard deviation of a model's accuracy on the next window's objects from that on the labels' scene:
where a window shows ``USUAL_OBJECTS``, and where it shows enough that only change of the scene is left."""

OUTCOME_CHECKS = 5.0
"""Weight of ``OUTCOME_SD``, in checked estimates."""

ON_THE_WAY = (0.125, 0.375, 0.625, 0.875)
"""Parts of a γ's epochs at which its gain so far is sampled."""


def estimate_options(
    curves: Iterable[FamilyCurve],
    configs: Iterable[RetrainConfig],
    training_crops: int,
    *,
    validation_crops: int | None = None,
    serving_accuracy: float = 0.0,
    history: ProfileHistory = EMPTY_HISTORY,
    profiler: Profiler = Profiler.EKYA,
) -> tuple[RetrainOption, ...]:
    """Returns what each γ would give on the whole training part; γ of families not profiled are left out.

    GPU-seconds are those measured for the crops of the subset, scaled by crops and epochs.

    Args:
        curves: micro-profiles, at most one a family.
        configs: Γ.
        training_crops: labelled crops that a retraining with all data would use, at least 1.
        validation_crops: crops behind each measured accuracy, for curves that give no number; None trusts
            them.
        serving_accuracy: of the model that serves, where no curve measured it.
        history: of past windows, to correct a lasting bias and to learn how far estimates were off.
        profiler: estimator to use.

    Returns:
        Options sorted by γ.

    Raises:
        ValueError: two curves of one family, or no crops.
    """
    if training_crops < 1:
        raise ValueError("a retraining needs at least one crop")
    measured: dict[Family, FamilyCurve] = {}
    for curve in curves:
        if curve.family in measured:
            raise ValueError(f"two curves of one family: {curve.family}")
        measured[curve.family] = curve
    known = [config for config in sorted(set(configs)) if family_of(config) in measured]
    question = WindowMeasurements(
        measured, tuple(known), training_crops, validation_crops, serving_accuracy, history
    )
    estimator = iterate_estimates if profiler is Profiler.EKYA else estimate_as_in_the_paper
    return tuple(estimator(question))


@dataclass(frozen=True, slots=True)
class WindowMeasurements:
    """Measurements of one stream's window, and the γ to estimate; see ``estimate_options``."""

    measured: Mapping[Family, FamilyCurve]
    configs: tuple[RetrainConfig, ...]
    training_crops: int
    validation_crops: int | None
    serving_accuracy: float
    history: ProfileHistory

    def crops_of(self, curve: FamilyCurve) -> int | None:
        """Returns the crops behind each accuracy of a curve; None trusts them."""
        return self.validation_crops if curve.validation_crops is None else curve.validation_crops

    def crops_seen(self, config: RetrainConfig) -> int:
        """Returns the number of crops that γ sees."""
        return config.epochs * crops_used(config, self.training_crops)

    def gpu_s(self, config: RetrainConfig) -> float:
        """Returns the GPU-seconds of γ."""
        curve = self.measured[family_of(config)]
        scale = crops_used(config, self.training_crops) / curve.subset_crops
        fixed = curve.fixed_prepare_gpu_s + config.epochs * curve.fixed_epoch_gpu_s
        return fixed + scale * (curve.prepare_gpu_s + config.epochs * curve.epoch_gpu_s)

    def training_part(self, config: RetrainConfig) -> float:
        """Returns the part of γ's GPU-seconds that its epochs take; the rest is preparation before them."""
        curve, gpu_s = self.measured[family_of(config)], self.gpu_s(config)
        scale = crops_used(config, self.training_crops) / curve.subset_crops
        prepared = curve.fixed_prepare_gpu_s + scale * curve.prepare_gpu_s
        return 1.0 - prepared / gpu_s if gpu_s > 0.0 else 0.0

    @property
    def learnt(self) -> dict[Family, FamilyCurve]:
        """The curves that hold accuracies, and not only times."""
        return {family: curve for family, curve in self.measured.items() if curve.accuracies}

    def expected_error(self, config: RetrainConfig) -> float:
        """Returns the error that γ usually leaves on these labels, as a part of the level."""
        objects = objects_shown(self.measured.values())
        data = config.data_fraction**-DATA_EXPONENT
        epochs = (config.epochs / USUAL_EPOCHS) ** -EPOCHS_EXPONENT
        depth = DEPTH_EXPONENT + DEPTH_GROWTH * math.log(max(objects, USUAL_OBJECTS) / USUAL_OBJECTS)
        return float(data * epochs * (1.0 + config.trainable_blocks) ** -depth)


def estimate_as_in_the_paper(question: WindowMeasurements) -> Iterator[RetrainOption]:
    """Yields estimates by Optimus' curve through each family's points, and nothing else."""
    fitted = {
        family: fit_optimus(_work_of(curve), curve.accuracies) for family, curve in question.learnt.items()
    }
    for config in question.configs:
        if family_of(config) in fitted:
            accuracy = fitted[family_of(config)].accuracy_at(question.crops_seen(config))
            yield RetrainOption(config, accuracy, question.gpu_s(config))


def iterate_estimates(question: WindowMeasurements) -> Iterator[RetrainOption]:
    """Yields estimates by the level of all families, the expectation for γ, and each family's own curve.

    The formula is in the module's docstring.
    """
    fitted = {
        family: fit_mixture(_work_of(curve), curve.accuracies, validation_crops=question.crops_of(curve))
        for family, curve in question.learnt.items()
    }
    level, level_sd = _level(question, fitted)
    variances = {family: _variance(family, curve, question) for family, curve in fitted.items()}
    bias = bias_correction(question.history)
    spread = outcome_sd(question.history, objects_shown(question.measured.values()))
    before = 1.0 - _error_before(question)
    for config in question.configs:
        family, expected = family_of(config), question.expected_error(config)
        own, variance = 0.0, (level_sd * expected) ** 2 + FAMILY_SD**2
        if family in fitted:
            own = FAMILY_SD**2 / (FAMILY_SD**2 + variances[family])
            variance = ((1.0 - own) * level_sd * expected) ** 2 + own * variances[family]
        course = _Course(question, config, level * expected, own, fitted.get(family))
        yield RetrainOption(
            config,
            min(1.0, max(0.0, course.accuracy_after(1.0) + bias.correction_for_family(family))),
            question.gpu_s(config),
            accuracy_sd=math.sqrt(variance + SHAPE_SD**2 + spread**2),
            early_part=course.early_part(before),
        )


@dataclass(frozen=True, slots=True)
class _Course:
    """One γ while it trains: its expected error, and its family's curve with the weight ``own``."""

    question: WindowMeasurements
    config: RetrainConfig
    error: float
    own: float
    curve: LearningCurve | None

    def accuracy_after(self, part: float) -> float:
        """Returns the accuracy after a part of its epochs."""
        accuracy = 1.0 - self.error * float(part**-EPOCHS_EXPONENT)
        if self.curve is not None:
            accuracy += self.own * (_on_its_labels(self.config, self.curve, self.question, part) - accuracy)
        return accuracy

    def early_part(self, before: float) -> float:
        """Returns the mean part of its gain over ``before`` that it has on the way; 0.0 without a gain.

        It has no gain while its features are prepared.
        """
        gain = self.accuracy_after(1.0) - before
        if gain <= 0.0:
            return 0.0
        parts = ((self.accuracy_after(part) - before) / gain for part in ON_THE_WAY)
        return fmean(min(max(part, 0.0), 1.0) for part in parts) * self.question.training_part(self.config)


def objects_shown(curves: Iterable[FamilyCurve]) -> int:
    """Returns the number of independent objects that a window's labels show, as far as curves record it."""
    known = [curve.validation_crops for curve in curves if curve.accuracies]
    return max((crops for crops in known if crops is not None), default=USUAL_OBJECTS)


def outcome_sd(history: ProfileHistory, objects: int = USUAL_OBJECTS) -> float:
    """Returns the standard deviation of estimates for reasons that no curve shows, from those checked.

    Where labels show more objects the next window does, too, and there is less chance in its accuracy.
    """
    misses = [o.gain - o.predicted_gain for o in history.observations if o.predicted_gain is not None]
    seen = sum(miss**2 for miss in misses)
    chance = (OUTCOME_SD**2 - CHANGE_SD**2) * USUAL_OBJECTS / max(objects, USUAL_OBJECTS)
    before = CHANGE_SD**2 + chance
    return math.sqrt((OUTCOME_CHECKS * before + seen) / (OUTCOME_CHECKS + len(misses)))


def _level(question: WindowMeasurements, fitted: Mapping[Family, LearningCurve]) -> tuple[float, float]:
    """Returns the level and its standard deviation: the prior and the curves, weighted by their precision."""
    precision = LEVEL_SD**-2
    total = min(USUAL_LEVEL, LEFT_PART * _error_before(question)) * precision
    for family, curve in fitted.items():
        own = [config for config in question.configs if family_of(config) == family]
        if own:
            levels = [
                (1.0 - _on_its_labels(config, curve, question)) / question.expected_error(config)
                for config in own
            ]
            sd = fmean(
                curve.sd_at(question.crops_seen(config)) / question.expected_error(config) for config in own
            )
            weight = max(sd, LEAST_NOISE) ** -2
            precision += weight
            total += weight * fmean(levels)
    # No γ, not even the worst, may have an error above 1.
    largest = 1.0 / max((question.expected_error(config) for config in question.configs), default=1.0)
    level = min(total / precision, MOST_LEFT * _error_before(question), largest)
    return max(level, 0.0), precision**-0.5


def _error_before(question: WindowMeasurements) -> float:
    """Returns the error of the model that serves, on the most labels that any curve was measured on."""
    measured = [(question.crops_of(curve), curve.accuracies[0]) for curve in question.learnt.values()]
    trusted = [(math.inf if crops is None else crops, accuracy) for crops, accuracy in measured]
    return 1.0 - max(trusted, default=(0, question.serving_accuracy))[1]


def _variance(family: Family, curve: LearningCurve, question: WindowMeasurements) -> float:
    """Returns the variance of a family's curve at the furthest point that its γ need.

    It is one value for all its γ, so that more work never promises less.
    """
    own = [question.crops_seen(config) for config in question.configs if family_of(config) == family]
    return max((curve.sd_at(work) for work in own), default=0.0) ** 2


def _on_its_labels(
    config: RetrainConfig, curve: LearningCurve, question: WindowMeasurements, part: float = 1.0
) -> float:
    """Returns the accuracy of a family's curve at the crops that γ has seen after ``part`` of its epochs.

    The error is scaled to γ's part of the labels.
    """
    error = 1.0 - curve.accuracy_at(part * question.crops_seen(config))
    return max(0.0, 1.0 - error * float(config.data_fraction**-DATA_EXPONENT))


def _work_of(curve: FamilyCurve) -> list[float]:
    return [float(epoch * curve.subset_crops) for epoch in range(len(curve.accuracies))]


def crops_used(config: RetrainConfig, training_crops: int) -> int:
    """Returns the crops in one epoch of γ: its part of the training labels, at least one."""
    return max(1, round(config.data_fraction * training_crops))


def served_after(
    option: RetrainOption, serving: float, history: ProfileHistory, objects: int = USUAL_OBJECTS
) -> float:
    """Returns the expected accuracy of what serves after a retraining, since worse weights never serve.

    So a γ that is likely to gain nothing, but may gain much, is worth its GPU time. This is the mean of
    max(serving, X) for a normal X. Its standard deviation leaves out what only the next window's objects
    will show: no validation sees it.

    Args:
        option: a γ, as estimated.
        serving: accuracy of what serves now.
        history: of past windows.
        objects: number that the labels showed when the option was estimated.
    """
    sd = math.sqrt(max(option.accuracy_sd**2 - outcome_sd(history, objects) ** 2, 0.0))
    if sd == 0.0:
        return option.accuracy_after
    above = NormalDist(serving, sd).cdf(option.accuracy_after)
    at = sd**2 * NormalDist(serving, sd).pdf(option.accuracy_after)
    return min(1.0, serving + (option.accuracy_after - serving) * above + at)


def reestimated_accuracy(
    config: RetrainConfig, promised: float, accuracies: Sequence[float], validation_crops: int | None = None
) -> float:
    """Returns the expected accuracy of a running retraining, from its epochs so far (paper §5).

    With d of E epochs done, it is d/E of the prediction for epoch E by the curve through the epochs so far,
    and 1 − d/E of what was promised: at first the profile is the better source, at the end the retraining
    itself. It is never below the best epoch so far, because the best epoch serves.

    Args:
        config: γ.
        promised: accuracy by its profile.
        accuracies: validation accuracy after each epoch so far, at least one.
        validation_crops: crops behind each accuracy; None trusts them.

    Raises:
        ValueError: more epochs than γ has, or accuracies that ``fit_mixture`` does not take.
    """
    done, total = len(accuracies), config.epochs
    if done > total:
        raise ValueError(f"{done} epochs are done, but γ has {total}")
    curve = fit_mixture(range(1, done + 1), accuracies, validation_crops=validation_crops)
    known = done / total
    return max(known * curve.accuracy_at(total) + (1.0 - known) * promised, *accuracies)
