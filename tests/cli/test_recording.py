"""Tests of the fleet file of recorded cameras: it contains their losses if the golden model allows that."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekya.cli.recording import find_losses, recorded_fleet_text
from ekya.config.fleet_reading import parse_fleet
from ekya.core.units import StreamId
from ekya.streams.ingest.playing import PlayConfig, event_during
from ekya.streams.ingest.recorder import Gap, Recording


def recording(gaps, fps=25.0, file=Path("gate.avi")):
    return Recording(
        file=file,
        fps=fps,
        frames=1000,
        repeated=0,
        width=640,
        height=352,
        size_bytes=1_000_000,
        gaps=tuple(gaps),
        problem=None,
    )


@given(
    st.lists(st.integers(1, 200), min_size=2, max_size=9),
    st.integers(10, 24000).map(lambda hundredths: hundredths / 100),
)
def test_losses_of_gaps_drop_exactly_their_frames(lengths, fps):
    """Frame times are computed as by the video source."""
    bounds = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    gaps = [Gap(begin, end, "so") for begin, end in zip(bounds[::2], bounds[1::2], strict=False)]
    script = PlayConfig(script=find_losses(recording(gaps, fps))).script
    away = [
        frame
        for frame in range(bounds[-1] + 9)
        if event_during(script, round(frame * 1_000_000 / fps)) is not None
    ]
    assert away == [frame for gap in gaps for frame in range(gap.begin, gap.end)]


@pytest.mark.parametrize(("model", "in_script"), [("fastestdet", True), ("file", False)])
def test_recorded_fleet_with_labels_from_a_file_only_logs_losses(tmp_path, caplog, model, in_script):
    for name in ("gate.avi", "weights"):
        (tmp_path / name).write_bytes(b"")
    raw = {
        "gpus": 1,
        "window_s": 20,
        "windows": 3,
        "preparation": {"share_milli": 600},
        "golden": {"model": model, "weights": "weights"},
        "streams": [{"id": "gate", "source": {"kind": "camera", "url": "rtsp://cam/live"}}],
    }
    fleet = parse_fleet(raw, "a test", (tmp_path,))
    gate = StreamId("gate")
    one = recording([Gap(10, 60, "so")], file=tmp_path / "gate.avi")
    text = recorded_fleet_text(fleet, {gate: one}, {}, tmp_path / "fleet.yaml")
    assert ("event: lost" in text) == in_script
    assert ("gate was lost at 0.4 s for 2.0 s" in caplog.text) != in_script
    assert "cam/live" not in text
