"""Playback of a recording: speed, loop and a script, by which a camera joins or is lost, or light changes.

Times of a script are stream seconds since the run began, for every stream: at speed 2 an event at 30 s comes
15 s into the run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import CameraOutage, Frame, LiveSource, RecordedSource, StreamSource, Truth
from ekya.streams.sources import AnySource


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Joins(_Event):
    """A camera joins: the stream is added at ``at_s``, and its recording begins then.

    Attributes:
        at_s: when it begins, in stream seconds since the run began.
    """

    event: Literal["joins"] = "joins"
    at_s: float = Field(gt=0)


class Lost(_Event):
    """The camera is lost for ``for_s``. The recording goes on: its frames of that time are never shown.

    Attributes:
        at_s: when it begins, in stream seconds since the run began.
        for_s: how long it lasts, in stream seconds.
    """

    event: Literal["lost"] = "lost"
    at_s: float = Field(ge=0)
    for_s: float = Field(gt=0)


class Night(_Event):
    """Pictures are darkened for ``for_s`` and get sensor noise. Their truth does not change.

    Attributes:
        at_s: when it begins, in stream seconds since the run began.
        for_s: how long it lasts, in stream seconds.
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

    def darken_picture(self, image: NDArray[np.uint8], position: int) -> NDArray[np.uint8]:
        """Returns the darkened picture.

        Args:
            image: (H, W, 3) uint8, which is not changed.
            position: number of the frame in the recording, which seeds its noise.
        """
        # Seeded by the frame, so that it looks the same when a new process reads the recording again.
        rng = np.random.default_rng((self.seed, position))
        grain = rng.standard_normal(image.shape, np.float32) * self.noise
        return np.clip(np.rint(image * np.float32(self.brightness) + grain), 0, 255).astype(np.uint8)


class Burst(_Event):
    """The recording runs ``factor`` times as fast for ``for_s``: frames and objects increase as much.

    Attributes:
        at_s: when it begins, in stream seconds since the run began.
        for_s: how long it lasts, in stream seconds.
        factor: how many times as fast.
    """

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


def find_problems(script: Script) -> Iterator[str]:
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


def lasting_events(script: Script, kind: type[Lasting]) -> list[Lasting]:
    """Returns the events of one kind, sorted by time."""
    return sorted((event for event in script if isinstance(event, kind)), key=lambda event: event.at_s)


def join_time_us(script: Script) -> int:
    """Returns the script time at which the stream joins, microseconds; 0 if it has no such event."""
    return max((_us(event.at_s) for event in script if isinstance(event, Joins)), default=0)


def script_time_us(script: Script, recording_us: int) -> float:
    """Returns the script time, microseconds, at which a moment of the recording is shown; monotonic.

    Args:
        script: script of the stream.
        recording_us: time since the recording's first frame.
    """
    at_us, left_us = float(join_time_us(script)), float(recording_us)
    for burst in lasting_events(script, Burst):
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


def event_during(events: Sequence[Lasting], t_us: float) -> Lasting | None:
    """Returns the event, of events of one kind, that is in progress at this script time."""
    for event in events:
        if _us(event.at_s) <= t_us < _us(event.at_s + event.for_s):
            return event
    return None


def _us(t_s: float) -> int:
    return round(t_s * US_PER_S)


class PlayConfig(BaseModel):
    """Playback settings of a stream's recording in a fleet file.

    Attributes:
        speed: stream seconds per second of the run; a video of 25 frames a second gives 50 at speed 2.
        loop: restart the recording at its end. Only the first pass is scored: later frames were seen before.
        script: events that happen to the stream, in stream seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    speed: float = Field(default=1.0, gt=0)
    loop: bool = False
    script: Script = ()

    @field_validator("script")
    @classmethod
    def _fits_together(cls, script: Script) -> Script:
        for problem in find_problems(script):
            raise ValueError(problem)
        return script

    @property
    def joins_us(self) -> int:
        """Run time at which the stream joins, microseconds."""
        return self.to_run_us(join_time_us(self.script))

    @property
    def outages_us(self) -> tuple[tuple[int, int], ...]:
        """Beginning and end of each loss of the camera, microseconds of run time, in order."""
        return tuple(self.outage_us(lost) for lost in lasting_events(self.script, Lost))

    def outage_us(self, lost: Lost) -> tuple[int, int]:
        """Returns beginning and end of a loss, microseconds of run time."""
        return self.to_run_us(lost.at_s * US_PER_S), self.to_run_us((lost.at_s + lost.for_s) * US_PER_S)

    def to_run_us(self, script_us: float) -> int:
        """Converts script time to run time, microseconds."""
        return round(script_us / self.speed)

    def length_of(self, recorded_s: float) -> float | None:
        """Returns the run time that a recording of this length takes, seconds; None if it is looped."""
        return None if self.loop else recorded_s / self.speed

    def problems_after(self, end_s: float) -> Iterator[str]:
        """Yields a sentence, with its remedy, for each event that comes after a run of ``end_s`` seconds.

        ``Lost`` events are exempt: a recorded camera's script lists its gaps, and a run may end before one.
        """
        for event in self.script:
            if event.at_s / self.speed >= end_s and not isinstance(event, Lost):
                yield (
                    f"{event.event} at {event.at_s:g} s comes {event.at_s / self.speed:g} s into the run, "
                    f"which ends at {end_s:g} s; let it come earlier, or run more windows"
                )

    def to_score(self) -> "PlayConfig":
        """Returns the settings for scoring: first pass only, by day, as nights do not change the truth."""
        by_day = tuple(event for event in self.script if not isinstance(event, Night))
        return self.model_copy(update={"loop": False, "script": by_day})

    def to_label(self) -> "PlayConfig":
        """Returns ``to_score`` without losses of the camera: labels made ahead cover all frames."""
        scored = self.to_score()
        unbroken = tuple(event for event in scored.script if not isinstance(event, Lost))
        return scored.model_copy(update={"script": unbroken})


class PlayedSpec(BaseModel):
    """A source with its playback settings; itself a ``SourceSpec``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: AnySource
    play: PlayConfig

    @property
    def gives_truth(self) -> bool:
        """Same as of the source."""
        return self.source.gives_truth

    @property
    def live(self) -> bool:
        """Same as of the source."""
        return self.source.live

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """Opens the source for playback.

        Raises:
            UserError: the source raised it, or is live, which cannot be played.
        """
        source = self.source.open(classes)
        if isinstance(source, LiveSource):
            raise UserError("key 'play': a live camera gives its frames as they happen; remove it")
        return PlayedSource(source, self.play)


@dataclass(eq=False)
class PlayedSource:
    """Plays the frames of another source; passes after the first have no truth.

    Frames during a loss of the camera do not arrive and have no index.
    """

    source: StreamSource
    play: PlayConfig
    _damaged_before: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of run time, outside bursts."""
        return self.source.fps * self.play.speed

    @property
    def length_s(self) -> float | None:
        """Run time of the recording, seconds; None if it is not known, or looped."""
        length_s = self.source.length_s if isinstance(self.source, RecordedSource) else None
        return None if length_s is None else self.play.length_of(length_s)

    @property
    def damaged(self) -> int:
        """Number of frames that could not be decoded, over all passes."""
        return self._damaged_before + self.source.damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that arrive, of all passes; a recording without frames ends immediately."""
        return (seen for seen in self.frames_and_outages() if not isinstance(seen, CameraOutage))

    def frames_and_outages(self) -> Iterator[tuple[Frame, Truth | None] | CameraOutage]:
        """Yields all frames that arrive, and an ``Outage`` in place of the first frame that a loss drops."""
        script = self.play.script
        outages, nights = lasting_events(script, Lost), lasting_events(script, Night)
        self._damaged_before = 0
        index = position = begins_us = ends_us = 0
        first_pass = True
        announced: Lost | None = None
        while True:
            for frame, truth in self.source.frames():
                recording_us = begins_us + frame.t_us
                # The last frame is shown for a whole period before the next pass begins.
                ends_us = recording_us + round(US_PER_S / self.source.fps)
                script_us = script_time_us(script, recording_us)
                position += 1
                lost = event_during(outages, script_us)
                if lost is not None and lost != announced:
                    announced = lost
                    yield CameraOutage(*self.play.outage_us(lost), LOST_BY_SCRIPT)
                if lost is not None:
                    continue
                night = event_during(nights, script_us)
                image = frame.image if night is None else night.darken_picture(frame.image, position)
                played = replace(frame, index=index, t_us=self.play.to_run_us(script_us), image=image)
                yield played, truth if first_pass else None
                index += 1
            # A pass without frames would be repeated for ever.
            if not self.play.loop or ends_us == begins_us:
                return
            self._damaged_before += self.source.damaged
            begins_us, first_pass = ends_us, False
