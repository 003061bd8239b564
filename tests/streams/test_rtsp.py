"""Tests of live cameras over RTSP, against a real server that is killed and restarted."""

import time

import pytest
from rtsp_camera import RtspCamera, require_server, street_video
from waiting import call_at, wait_until

from ekya.streams.ingest.camera import CameraSpec
from ekya.streams.ingest.feed import Feed

pytestmark = pytest.mark.live

LOGIN = "operator:tops3cret"


@pytest.fixture(params=["h264", pytest.param("jpeg", marks=pytest.mark.long)])
def camera(request, tmp_path, shared_data):
    require_server()
    if request.param == "h264" and shared_data is None:
        pytest.skip("no shared data, so no video in H.264; set EKYA_DATA to the folder that has it")
    data = shared_data if request.param == "h264" else None
    with RtspCamera(street_video(tmp_path, data), LOGIN) as camera:
        yield camera


def until(feed, condition):
    arrived = []
    wait_until(
        lambda: arrived.extend(feed.poll_frames(0.05)) or condition(arrived),
        lambda: f"lost: {feed.lost}, {len(arrived)} frames",
    )
    return arrived


@pytest.mark.long
def test_feed_killed_rtsp_camera_is_back_in_the_same_decoder(camera, monkeypatch, decoders):
    monkeypatch.setenv("CAM_LOGIN", LOGIN)
    feed = Feed(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@")), ())
    try:
        assert feed.wait_open() == pytest.approx(24.0, rel=0.25)
        call_at(feed.start_frames)
        arrived = until(feed, lambda seen: len(seen) > 60)
        assert any(one.frame is not None for one in arrived)
        camera.kill()
        arrived += until(feed, lambda _: feed.lost is not None)
        time.sleep(4.0)
        camera.start()
        arrived += until(feed, lambda seen: seen and feed.lost is None)
        arrived += until(feed, lambda seen: len(seen) > 30)
        assert [one.index for one in arrived] == list(range(len(arrived)))
        times = [one.t_us for one in arrived]
        assert times == sorted(set(times))
        assert len(decoders()) == 1
    finally:
        feed.close()
    assert not decoders()
    assert not camera.connected


def test_feed_wrong_rtsp_login_is_reported_in_words(camera, monkeypatch):
    monkeypatch.setenv("CAM_LOGIN", "operator:wr0ng")
    feed = Feed(CameraSpec(url=camera.url.replace("//", "//${CAM_LOGIN}@")), ())
    try:
        feed.wait_open()
        call_at(feed.start_frames)
        until(feed, lambda _: feed.lost is not None)
        assert feed.lost == "the camera answers and gives no video; check login, path and codec"
    finally:
        feed.close()
