"""Checks the fleet's classes against those of a data set."""

from collections.abc import Mapping, Sequence

from ekya.core.classes import BACKGROUND
from ekya.errors import UserError


def classes_known(classes: tuple[str, ...], known: Sequence[str], whose: str) -> Mapping[str, int]:
    """Returns the number of each of the fleet's classes that objects of the data set can have.

    Args:
        classes: the fleet's classes.
        known: classes of the data set; the golden models' background class need not be among them.
        whose: beginning of the error message, such as ``Cityscapes has``.

    Raises:
        UserError: the data set does not have one of the classes.
    """
    wanted = {name: number for number, name in enumerate(classes) if name in known or name != BACKGROUND}
    for name in wanted:
        if name not in known:
            raise UserError(
                f"classes: {whose} no {name!r}; remove it, or choose from {', '.join(known) or 'nothing'}"
            )
    return wanted
