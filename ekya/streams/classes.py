"""The fleet's classes against those of a data set."""

from collections.abc import Mapping, Sequence

from ekya.core.classes import BACKGROUND
from ekya.errors import UserError


def classes_known(classes: tuple[str, ...], known: Sequence[str], whose: str) -> Mapping[str, int]:
    """Number of each of the fleet's classes that objects of the data set can have.

    Args:
        classes: the fleet's.
        known: those of the data set; it need not know what golden models call background.
        whose: what is said of the data set in an error, such as ``Cityscapes has``.

    Raises:
        UserError: the data set does not know one of them.
    """
    wanted = {name: number for number, name in enumerate(classes) if name in known or name != BACKGROUND}
    for name in wanted:
        if name not in known:
            raise UserError(
                f"classes: {whose} no {name!r}; remove it, or choose from {', '.join(known) or 'nothing'}"
            )
    return wanted
