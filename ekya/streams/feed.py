"""A stream's source as inference reads it: a live one is there again whatever happened to its process."""

import time
from collections.abc import Iterator
from typing import Self

from ekya.streams.frame import Frame, Truth
from ekya.streams.process import Arrived, Pace, SourceProcess, SourceSpec

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 4.0


class LiveLook:
    """What a live source shows for a while, as if it were a recording; empty where nothing comes.

    Args:
        spec: of the source.
        look_s: seconds.
    """

    def __init__(self, spec: SourceSpec, look_s: float) -> None:
        self._feed = Feed(spec, ())
        self._look_s = look_s

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
    """A ``SourceProcess``, and for a live source another one when it has died.

    A recording whose process died has ended: what aborted its decoder once does so again. A camera is
    only lost, as when nobody answers at its address.
    """

    def __init__(self, spec: SourceSpec, classes: tuple[str, ...]) -> None:
        """Start the process and let it open the source."""
        self._spec = spec
        self._classes = classes
        self._process = SourceProcess(spec, classes)
        self._pace: Pace | None = None
        self._next_index = 0
        self._died: str | None = None
        self._delay_s = _FIRST_DELAY_S
        self._again_s = 0.0

    @property
    def lost(self) -> str | None:
        """Why a live camera gives nothing for now, in words; None while it gives frames."""
        return self._died or self._process.lost

    @property
    def died(self) -> str | None:
        """How a recording's process died before all its frames were there."""
        return None if self._spec.live else self._process.died

    @property
    def ended(self) -> bool:
        """Nothing more will come."""
        return not self._spec.live and self._process.ended

    @property
    def damaged(self) -> int:
        """Frames so far that could not be decoded."""
        return self._process.damaged

    def wait_open(self) -> float:
        """As of the process."""
        return self._process.wait_open()

    def begin(self, pace: Pace, from_index: int = 0) -> None:
        """As of the process, paced."""
        self._pace, self._next_index = pace, from_index
        self._process.begin(pace, from_index)

    def poll(self, timeout_s: float) -> list[Arrived]:
        """As of the process. Starts another one where a live one has died, after a growing delay."""
        arrived = self._process.poll(timeout_s)
        if arrived:
            self._next_index = arrived[-1].index + 1
            self._died, self._delay_s = None, _FIRST_DELAY_S
        if self._spec.live and self._process.ended:
            self._start_again(timeout_s)
        return arrived

    def close(self) -> None:
        """End the process and give everything back. May be called twice."""
        self._process.close()

    def _start_again(self, timeout_s: float) -> None:
        now_s = time.monotonic()
        if self._again_s <= now_s and self._died is None:
            self._died = f"its process died ({self._process.died})"
            self._again_s = now_s + self._delay_s
        if now_s < self._again_s:
            time.sleep(min(timeout_s, self._again_s - now_s))
            return
        self._delay_s = min(2.0 * self._delay_s, _LONGEST_DELAY_S)
        self._again_s = now_s + self._delay_s
        self._process.close()
        self._process = SourceProcess(self._spec, self._classes)
        if self._pace is not None:
            self._process.begin(self._pace, self._next_index)
