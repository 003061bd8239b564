"""Scripted events of a recording's playback: a camera that joins or is lost, a burst, a night.

Times of a script are stream seconds since the run began, for every stream: at speed 2 an event at 30 s comes
15 s into the run.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ekya.core.units import US_PER_S


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Joins(_Event):
    """A camera joins: the stream is added at ``at_s``, and its recording begins then."""

    event: Literal["joins"] = "joins"
    at_s: float = Field(gt=0)


class Lost(_Event):
    """The camera is lost for ``for_s``. The recording goes on: its frames of that time are never shown."""

    event: Literal["lost"] = "lost"
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)


class Night(_Event):
    """Pictures are darkened for ``for_s`` and get sensor noise. Their truth does not change.

    Attributes:
        brightness: part of the light that is left.
        noise: standard deviation of the noise added to each value, on a scale of 255.
        seed: seed of the noise.
    """

    event: Literal["night"] = "night"
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)
    brightness: float = Field(default=0.25, gt=0, lt=1)
    noise: float = Field(default=6.0, ge=0, le=64)
    seed: int = Field(default=0, ge=0)

    def darkened(self, image: NDArray[np.uint8], position: int) -> NDArray[np.uint8]:
        """Returns the darkened picture.

        Args:
            image: (H, W, 3) uint8, which is not changed.
            position: number of the frame in the recording, which seeds its noise.
        """
        rng = np.random.default_rng((self.seed, position))
        grain = rng.standard_normal(image.shape, np.float32) * self.noise
        return np.clip(np.rint(image * np.float32(self.brightness) + grain), 0, 255).astype(np.uint8)


class Burst(_Event):
    """The recording runs ``factor`` times as fast for ``for_s``: frames and objects increase as much."""

    event: Literal["burst"] = "burst"
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)
    factor: float = Field(default=3.0, gt=1, le=100)


Lasting = TypeVar("Lasting", Lost, Night, Burst)
"""Events with a duration."""

AnyEvent = Annotated[Joins | Lost | Night | Burst, Field(discriminator="event")]
"""Events of a script, distinguished by the key ``event``."""

Script = tuple[AnyEvent, ...]

LOST_BY_SCRIPT = "the fleet file's script has it lost"
"""Reason of a loss that a script causes."""


def problems(script: Script) -> Iterator[str]:
    """Yields a sentence for each conflict in a stream's script; each ends with the remedy."""
    joins = [event for event in script if isinstance(event, Joins)]
    if len(joins) > 1:
        yield "a stream joins once; keep one of its joins"
    for event in script:
        if joins and not isinstance(event, Joins) and event.at_s < joins[0].at_s:
            yield (
                f"its {event.event} at {event.at_s:g} s comes before it joins at {joins[0].at_s:g} s; "
                "let it come later"
            )
    for kind in (Lost, Night, Burst):
        events = sorted((event for event in script if isinstance(event, kind)), key=lambda event: event.at_s)
        for first, second in pairwise(events):
            if second.at_s < first.at_s + first.for_s:
                yield (
                    f"{first.event} at {first.at_s:g} s lasts {first.for_s:g} s, and there is another at "
                    f"{second.at_s:g} s; make it one, or let the second begin later"
                )


def lasting(script: Script, kind: type[Lasting]) -> list[Lasting]:
    """Returns the events of one kind, sorted by time."""
    return sorted((event for event in script if isinstance(event, kind)), key=lambda event: event.at_s)


def joins_us(script: Script) -> int:
    """Returns the script time at which the stream joins, microseconds; 0 if it has no such event."""
    return max((_us(event.at_s) for event in script if isinstance(event, Joins)), default=0)


def shown_us(script: Script, recording_us: int) -> float:
    """Returns the script time, microseconds, at which a moment of the recording is shown; monotonic.

    Args:
        script: script of the stream.
        recording_us: time since the recording's first frame.
    """
    at_us, left_us = float(joins_us(script)), float(recording_us)
    for burst in lasting(script, Burst):
        begin_us, long_us = _us(burst.at_s), _us(burst.for_s)
        before_us = begin_us - at_us
        if left_us < before_us:
            break
        left_us -= before_us
        if left_us < long_us * burst.factor:
            return begin_us + left_us / burst.factor
        left_us -= long_us * burst.factor
        at_us = begin_us + long_us
    return at_us + left_us


def during(events: Sequence[Lasting], t_us: float) -> Lasting | None:
    """Returns the event, of events of one kind, that is in progress at this script time."""
    for event in events:
        if _us(event.at_s) <= t_us < _us(event.at_s + event.for_s):
            return event
    return None


def _us(t_s: float) -> int:
    return round(t_s * US_PER_S)
