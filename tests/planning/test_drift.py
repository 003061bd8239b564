"""Tests of the monitor of drift, on frames of virtual cameras."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.units import US_PER_S
from ekya.planning.adaptation.drift import (
    BLOCK_US,
    DOUBT,
    LEARNING_BLOCKS,
    OBJECTS,
    PICTURE,
    DriftMonitor,
    SeenFrame,
    threshold_of,
)

CLASSES = ("person", "car", "bus")
FPS = 5
FRAME_US = US_PER_S // FPS
LEARNT_S = LEARNING_BLOCKS * BLOCK_US / US_PER_S


HERE = np.linspace(60.0, 180.0, 40)
THERE = HERE[::-1]
"""Two pictures; the median of their distance is 60 grey levels."""


def frame(
    number,
    *,
    scene=0.0,
    exposure=1.0,
    doubt=0.2,
    objects=6,
    classes=None,
    version=0,
    resolution=32,
    noise=0.0,
):
    """A frame of a picture that is in part ``scene`` another one."""
    rng = np.random.default_rng(number)
    if classes is None:
        classes = rng.integers(len(CLASSES), size=objects)
    return SeenFrame(
        number * FRAME_US,
        version,
        resolution,
        (1.0 - doubt + noise * rng.normal(0.0, 0.1, len(classes))).astype(np.float32),
        np.asarray(classes, np.int16),
        (exposure * (HERE + scene * (THERE - HERE)) + noise * rng.normal(0.0, 2.0, 40)).astype(np.float32),
    )


def camera(seconds, **known):
    """Frames of a camera; what is known of them may depend on the time in seconds."""
    for number in range(round(seconds * FPS)):
        now = {key: value(number / FPS) if callable(value) else value for key, value in known.items()}
        yield frame(number, noise=1.0, **now)


def drifts(frames, monitor=None):
    monitor = monitor or DriftMonitor(CLASSES)
    return [drift for one in frames if (drift := monitor.observe_frame(one)) is not None]


def from_s(at_s, before, after):
    return lambda t_s: after if t_s >= at_s else before


def coarse(t_s):
    return 20 <= t_s < 40 or 60 <= t_s < 80


@pytest.mark.parametrize(
    ("seconds", "known"),
    [
        pytest.param(600, {}, id="steady scene"),
        pytest.param(
            90, {"exposure": lambda t_s: 1.2 if 30 <= t_s < 50 else 0.85 if t_s >= 70 else 1.0}, id="exposure"
        ),
        pytest.param(300, {"objects": from_s(30, 6, 0)}, id="empty street"),
        pytest.param(90, {"doubt": from_s(30, 0.5, 0.1)}, id="less doubt"),
        pytest.param(
            90,
            {"doubt": from_s(30, 0.2, 0.6), "version": from_s(30, 0, 1)},
            id="new weights begin their own reference",
        ),
        pytest.param(
            100,
            {
                "doubt": lambda t_s: 0.5 if coarse(t_s) else 0.2,
                "resolution": lambda t_s: 24 if coarse(t_s) else 32,
            },
            id="each resolution has its own reference",
        ),
    ],
)
def test_monitor_sees_no_drift_in(seconds, known):
    assert drifts(camera(seconds, **known)) == []


@pytest.mark.parametrize(
    ("known", "signal", "by_s"),
    [
        pytest.param({"doubt": from_s(26, 0.2, 0.6)}, DOUBT, 32, id="more doubt"),
        pytest.param({"exposure": from_s(26, 1.0, 0.5)}, PICTURE, 60, id="darkness, more than exposure"),
        pytest.param(
            {"scene": from_s(31, 0.0, 1.0), "version": from_s(30, 0, 1)}, PICTURE, 60, id="under new weights"
        ),
    ],
)
def test_monitor_notices_once(known, signal, by_s):
    (drift,) = drifts(camera(60, **known))
    assert drift.signal == signal
    assert drift.t_us / US_PER_S < by_s


def test_monitor_flood_of_boxes_is_noticed():
    drift, *_ = drifts(camera(200, objects=from_s(100, 6, 60)))
    assert drift.signal == OBJECTS


def test_monitor_moved_camera_is_noticed_within_three_seconds():
    (drift,) = drifts(camera(60, scene=from_s(26, 0.0, 1.0)))
    assert drift.signal == PICTURE
    assert 26 < drift.t_us / US_PER_S <= 29
    assert 26 <= drift.since_us / US_PER_S <= 26.6
    assert drift.value - drift.normal > 30
    assert drift.deviations > 5
    assert "difference of the picture is 6" in drift.reason
    assert "since 26." in drift.reason


def test_monitor_cut_within_a_block_dates_first_full_block():
    (drift,) = drifts(camera(60, scene=from_s(26.2, 0.0, 1.0)))
    assert drift.since_us == 26_600_000  # the block's first frame, of five a second


def test_monitor_slow_ramp_is_noticed_while_it_lasts():
    first, *_ = drifts(camera(60, scene=lambda t_s: 0.5 * min(max(t_s - 22.0, 0.0) / 12.0, 1.0)))
    assert 22 < first.t_us / US_PER_S < 34


def test_monitor_one_answer_to_everything_is_noticed():
    seen = (
        frame(one, noise=1.0, classes=[0] * 6 if one > 200 * FPS else [0, 1, 2] * 2)
        for one in range(260 * FPS)
    )
    drift, *_ = drifts(seen)
    assert drift.signal == "part of person"


@pytest.mark.parametrize("at_s", [30.0, 30.2, 30.4])
def test_monitor_bus_before_camera_for_a_second_is_no_drift(at_s):
    seen = camera(
        90,
        scene=lambda t_s: 1.0 if at_s <= t_s < at_s + 1 else 0.0,
        doubt=lambda t_s: 0.7 if at_s <= t_s < at_s + 1 else 0.2,
        objects=lambda t_s: 1 if at_s <= t_s < at_s + 1 else 6,
    )
    assert drifts(seen) == []


def test_monitor_after_alarm_learns_new_scene_and_notices_next():
    seen = camera(120, scene=lambda t_s: 0.0 if t_s < 30 else 0.5 if t_s < 70 else 1.0)
    first, second = drifts(seen)
    assert first.t_us < 33 * US_PER_S
    assert 70 < second.t_us / US_PER_S < 73


def test_monitor_few_analysed_frames_are_enough():
    seen = [one for one in camera(90, scene=from_s(40, 0.0, 1.0)) if one.t_us % US_PER_S == 0]
    (drift,) = drifts(seen)
    assert drift.t_us / US_PER_S <= 46


def test_threshold_rises_as_false_alarms_get_rarer():
    rates = [threshold_of(rate) for rate in (1000.0, 10.0, 1.0, 0.1)]
    assert rates == sorted(rates)


def test_threshold_gives_stated_rate_for_normal_terms():
    rng = np.random.default_rng(3)
    per_hour = 3600 * US_PER_S / BLOCK_US
    threshold, lengths = threshold_of(per_hour / 400), []
    for _ in range(200):
        total, length = 0.0, 0
        while total < threshold:
            total, length = max(total + rng.normal() - 0.5, 0.0), length + 1
        lengths.append(length)
    assert np.mean(lengths) == pytest.approx(400, rel=0.25)


@given(
    scene=st.floats(0, 1),
    doubt=st.floats(0, 1),
    classes=st.lists(st.integers(0, 2), max_size=8),
    rate=st.floats(0.001, 1000),
)
@settings(max_examples=20, deadline=None)
def test_monitor_constant_input_never_alarms(scene, doubt, classes, rate):
    seen = (frame(number, scene=scene, doubt=doubt, classes=classes) for number in range(60 * FPS))
    assert drifts(seen, DriftMonitor(CLASSES, rate)) == []


changes = st.fixed_dictionaries(
    {
        "scene": st.floats(0, 1).map(lambda scene: from_s(20, 0.0, scene)),
        "doubt": st.floats(0, 1).map(lambda doubt: from_s(20, 0.3, doubt)),
        "objects": st.integers(0, 20).map(lambda objects: from_s(20, 6, objects)),
    }
)


@given(changes=changes, rate=st.floats(0.001, 1000))
@settings(max_examples=20, deadline=None)
def test_monitor_evidence_is_older_than_alarm(changes, rate):
    for drift in drifts(camera(50, **changes), DriftMonitor(CLASSES, rate)):
        assert 0 <= drift.since_us <= drift.t_us


@given(changes=changes, order=st.permutations(range(len(CLASSES))))
@settings(max_examples=20, deadline=None)
def test_monitor_order_of_classes_does_not_matter(changes, order):
    seen = list(camera(50, **changes))
    of_new = np.argsort(order)
    other = [replace(one, classes=of_new[one.classes].astype(np.int16)) for one in seen]
    names = tuple(CLASSES[place] for place in order)
    assert drifts(other, DriftMonitor(names)) == drifts(seen)


@given(changes=changes, at_s=st.integers(0, 40))
@settings(max_examples=20, deadline=None)
def test_monitor_rebase_forgets_all_before(changes, at_s):
    used = DriftMonitor(CLASSES)
    seen = list(camera(70, **changes))
    earlier, later = seen[: at_s * FPS], seen[at_s * FPS :]
    drifts(earlier, used)
    used.relearn_references(at_s * US_PER_S)
    assert drifts(later, used) == drifts(later)


def test_monitor_rebase_ignores_frames_before_it():
    monitor = DriftMonitor(CLASSES)
    monitor.relearn_references(round((LEARNT_S + 5) * US_PER_S))
    assert drifts(camera(LEARNT_S + 12, scene=from_s(LEARNT_S + 6, 0.0, 1.0)), monitor) == []
