"""Source for tests of processes: its frames carry their index, and it can end by a crash."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import call_at, wait_until

from ekya.streams.ingest.feed import Feed

ODD_SOURCE = '''
import logging, os, time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
import numpy as np
from pydantic import BaseModel
from ekya.streams.ingest.frame import Frame, Truth


class OddSpec(BaseModel):
    """Frames that carry their index in their pixels, truth, and a bad end if one is asked for.

    Before each frame of ``holds`` it waits until ``go-INDEX`` is beside this file.
    """

    live: ClassVar[bool] = False

    frames: int = 10
    fps: float = 100.0
    end: str = ""
    grow: bool = False
    holds: tuple[int, ...] = ()

    def open(self, classes):
        if self.end == "abort in open":
            os.abort()
        return OddSource(self)


@dataclass
class OddSource:
    spec: OddSpec
    damaged: int = 2

    @property
    def fps(self):
        return self.spec.fps

    def frames(self):
        for i in range(self.spec.frames):
            while i in self.spec.holds and not Path(__file__).with_name(f"go-{i}").exists():
                time.sleep(0.01)
            height = 40 + 40 * i if self.spec.grow else 40
            boxes = np.array([[i, 0, i + 4, 4], [1, 2, 3, 4]], dtype=np.float32)[: i % 3]
            truth = Truth(boxes, np.arange(len(boxes)), np.arange(len(boxes)) + 100 * i)
            image = np.full((height, 30, 3), i % 251, dtype=np.uint8)
            yield Frame(i, round(i * 1e6 / self.spec.fps), image, boxes), truth
        if self.spec.end == "warn":
            logging.getLogger("ekya.streams.odd").warning("%s: is cut off", "last.png")
        if self.spec.end == "abort":
            os.abort()
        if self.spec.end == "raise":
            raise RuntimeError("the cable is out")
'''


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "odd_source_for_tests.py").write_text(ODD_SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("odd_source_for_tests", None)
    return __import__("odd_source_for_tests").OddSpec


@pytest.fixture
def decoders() -> Any:
    """Function that returns the living processes in which the sources of a test run."""

    def living() -> list[psutil.Process]:
        found = []
        for child in psutil.Process().children():
            # One that just ended has no command line, or raises.
            with suppress(psutil.Error):
                if any(word.endswith("process_child") for word in child.cmdline()):
                    found.append(child)
        return found

    return living


@pytest.fixture
def kill_decoder(decoders: Any) -> Any:
    """Function that kills the process in which the source of a test runs; returns whether there was one."""

    def kill() -> bool:
        found = decoders()
        for child in found:
            child.kill()
        wait_until(lambda: not decoders())
        return bool(found)

    return kill


@pytest.fixture
def feed() -> Any:
    """Function that opens feeds, which are closed after the test."""
    feeds: list[Feed] = []

    def open_(spec: Any, *name: str) -> Feed:
        feeds.append(Feed(spec, (), *name))
        return feeds[-1]

    yield open_
    for one in feeds:
        one.close()


@pytest.fixture
def playing(feed: Any) -> Any:
    """Function that opens feeds, and has their frames come once they are open."""

    def play(spec: Any, *name: str) -> Feed:
        opened = feed(spec, *name)
        opened.wait_open()
        call_at(opened.start_frames)
        return opened

    return play
