"""Learns from past retrainings how much of a model's errors the next one leaves.

A retraining whose γ has the part p (``error_part``) of the error that γ usually leave is expected to leave

    p · min(L, κ · error of the model that serves)

of errors: where that model is poor, what the labels can teach (L), and where it is good, only a part of its
errors (κ). How far labels teach differs from fleet to fleet: on some streets any model gets to L = 0.25, on
others a dozen objects take off a fifth of the errors, wherever they begin. So L and κ are learnt: each pair
is a hypothesis, which the outcomes of all streams make more or less likely. Beside these a family of γ, and
a stream with it, may leave a multiple of that error: the posterior mean of a normal slope, which is 1 while
nothing is known.

An outcome is the accuracy before and after on the same labels (``Observation``). First these are the
retraining's own validation labels, of which its best epoch was chosen, and so a little too good; when the
next labels come, on which old and new weights are compared, they take their place.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from ekya.core.configs import RetrainConfig
from ekya.core.profile import Family, family_of
from ekya.core.units import StreamId
from ekya.planning.profiling.history import Observation, ProfileHistory

REACHED = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0)
"""Hypotheses of L."""

LEFT = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Hypotheses of κ."""

USUALLY_REACHED, USUALLY_LEFT = 0.3, 0.8
"""The likeliest L and κ before anything is known."""

REACHED_SPREAD, LEFT_SD = 0.5, 0.1
"""Standard deviations before anything is known: of the logarithm of L, and of κ."""

FAMILY_SD, STREAM_SD = 0.2, 0.1
"""Standard deviations of the multiple of a family in a fleet, and of a stream beside it, around 1."""

NOISE_OF_ONE = 0.3
"""Variance of an accuracy that is measured on one label: that of an answer that is right in four of five, and
about as much because labels of one object are alike."""

DATA_EXPONENT = 0.35
"""Exponent of the error in the number of labels: error ~ labels^-0.35, as learning curves of deep networks
do at their steepest."""

EPOCHS_EXPONENT = 0.1
"""Exponent of the error in epochs between 4 and 16, measured on streets that no reported figure uses."""

DEPTH_EXPONENT = 0.15
"""Exponent of the error in 1 + trained blocks."""

USUAL_EPOCHS = 16
"""Epochs of a γ that trains the head on all labels, for which ``error_part`` is 1."""


def error_part(config: RetrainConfig) -> float:
    """Returns the error that γ usually leaves, as a part of what the head alone leaves of all labels."""
    data = config.data_fraction**-DATA_EXPONENT
    epochs = (config.epochs / USUAL_EPOCHS) ** -EPOCHS_EXPONENT
    return float(data * epochs * (1.0 + config.trainable_blocks) ** -DEPTH_EXPONENT)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was learnt from the outcomes of retrainings.

    Attributes:
        hypotheses: L, κ and how likely they are; the likelihoods add up to 1.
        of_family: multiples of families, of the whole fleet.
        of_stream: multiples of streams beside these.
    """

    hypotheses: tuple[tuple[float, float, float], ...]
    of_family: Mapping[Family, float]
    of_stream: Mapping[tuple[StreamId, Family], float]

    def expected_error(self, stream: StreamId, family: Family, serving: float) -> float:
        """Returns the error that a family's usual γ is expected to leave.

        Args:
            stream: the stream.
            family: of γ.
            serving: accuracy of the model that serves.
        """
        left = _expect_left(self.hypotheses, 1.0 - serving)
        return left * self.of_family.get(family, 1.0) * self.of_stream.get((stream, family), 1.0)


def _expect_left(hypotheses: Iterable[tuple[float, float, float]], error: float) -> float:
    """Returns the error that is expected to be left, of γ whose part is 1."""
    return sum(min(reached, part * error) * weight for reached, part, weight in hypotheses)


def learn_outcomes(histories: Mapping[StreamId, ProfileHistory]) -> Outcomes:
    """Returns what the retrainings of all streams have shown."""
    seen = [
        (stream, one, error_part(one.config))
        for stream, history in histories.items()
        for one in history.observations
        if one.before is not None
    ]
    hypotheses = _weighed([(one, part) for _, one, part in seen])
    expected = [part * _expect_left(hypotheses, 1.0 - (one.before or 0.0)) for _, one, part in seen]
    families = {family_of(one.config) for _, one, _ in seen}
    rows = list(zip(seen, expected, strict=True))
    of_family = {
        family: _slope(
            ((error, one) for (_, one, _), error in rows if family_of(one.config) == family), FAMILY_SD
        )
        for family in families
    }
    by_stream: dict[tuple[StreamId, Family], list[tuple[float, Observation]]] = {}
    for (stream, one, _), error in rows:
        family = family_of(one.config)
        by_stream.setdefault((stream, family), []).append((error * of_family[family], one))
    return Outcomes(hypotheses, of_family, {key: _slope(own, STREAM_SD) for key, own in by_stream.items()})


def _weighed(seen: Iterable[tuple[Observation, float]]) -> tuple[tuple[float, float, float], ...]:
    """Returns the hypotheses with how likely they are after what was seen."""
    logs = {
        (reached, left): -0.5 * (math.log(reached / USUALLY_REACHED) / REACHED_SPREAD) ** 2
        - 0.5 * ((left - USUALLY_LEFT) / LEFT_SD) ** 2
        for reached, left in product(REACHED, LEFT)
    }
    for one, part in seen:
        before, after = 1.0 - (one.before or 0.0), 1.0 - (one.before or 0.0) - one.gain
        precision = max(one.validation_crops, 1) / NOISE_OF_ONE
        for reached, left in logs:
            logs[reached, left] -= 0.5 * precision * (after - part * min(reached, left * before)) ** 2
    most = max(logs.values())
    weights = {key: math.exp(log - most) for key, log in logs.items()}
    total = sum(weights.values())
    return tuple((*key, weight / total) for key, weight in weights.items())


def _slope(seen: Iterable[tuple[float, Observation]], sd: float) -> float:
    """Returns the multiple of expected errors that was seen, with 1 as its mean before."""
    total, weight = sd**-2, sd**-2
    for expected, one in seen:
        precision = max(one.validation_crops, 1) / NOISE_OF_ONE
        total += precision * expected * (1.0 - (one.before or 0.0) - one.gain)
        weight += precision * expected**2
    return total / weight
