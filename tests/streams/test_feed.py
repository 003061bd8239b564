"""Tests of recordings whose decoder dies; cameras are in ``test_camera.py``."""

import pytest
from waiting import call_at, wait_until

from ekya.core.errors import UserError
from ekya.streams.ingest import feed as feed_module
from ekya.streams.ingest.camera import ASSUMED_FPS
from ekya.streams.ingest.video import VideoSpec


def indices(feed, kill=None, held=(), folder=None):
    """Returns all frame indices; kills the decoder at each frame for which it waits."""
    seen, held = [], list(held)

    def has_ended():
        seen.extend(arrived.index for arrived in feed.poll_frames(0.5))
        if held and len(seen) == held[0]:
            assert kill()
            (folder / f"go-{held.pop(0)}").touch()
        return feed.ended

    wait_until(has_ended, lambda: seen)
    return seen


def test_feed_killed_decoder_continues_at_next_frame(odd, feed, caplog, kill_decoder, tmp_path):
    watching = feed(odd(frames=60, holds=(5, 30)), "gate")
    assert watching.wait_open() == 100.0
    call_at(watching.start_frames)
    assert indices(watching, kill_decoder, (5, 30), tmp_path) == list(range(60))
    assert watching.died is None
    assert watching.lost is None
    assert watching.damaged == 2
    assert "gate: its decoder died (killed by signal SIGKILL) and is started again at frame" in caplog.text


@pytest.mark.parametrize(
    ("minute_s", "frames", "died"),
    [(1e9, 15, "its decoder died 3 times, killed by signal SIGKILL"), (0.0, 60, None)],
)
def test_feed_third_death_in_a_minute_ends_recording(
    odd, playing, monkeypatch, kill_decoder, tmp_path, minute_s, frames, died
):
    monkeypatch.setattr(feed_module, "DEATHS_WITHIN_S", minute_s)
    watching = playing(odd(frames=60, holds=(5, 10, 15, 20)), "gate")
    assert indices(watching, kill_decoder, (5, 10, 15, 20), tmp_path) == list(range(frames))
    assert watching.died == died
    assert watching.poll_frames(0.0) == []


@pytest.mark.parametrize("minute_s", [60.0, 0.0])
def test_feed_repeated_abort_at_one_frame_ends_recording(odd, playing, monkeypatch, minute_s):
    monkeypatch.setattr(feed_module, "DEATHS_WITHIN_S", minute_s)
    watching = playing(odd(frames=3, end="abort"), "gate")
    assert indices(watching) == [0, 1, 2]
    assert "SIGABRT" in watching.died


def test_feed_abort_in_open_ends_recording(odd, feed):
    watching = feed(odd(end="abort in open"), "gate")
    assert watching.wait_open() == ASSUMED_FPS
    call_at(watching.start_frames)
    assert watching.poll_frames(0.0) == []
    assert watching.ended
    assert "SIGABRT" in watching.died


def test_feed_killed_while_opening_is_restarted(odd, feed, kill_decoder):
    watching = feed(odd(frames=5), "gate")
    kill_decoder()
    assert watching.wait_open() == 100.0
    call_at(watching.start_frames)
    assert indices(watching) == [0, 1, 2, 3, 4]


def test_feed_user_error_is_not_retried(feed, tmp_path, caplog):
    with pytest.raises(UserError, match=r"nowhere\.mp4: no such file"):
        feed(VideoSpec(files=(tmp_path / "nowhere.mp4",))).wait_open()
    assert caplog.text == ""
