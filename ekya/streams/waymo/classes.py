"""What Waymo's four kinds of objects are called in a fleet."""

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
"""The data set's own names, and those by which the other sources and golden models know the same things.

It does not tell vehicles apart: a truck or a motorcycle is a vehicle as a car is, and most are cars. A
cyclist's box holds the bicycle and who rides it.
"""

CLASSES = ("vehicle", "pedestrian", "cyclist", "sign")
"""The fleet's classes unless somebody asks for others."""


def class_of_type(classes: Sequence[str]) -> Mapping[int, int]:
    """Index into the fleet's classes by the data set's number of a type; other types are left out.

    Raises:
        UserError: a class that the data set does not know, or two for the same.
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
