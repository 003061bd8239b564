"""How a recording is played: faster or slower, once or again and again."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, Field

from ekya.core.units import US_PER_S
from ekya.errors import UserError
from ekya.streams.frame import Frame, LiveSource, StreamSource, Truth
from ekya.streams.sources import AnySource


class PlayConfig(BaseModel):
    """What a fleet file says about playing a stream's recording.

    Attributes:
        speed: stream seconds a second of the run; a video of 25 frames a second at speed 2 gives 50.
        loop: begin again where it ends. Only the first pass is scored: what follows has been seen before.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    speed: float = Field(default=1.0, gt=0)
    loop: bool = False


class PlayedSpec(BaseModel):
    """A source together with how it is played; it is a ``SourceSpec`` itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: AnySource
    play: PlayConfig

    @property
    def gives_truth(self) -> bool:
        """As the source."""
        return self.source.gives_truth

    @property
    def live(self) -> bool:
        """As the source."""
        return self.source.live

    def open(self, classes: tuple[str, ...]) -> StreamSource:
        """The source, opened.

        Raises:
            UserError: as of the source; or it is live, and cannot be played.
        """
        source = self.source.open(classes)
        if isinstance(source, LiveSource):
            raise UserError("key 'play': a live camera gives its frames as they happen; remove it")
        return PlayedSource(source, self.play)


@dataclass(eq=False)
class PlayedSource:
    """The frames of another source at another pace, and in another pass without their truth."""

    source: StreamSource
    play: PlayConfig
    _damaged_before: int = field(default=0, init=False)

    @property
    def fps(self) -> float:
        """Frames a second of the run."""
        return self.source.fps * self.play.speed

    @property
    def damaged(self) -> int:
        """Frames that could not be decoded, in all passes."""
        return self._damaged_before + self.source.damaged

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """All frames, of all passes; a recording without any ends at once."""
        self._damaged_before = 0
        index = begins_us = ends_us = 0
        first_pass = True
        while True:
            for frame, truth in self.source.frames():
                t_us = begins_us + frame.t_us
                ends_us = t_us + round(US_PER_S / self.source.fps)
                played = replace(frame, index=index, t_us=round(t_us / self.play.speed))
                yield played, truth if first_pass else None
                index += 1
            if not self.play.loop or ends_us == begins_us:
                return
            self._damaged_before += self.source.damaged
            begins_us, first_pass = ends_us, False
