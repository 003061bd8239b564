"""``--fail`` of the fleet commands: who fails, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

from ekya.core.errors import UserError
from ekya.core.units import seconds_to_us


@dataclass(frozen=True, slots=True)
class Failing:
    """A server or node that fails at ``from_us`` and is back at ``to_us``; None: never."""

    name: str
    from_us: int
    to_us: int | None


def read_failing(words: Sequence[str], what: str, returns: bool) -> tuple[Failing, ...]:
    """Parses ``--fail``: NAME@SECONDS, or NAME@FROM:TO.

    Args:
        words: one for each.
        what: stands for the name in error messages.
        returns: NAME@FROM:TO is allowed.

    Raises:
        UserError: a value has another form.
    """
    failing = []
    for word in words:
        name, _, times = word.rpartition("@")
        try:
            from_us, *ends_us = (seconds_to_us(float(part)) for part in times.split(":"))
        except (ValueError, OverflowError):
            from_us, ends_us = -1, []
        to_us = ends_us[0] if ends_us else None
        is_span = to_us is None or (returns and len(ends_us) == 1 and from_us < to_us)
        if not name or from_us < 0 or not is_span:
            raise UserError(
                f"--fail {word}: write {what}@SECONDS" + (f", or {what}@FROM:TO" if returns else "")
            )
        failing.append(Failing(name, from_us, to_us))
    return tuple(failing)
