"""Schedulers by name."""

from collections.abc import Callable
from types import MappingProxyType

from ekya.errors import UserError
from ekya.scheduling.no_retrain import NoRetrain
from ekya.scheduling.protocol import Scheduler, SchedulerOptions
from ekya.scheduling.serial import Serial
from ekya.scheduling.thief import Thief
from ekya.scheduling.uniform import Uniform

SCHEDULERS: MappingProxyType[str, Callable[[SchedulerOptions], Scheduler]] = MappingProxyType(
    {
        "serial": lambda _options: Serial(),
        "thief": lambda _options: Thief(),
        "uniform": lambda options: Uniform(options.inference_part_milli, options.fixed_gamma),
        "no-retrain": lambda _options: NoRetrain(),
    }
)
"""Every scheduler that a fleet file can name, and how it is made."""


def make_scheduler(name: str, options: SchedulerOptions | None = None) -> Scheduler:
    """The scheduler of that name.

    Raises:
        UserError: there is none.
    """
    make = SCHEDULERS.get(name)
    if make is None:
        raise UserError(f"scheduler: there is no {name!r}; choose one of {', '.join(sorted(SCHEDULERS))}")
    return make(options or SchedulerOptions())
