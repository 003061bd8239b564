"""Decides about the zoo of retrained models: which are tried for a scene, which serve, and which are kept."""

import math
from collections.abc import Sequence

from ekya.core.weights import Compared, KeptModel
from ekya.planning.profiling.pruning import ENOUGH_ACCURACY

MOST_CANDIDATES = 3
"""Number of kept models that a stream tries on its labels; each takes a pass over them."""

SAME_SCENE = 3.0
"""Distance in grey levels up to which pictures show the same scene.

That of two times of ten seconds on a steady rendered street is 2 at most, and that of two streets with the
same view and light 5 at least.
"""

KNOWN_OBJECTS = 8
"""Number of labelled objects whose answers count as much as what was known of a model before."""

LABELS_OF_AN_OBJECT = 4
"""Number of labels that show one object, about: an accuracy on few labels is known from fewer objects."""

OF_ANOTHER_SCENE = 0.5
"""Accuracy that is expected of a model on a scene that it was not retrained on."""

ADOPT_ERRORS = 0.5
"""Standard errors of the expected difference by which kept weights must be better than those that serve."""


def picture_distance(one: Sequence[int], other: Sequence[int]) -> float:
    """Returns the mean difference of two pictures in grey levels; infinite if one is not described."""
    if not one or len(one) != len(other):
        return math.inf
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def nearest_candidates(
    zoo: Sequence[KeptModel], picture: Sequence[int], serving: int | None
) -> tuple[int, ...]:
    """Returns the numbers of the kept models whose scenes are most like a picture, the nearest first.

    Of equally near ones, the most recently used comes first. Empty without a picture.

    Args:
        zoo: kept models, the least recently used first.
        picture: description of what the stream shows.
        serving: number of the kept model that serves already; None for another model.
    """
    near = [
        (picture_distance(model.scene.picture, picture), model.number)
        for model in reversed(zoo)
        if model.number != serving
    ]
    # Stable, and the zoo was walked from its end: of equals the one used last stays first.
    nearest = sorted((one for one in near if math.isfinite(one[0])), key=lambda one: one[0])
    return tuple(number for _, number in nearest[:MOST_CANDIDATES])


def should_try(accuracy: float, since_us: int | None) -> bool:
    """Returns whether candidates are tried: on labels of a drift, or where the serving model is in need."""
    return since_us is not None or accuracy < ENOUGH_ACCURACY


def prior_accuracy(model: KeptModel | None, picture: Sequence[int]) -> float:
    """Returns the accuracy that is expected of a model on a scene before it is tried there.

    Args:
        model: a kept one; None for another, of which nothing is known.
        picture: description of the scene.
    """
    if model is None or picture_distance(model.scene.picture, picture) > SAME_SCENE:
        return OF_ANOTHER_SCENE
    part = min(model.scene.labels / LABELS_OF_AN_OBJECT / KNOWN_OBJECTS, 1.0)
    return part * model.accuracy + (1.0 - part) * OF_ANOTHER_SCENE


def expected_accuracies(compared: Compared, known_new: float, known_old: float) -> Compared:
    """Returns the accuracies that are expected of both models after a comparison, with what was known before.

    The first labels after a drift show a few objects, on which most models get the same right.
    """
    objects = compared.objects + KNOWN_OBJECTS

    def of(measured: float, before: float) -> float:
        return (compared.objects * measured + KNOWN_OBJECTS * before) / objects

    return Compared(of(compared.new, known_new), of(compared.old, known_old), objects)


def why_offered(compared: Compared, expected: Compared) -> str | None:
    """Returns the reason why offered weights replace those that serve; None where they do not.

    They must be expected to be better by ``ADOPT_ERRORS`` of the standard error of the difference, taken as
    that of independent samples.

    Args:
        compared: on the labels.
        expected: with what was known before.
    """
    new, old = expected.new, expected.old
    error = math.sqrt((new * (1 - new) + old * (1 - old)) / expected.objects)
    if new <= old + ADOPT_ERRORS * error:
        return None
    return (
        f"of {compared.objects} labelled objects, kept weights get {compared.new:.1%} right and those that "
        f"serve {compared.old:.1%}; with what is known of them, {new:.1%} and {old:.1%} are expected"
    )


def numbers_to_forget(zoo: Sequence[KeptModel], model: KeptModel, most: int) -> tuple[int, ...]:
    """Returns the numbers of the kept models that make room for a new one.

    These are the earlier ones of its stream and scene, and then the least recently used.

    Args:
        zoo: kept models, the least recently used first.
        model: the new one, which is not among them.
        most: number of models that are kept.
    """
    same = [
        one.number
        for one in zoo
        if one.stream == model.stream
        and picture_distance(one.scene.picture, model.scene.picture) <= SAME_SCENE
    ]
    others = [one.number for one in zoo if one.number not in same]
    return tuple(sorted([*same, *others[: max(len(others) + 1 - most, 0)]]))


def mark_used(zoo: Sequence[KeptModel], number: int) -> tuple[KeptModel, ...]:
    """Returns the zoo with one model as the most recently used."""
    return (
        *(model for model in zoo if model.number != number),
        *(model for model in zoo if model.number == number),
    )
