"""Playback of a recording: speed, loop and scripted events."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ekya.core.errors import UserError
from ekya.core.units import US_PER_S
from ekya.streams.ingest.frame import Frame, LiveSource, Outage, StreamSource, Truth
from ekya.streams.ingest.script import (
    LOST_BY_SCRIPT,
    Lost,
    Night,
    Script,
    during,
    joins_us,
    lasting,
    problems,
    shown_us,
)
from ekya.streams.sources import AnySource


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
        for problem in problems(script):
            raise ValueError(problem)
        return script

    @property
    def joins_us(self) -> int:
        """Run time at which the stream joins, microseconds."""
        return self.run_us(joins_us(self.script))

    @property
    def outages_us(self) -> tuple[tuple[int, int], ...]:
        """Beginning and end of each loss of the camera, microseconds of run time, in order."""
        return tuple(self.outage_us(lost) for lost in lasting(self.script, Lost))

    def outage_us(self, lost: Lost) -> tuple[int, int]:
        """Returns beginning and end of a loss, microseconds of run time."""
        return self.run_us(lost.at_s * US_PER_S), self.run_us((lost.at_s + lost.for_s) * US_PER_S)

    def run_us(self, script_us: float) -> int:
        """Converts script time to run time, microseconds."""
        return round(script_us / self.speed)

    def after(self, end_s: float) -> Iterator[str]:
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
    def damaged(self) -> int:
        """Number of frames that could not be decoded, over all passes."""
        return self._damaged_before + self.source.damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """Yields all frames that arrive, of all passes; a recording without frames ends immediately."""
        return (seen for seen in self.shown() if not isinstance(seen, Outage))

    def shown(self) -> Iterator[tuple[Frame, Truth | None] | Outage]:
        """Yields all frames that arrive, and an ``Outage`` in place of the first frame that a loss drops."""
        script = self.play.script
        outages, nights = lasting(script, Lost), lasting(script, Night)
        self._damaged_before = 0
        index = position = begins_us = ends_us = 0
        first_pass = True
        announced: Lost | None = None
        while True:
            for frame, truth in self.source.frames():
                recording_us = begins_us + frame.t_us
                ends_us = recording_us + round(US_PER_S / self.source.fps)
                script_us = shown_us(script, recording_us)
                position += 1
                lost = during(outages, script_us)
                if lost is not None and lost != announced:
                    announced = lost
                    yield Outage(*self.play.outage_us(lost), LOST_BY_SCRIPT)
                if lost is not None:
                    continue
                night = during(nights, script_us)
                image = frame.image if night is None else night.darkened(frame.image, position)
                played = replace(frame, index=index, t_us=self.play.run_us(script_us), image=image)
                yield played, truth if first_pass else None
                index += 1
            if not self.play.loop or ends_us == begins_us:
                return
            self._damaged_before += self.source.damaged
            begins_us, first_pass = ends_us, False
