"""Outcomes of the retrainings of past windows, beside what was expected of them.

Two effects are learnt for each family of γ: one of the whole fleet, and one of each stream beside it. Each is
a mean of what was missed, weighted by how well it was measured, and shrunk towards none while there is little
of it: the posterior mean of a normal effect under normal noise. So a camera without a retraining has what the
others have shown, and one lucky retraining changes little. An accuracy is measured on a few validation
labels, which is where most of its noise comes from.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ekya.core.profile import Family, family_of
from ekya.core.units import StreamId
from ekya.planning.profiling.history import Observation, ProfileHistory

FLEET_SD, STREAM_SD = 0.08, 0.06
"""Standard deviation of a family's effect on accuracy before anything is known: in a fleet, and on one stream
of it."""

NOISE_OF_ONE = 0.3
"""Variance of an accuracy that is measured on one validation label: that of an answer that is right in four
of five, and about as much because labels of one object are alike."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What past retrainings say of the estimates of a family's γ on a stream.

    Attributes:
        gain: to be added to the expected accuracy.
        gain_sd: standard deviation that is left.
    """

    gain: float
    gain_sd: float


@dataclass(frozen=True, slots=True)
class _Effect:
    """A mean so far: the weighted sum of what was missed, and the sum of the weights."""

    total: float = 0.0
    weight: float = 0.0

    def add_missed(self, missed: float, weight: float) -> "_Effect":
        return _Effect(self.total + weight * missed, self.weight + weight)

    def shrunk_mean(self, sd: float) -> float:
        return self.total / (self.weight + sd**-2)

    def variance_left(self, sd: float) -> float:
        return 1.0 / (self.weight + sd**-2)


NOTHING_YET = _Effect()


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Effects that were learnt from the outcomes of retrainings.

    Attributes:
        of_family: on accuracy, of the whole fleet.
        of_stream: on accuracy, of a stream beside the fleet's.
    """

    of_family: Mapping[Family, _Effect]
    of_stream: Mapping[tuple[StreamId, Family], _Effect]

    def correction_for(self, stream: StreamId, family: Family) -> Correction:
        """Returns the correction of a family's estimates on a stream."""
        fleet = self.of_family.get(family, NOTHING_YET)
        own = self.of_stream.get((stream, family), NOTHING_YET)
        variance = fleet.variance_left(FLEET_SD) + own.variance_left(STREAM_SD)
        return Correction(
            fleet.shrunk_mean(FLEET_SD) + own.shrunk_mean(STREAM_SD),
            math.sqrt(variance),
        )


def learn_outcomes(histories: Mapping[StreamId, ProfileHistory]) -> Outcomes:
    """Returns what the retrainings of all streams have shown."""
    of_family: dict[Family, _Effect] = {}
    of_stream: dict[tuple[StreamId, Family], _Effect] = {}
    checked = [(stream, one) for stream, history in histories.items() for one in _checked(history)]
    for _, one in checked:
        family = family_of(one.config)
        of_family[family] = of_family.get(family, NOTHING_YET).add_missed(*_missed(one))
    for stream, one in checked:
        key = stream, family_of(one.config)
        missed, weight = _missed(one)
        rest = missed - of_family[key[1]].shrunk_mean(FLEET_SD)
        of_stream[key] = of_stream.get(key, NOTHING_YET).add_missed(rest, weight)
    return Outcomes(of_family, of_stream)


def _checked(history: ProfileHistory) -> Iterable[Observation]:
    return (one for one in history.observations if one.predicted_gain is not None)


def _missed(one: Observation) -> tuple[float, float]:
    """Returns by how much a gain was off, and the weight of that."""
    return one.gain - (one.predicted_gain or 0.0), max(one.validation_crops, 1) / NOISE_OF_ONE
