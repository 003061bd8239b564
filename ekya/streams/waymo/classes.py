"""Maps a fleet's class names to Waymo's four types of objects."""

from collections.abc import Mapping, Sequence

from ekya.core.classes import BACKGROUND
from ekya.errors import UserError

VEHICLE, PEDESTRIAN, SIGN, CYCLIST = 1, 2, 3, 4

NAMES: Mapping[str, int] = {
    "vehicle": VEHICLE,
    "car": VEHICLE,
    "pedestrian": PEDESTRIAN,
    "person": PEDESTRIAN,
    "cyclist": CYCLIST,
    "bicycle": CYCLIST,
    "sign": SIGN,
}
"""The data set's names, and those that other sources and golden models use for the same objects.

The data set does not distinguish vehicles: trucks and motorcycles are vehicles too, but most are cars. A
cyclist's box holds the bicycle and the rider.
"""

CLASSES = ("vehicle", "pedestrian", "cyclist", "sign")
"""Default classes of a fleet."""


def class_of_type(classes: Sequence[str]) -> Mapping[int, int]:
    """Returns the index into the fleet's classes by the data set's type number; other types are left out.

    Raises:
        UserError: the data set does not have a class, or two classes are the same type.
    """
    found: dict[int, int] = {}
    for index, name in enumerate(classes):
        if name == BACKGROUND:
            continue
        if name not in NAMES:
            raise UserError(
                f"key 'classes': the Waymo Open Dataset does not know '{name}'; its classes are "
                f"{', '.join(NAMES)}."
            )
        earlier = found.setdefault(NAMES[name], index)
        if earlier != index:
            raise UserError(
                f"key 'classes': '{classes[earlier]}' and '{name}' are the same in the Waymo Open Dataset; "
                "keep one of them."
            )
    return found
