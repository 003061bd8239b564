"""A stream's source as inference reads it: it goes on in another process when its own has died."""

import logging
import time
from collections.abc import Iterator
from typing import Self

from ekya.streams.camera import ASSUMED_FPS
from ekya.streams.frame import Frame, Truth
from ekya.streams.process import Arrived, Pace, SourceDiedError, SourceProcess, SourceSpec

_LOG = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 4.0

_DEATHS_ALLOWED, _DEATHS_WITHIN_S = 2, 60.0
"""Of a recording's decoder; at the next one within this time the recording is given up."""


class LiveLook:
    """What a live source shows for a while, as if it were a recording; empty where nothing comes.

    Args:
        spec: of the source.
        look_s: seconds.
    """

    def __init__(self, spec: SourceSpec, look_s: float) -> None:
        self._feed = Feed(spec, ())
        self._look_s = look_s

    def wait_open(self) -> float:
        """As of ``Feed``."""
        return self._feed.wait_open()

    def frames(self) -> Iterator[tuple[Frame, Truth | None]]:
        """The newest frame whenever one is asked for."""
        self._feed.wait_open()
        until_s = time.monotonic() + self._look_s
        self._feed.begin(Pace(time.monotonic_ns()))
        while (left_s := until_s - time.monotonic()) > 0:
            for arrived in self._feed.poll(min(left_s, 1.0)):
                if arrived.frame is not None:
                    yield arrived.frame, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.close()


class Feed:
    """A ``SourceProcess``, and another one at its place when it has died.

    A live source gets another one for as long as the feed is open: a camera is only lost, as when nobody
    answers at its address. A recording whose process dies too often has ended, and so has one that was
    refused: what aborted its decoder does so again.
    """

    def __init__(self, spec: SourceSpec, classes: tuple[str, ...], name: str = "a source") -> None:
        """Start the process and let it open the source; ``name`` is for the log."""
        self._name = name
        self._spec = spec
        self._classes = classes
        self._process = SourceProcess(spec, classes)
        self._pace: Pace | None = None
        self._next_index = 0
        self._lost_by: str | None = None
        self._delay_s = _FIRST_DELAY_S
        self._again_s = 0.0
        self._damaged = 0
        self._deaths_s: list[float] = []
        self._has_given_up = False

    @property
    def lost(self) -> str | None:
        """Why a live camera gives nothing for now, in words; None while it gives frames."""
        return self._lost_by or self._process.lost

    @property
    def died(self) -> str | None:
        """Why a recording ended before all its frames were there; None where it did not."""
        if not self._has_given_up:
            return None
        if self._process.refused:
            return self._process.died
        return f"its decoder died {len(self._deaths_s)} times, {self._process.died}"

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return self._has_given_up or (not self._spec.live and self._process.ended and not self._process.died)

    @property
    def damaged(self) -> int:
        """Frames so far that could not be decoded."""
        return max(self._damaged, self._process.damaged)

    def wait_open(self) -> float:
        """As of the process; one whose process dies of it has ``ASSUMED_FPS``, and is lost or has ended."""
        while True:
            try:
                return self._process.wait_open()
            except SourceDiedError:
                if not self._spec.live:
                    self._take_over()
                if self._spec.live or self._has_given_up:
                    return ASSUMED_FPS

    def begin(self, pace: Pace, from_index: int = 0) -> None:
        """As of the process, paced."""
        self._pace, self._next_index = pace, from_index
        self._process.begin(pace, from_index)

    def poll(self, timeout_s: float) -> list[Arrived]:
        """As of the process. Starts another one where it has died, for a live one after a growing delay."""
        arrived = self._process.poll(timeout_s)
        if arrived:
            self._next_index = arrived[-1].index + 1
            self._lost_by, self._delay_s = None, _FIRST_DELAY_S
            self._forget_old_deaths()
        if self._spec.live and self._process.ended:
            self._look_again(timeout_s)
        elif self._process.died is not None and not self._has_given_up:
            self._take_over()
        return arrived

    def close(self) -> None:
        """End the process and give everything back. May be called twice."""
        self._process.close()

    def _forget_old_deaths(self) -> None:
        """Called when a frame came: of a decoder that never gets that far every death counts."""
        since_s = time.monotonic() - _DEATHS_WITHIN_S
        self._deaths_s = [at_s for at_s in self._deaths_s if at_s > since_s]

    def _take_over(self) -> None:
        """Starts another process of a recording where the one before died, or gives the recording up."""
        self._deaths_s.append(time.monotonic())
        self._has_given_up = self._process.refused or len(self._deaths_s) > _DEATHS_ALLOWED
        if self._has_given_up:
            return
        _LOG.warning(
            "%s: its decoder died (%s) and is started again at frame %d",
            self._name,
            self._process.died,
            self._next_index,
        )
        self._start_again()

    def _look_again(self, timeout_s: float) -> None:
        """Starts another process of a live source when its delay is over."""
        now_s = time.monotonic()
        if self._again_s <= now_s and self._lost_by is None:
            self._lost_by = f"its process died ({self._process.died})"
            self._again_s = now_s + self._delay_s
        if now_s < self._again_s:
            time.sleep(min(timeout_s, self._again_s - now_s))
            return
        self._delay_s = min(2.0 * self._delay_s, _LONGEST_DELAY_S)
        self._again_s = now_s + self._delay_s
        self._start_again()

    def _start_again(self) -> None:
        # Each process counts from the first frame on.
        self._damaged = self.damaged
        self._process.close()
        self._process = SourceProcess(self._spec, self._classes)
        if self._pace is not None:
            self._process.begin(self._pace, self._next_index)
