"""Results of γ in past windows: what they say of a lasting bias of estimates, and of the next gain."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of

MEMORY_WINDOWS = 6
"""Number of latest windows whose observations are kept, since scenes change."""

SHRINK = 3.0
"""Checks of estimates at which half of their median is believed."""

USUAL_LOSS, LOSS_CHECKS = 0.1, 2.0
"""Accuracy that a model loses in a window before anything is known of its scene, and the weight of this."""

UNSEEN_ERROR, UNSEEN_CHECKS = 0.5, 1.0
"""Error that a model may have before any of its fleet is measured, and the weight of this in models: the
first labels tell whether any more are worth it."""

USUAL_PART, PART_CHECKS = 0.4, 0.4
"""Part of a model's error that a retraining removes, before any is checked, and the weight of this in errors,
as of two models that get eight of ten right."""

DRIFT_LOSS = 0.3
"""Accuracy that a model loses at least where a drift was noticed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One γ in one past window.

    Attributes:
        window: index of the window.
        config: γ.
        gain: accuracy after minus before: measured where it was retrained, else as profiled.
        gpu_s: GPU-seconds at 100% of one GPU that it took, or was profiled to take.
        predicted_gain: prediction of the micro-profile, where the gain was measured; else None.
        elsewhere: it was retrained on other servers, so its GPU-seconds were not spent here.
    """

    window: int
    config: RetrainConfig
    gain: float
    gpu_s: float
    predicted_gain: float | None = None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class LabelledWindow:
    """Measurements of the model that served, by a window's labels.

    Attributes:
        window: index of the window.
        accuracy: of the model on these labels.
        loss: what it had lost since it was measured before; None without an earlier measurement.
        gain: what the last retraining has gained over the weights before it; 0 without one.
    """

    window: int
    accuracy: float
    loss: float | None
    gain: float


@dataclass(frozen=True, slots=True)
class ProfileHistory:
    """Past observations of one stream, or of several that share them.

    Attributes:
        observations: in the order in which they came.
        labelled: newest windows in which it was labelled, in order.
    """

    observations: tuple[Observation, ...] = ()
    labelled: tuple[LabelledWindow, ...] = ()

    def with_observation(self, observation: Observation) -> "ProfileHistory":
        """Returns this history with one more observation, and without those that are too old.

        It replaces an earlier one of the same γ and window: what was measured replaces what was profiled.
        """
        same = (observation.window, observation.config)
        kept = (*(o for o in self.observations if (o.window, o.config) != same), observation)
        newest = max(o.window for o in kept)
        return replace(self, observations=tuple(o for o in kept if o.window > newest - MEMORY_WINDOWS))

    def with_labels(self, labelled: LabelledWindow) -> "ProfileHistory":
        """Returns this history with the labels of one more window."""
        return replace(self, labelled=(*self.labelled, labelled)[-MEMORY_WINDOWS:])

    def gained_in(self, window: int) -> float:
        """Returns the largest gain of the retrainings of a window, by their own validation; 0 without one."""
        return max(
            (o.gain for o in self.observations if o.window == window and o.predicted_gain is not None),
            default=0.0,
        )


@dataclass(frozen=True, slots=True)
class BiasCorrection:
    """Corrections of estimates, from those that could be checked.

    Attributes:
        overall: correction of the accuracy after retraining for a family without a history.
        by_family: correction of families that have one.
    """

    overall: float
    by_family: Mapping[Family, float]

    def correction_for_family(self, family: Family) -> float:
        """Returns the correction to be added to an estimated accuracy of this family."""
        return self.by_family.get(family, self.overall)


def bias_correction(history: ProfileHistory) -> BiasCorrection:
    """Returns the median of achieved minus predicted gain, shrunk while there are few checks.

    Over all families the median of n checks is multiplied by n / (n + SHRINK). A family's own median of m
    checks then moves it by m / (m + SHRINK) of the way. So one lucky retraining changes little.
    """
    by_family: dict[Family, list[float]] = {}
    for o in history.observations:
        if o.predicted_gain is not None:
            by_family.setdefault(family_of(o.config), []).append(o.gain - o.predicted_gain)
    every = [error for errors in by_family.values() for error in errors]
    overall = median(every) * len(every) / (len(every) + SHRINK) if every else 0.0
    return BiasCorrection(
        overall,
        {
            family: overall + (median(errors) - overall) * len(errors) / (len(errors) + SHRINK)
            for family, errors in by_family.items()
        },
    )


def unseen_error(histories: Iterable[ProfileHistory]) -> float:
    """Returns the error that a model may have before it is measured, from what its fleet's others had."""
    errors = [1.0 - history.labelled[0].accuracy for history in histories if history.labelled]
    return (UNSEEN_CHECKS * UNSEEN_ERROR + sum(errors)) / (UNSEEN_CHECKS + len(errors))


def expected_gain(
    history: ProfileHistory,
    accuracy: float | None,
    window: int,
    drifted: bool,
    unseen: float = UNSEEN_ERROR,
    passed: float | None = None,
) -> float:
    """Returns what a retraining of a window is expected to gain before the window's labels are made.

    It removes a part of the error that the model is expected to have by now: what it had when it was last
    measured, and what models of this stream lose in each window since then. Both the part and the loss are
    what past windows have shown, mixed with what is usual.

    Args:
        history: of the stream.
        accuracy: of its model when it was last measured; None before that.
        window: index of the window.
        drifted: a drift was noticed since then.
        unseen: error before it is measured.
        passed: windows since it was measured; None for those since the last of ``history``.
    """
    losses = [one.loss for one in history.labelled if one.loss is not None]
    loss = (LOSS_CHECKS * USUAL_LOSS + sum(losses)) / (LOSS_CHECKS + len(losses))
    if passed is None:
        passed = window - history.labelled[-1].window if history.labelled else 1
    lost = max(loss * passed, DRIFT_LOSS if drifted else 0.0)
    checks = [(1.0 - before.accuracy, after.gain) for before, after in pairwise(history.labelled)]
    errors, gains = sum(error for error, _ in checks), sum(max(gain, 0.0) for _, gain in checks)
    part = (PART_CHECKS * USUAL_PART + gains) / (PART_CHECKS + errors)
    error = unseen if accuracy is None else min(1.0 - accuracy + lost, 1.0)
    return min(part, 1.0) * error
