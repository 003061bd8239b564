import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import call_at, wait_until

from ekya.core.areas import Areas
from ekya.core.errors import UserError
from ekya.core.objects import DOUBTFUL
from ekya.streams.ingest.process import Arrived, SourceProcess, probe_source
from ekya.streams.ingest.video import VideoSpec


def drain(process: SourceProcess, pause_s: float = 0.0) -> list[Arrived]:
    arrived = []
    while not process.ended:
        arrived += process.poll_frames(1.0)
        time.sleep(pause_s)
    return arrived


def whole(arrived: Arrived) -> bool:
    return arrived.frame is not None and bool((arrived.frame.image == arrived.index % 251).all())


def test_process_on_demand_slow_reader_gets_all_pixels(odd: Any) -> None:
    with SourceProcess(odd(frames=20, grow=True), ("car",)) as process:
        assert process.wait_open() == 100.0
        process.start_frames(None)
        arrived = drain(process, pause_s=0.01)
        assert process.died is None
        assert process.damaged == 2
    assert [a.index for a in arrived] == list(range(20))
    assert all(whole(a) for a in arrived)
    assert [a.frame.image.shape[0] for a in arrived if a.frame] == [40 + 40 * i for i in range(20)]
    for a in arrived:
        assert a.truth is not None
        assert a.frame is not None
        np.testing.assert_array_equal(a.truth.boxes, a.frame.boxes)
        assert a.truth.tracks.tolist() == [100 * a.index + k for k in range(a.index % 3)]


def test_process_gives_what_counts_and_the_truth_of_all(odd: Any) -> None:
    """A second object of a frame stands at x = 2 of 30 pixels, the first one further right in each frame."""
    mask = ((0.0, 0.0), (0.2, 0.0), (0.2, 1.0), (0.0, 1.0))
    with SourceProcess(odd(frames=9), ("car",), areas=Areas(mask=(mask,))) as process:
        shown = list(process.frames())
    for frame, truth in shown:
        assert truth is not None
        assert frame.boxes is not None
        left = [frame.index < 4, True][: frame.index % 3]
        assert truth.classes.tolist() == [DOUBTFUL if one else at for at, one in enumerate(left)]
        np.testing.assert_array_equal(frame.boxes, truth.boxes[truth.classes != DOUBTFUL])
        assert len(truth.tracks) == frame.index % 3


def test_process_without_shared_memory_says_so(odd: Any) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        process = SourceProcess(odd(frames=2), ("car",))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with (
        process,
        pytest.raises(
            UserError,
            match=r"shared memory for frames: larger than is allowed here; raise the limit \(ulimit",
        ),
    ):
        list(process.frames())


def test_process_paced_is_not_held_up_and_gives_newest_pixels(odd: Any) -> None:
    with SourceProcess(odd(frames=100, fps=200.0), ("car",)) as process:
        process.wait_open()
        call_at(process.start_frames)
        wait_until(lambda: not alive(process.pid))  # nobody has read a frame yet
        arrived = drain(process)
    assert [a.index for a in arrived] == list(range(100)), "every frame is counted once"
    assert [a.index for a in arrived if a.frame is not None] == [99]
    assert whole(arrived[-1])
    assert all(a.truth is not None and len(a.truth.boxes) == a.index % 3 for a in arrived)


def test_process_from_index_continues_there(odd: Any) -> None:
    with SourceProcess(odd(frames=50), ("car",)) as process:
        process.wait_open()
        call_at(process.start_frames, 30, in_s=-10.0)
        arrived = drain(process)
    assert [a.index for a in arrived] == list(range(30, 50))


def test_process_on_demand_gives_only_the_frames_that_are_asked_for(odd: Any) -> None:
    with SourceProcess(odd(frames=50), ("car",)) as process:
        assert [frame.index for frame, _ in process.frames(only=[3, 7, 30])] == [3, 7, 30]
        assert process.died is None
    with SourceProcess(odd(frames=50), ("car",)) as process:
        assert list(process.frames(only=[])) == []


def test_process_abort_is_reported_in_words(odd: Any) -> None:
    with SourceProcess(odd(frames=3, end="abort"), ("car",)) as process:
        process.wait_open()
        call_at(process.start_frames)
        arrived = drain(process)
        assert [a.index for a in arrived] == [0, 1, 2], "what arrived before the end counts"
        assert process.died is not None
        assert "SIGABRT" in process.died
        assert process.poll_frames(0.0) == []


@pytest.mark.parametrize(("fps", "limit_s"), [(100.0, 75), (0.01, 500)])
def test_process_that_hangs_is_killed(odd: Any, fps: float, limit_s: int) -> None:
    """One that has few frames hangs later."""
    now_s = [0.0]
    with SourceProcess(odd(frames=1000, fps=fps), ("car",), lambda: now_s[0]) as process:
        process.wait_open()
        call_at(process.start_frames)
        wait_until(lambda: process.poll_frames(0.05))
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T")
        wait_until(lambda: not process.poll_frames(0.0))
        now_s[0] = limit_s - 0.1
        assert process.poll_frames(0.0) == []
        assert process.died is None
        now_s[0] = limit_s + 0.1
        assert process.poll_frames(0.0) == []
        assert process.died == f"it gave no sign of life for {limit_s} s"


def test_process_exception_is_reported_in_words(odd: Any) -> None:
    with SourceProcess(odd(frames=2, end="raise"), ("car",)) as process:
        assert len(list(process.frames())) == 2
        assert process.died == "RuntimeError: the cable is out"


def test_process_warning_is_logged_by_the_reader(odd: Any, caplog: Any) -> None:
    with SourceProcess(odd(frames=3, end="warn"), ()) as process:
        assert len(list(process.frames())) == 3
    assert caplog.messages == ["last.png: is cut off"]


def test_probe_source_death_in_open_is_user_error(odd: Any) -> None:
    with pytest.raises(UserError, match=r"abort in open.*SIGABRT.*replace"):
        probe_source(odd(end="abort in open"), ("car",))


def test_probe_source_passes_on_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.mp4: no such file"):
        probe_source(VideoSpec(files=(tmp_path / "nowhere.mp4",)), ())


def test_process_child_takes_no_modules_of_the_current_folder(
    odd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "queue.py").write_text("raise SystemExit('the wrong queue')")
    monkeypatch.chdir(folder)
    with SourceProcess(odd(frames=1), ("car",)) as process:
        assert process.wait_open() == 100.0


def test_process_child_ends_with_a_killed_parent(odd: Any, tmp_path: Path) -> None:
    parent = (
        "import sys, time, psutil; sys.path.insert(0, sys.argv[1])\n"
        "from odd_source_for_tests import OddSpec\n"
        "from ekya.streams.ingest.process import SourceProcess\n"
        "process = SourceProcess(OddSpec(frames=100, fps=0.1), ())\n"
        "process.wait_open(); process.start_frames(2**62)\n"
        "print(psutil.Process().children()[0].pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        child = int(running.stdout.readline())
        assert alive(child)
        running.send_signal(signal.SIGKILL)
        running.wait()
    wait_until(lambda: not alive(child))


def alive(pid: int) -> bool:
    return state_of(pid) not in (None, "Z")


def state_of(pid: int) -> str | None:
    """Returns the letter of a process's state, as in ``ps``; None without the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
