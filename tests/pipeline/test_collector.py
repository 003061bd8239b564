"""Tests of the frames kept for the golden model: chosen by seed and window only."""

from dataclasses import replace

import numpy as np
import pytest
from street import FPS, IMAGE, PER_WINDOW, SIDE, WINDOW_US, boxes_at, frame_at, material, settings

from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import Detections, Proposals
from ekya.pipeline.collector import (
    BURST_FRAMES,
    LONGEST_SIDE,
    RECENT_EVERY_US,
    RECENT_FRAMES,
    SAMPLED_FRAMES,
    WindowCollector,
    WindowMaterial,
)
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame


def collector(seed=5, fps=FPS):
    return WindowCollector(settings(seed, fps), WINDOW_US)


def watch(watched, indices, every=1, given=False):
    """Passes frames to the collector: those that λ analyses, and those that the collector wants."""
    for index in indices:
        frame = frame_at(index, given)
        if given or index % every == 0 or watched.wants(frame.t_us):
            watched.collect_frame(frame, Proposals(boxes_at(index)))


def kept(collected_frames):
    return [frame.frame for frame in collected_frames]


@pytest.mark.parametrize("every", [2, 3, 5, 10, 1000])
def test_kept_frames_do_not_depend_on_lambda(every):
    all_seen, some_seen = collector(), collector()
    for window in range(2):
        frames = range(window * PER_WINDOW, (window + 1) * PER_WINDOW)
        watch(all_seen, frames, given=True)
        watch(some_seen, frames, every)
        expected, got = all_seen.close(window), some_seen.close(window)
        assert kept(got.sample) == kept(expected.sample) != []
        assert kept(got.burst) == kept(expected.burst) != []


@pytest.mark.parametrize("every", [1, 5, 25])
def test_only_analysed_keeps_no_other_frames(every):
    watched, all_seen = WindowCollector(replace(settings(5), only_analysed=True), WINDOW_US), collector()
    watch(watched, range(PER_WINDOW), every)
    watch(all_seen, range(PER_WINDOW), given=True)
    got = kept(watched.close(0).sample)
    assert all(frame % every == 0 for frame in got)
    assert len(got) >= min(PER_WINDOW // every, 48) // 2
    if every == 1:
        assert got == kept(all_seen.close(0).sample)


def test_sample_is_spread_and_burst_is_consecutive():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    found = watched.close(0)
    sample, burst = kept(found.sample), kept(found.burst)
    assert SAMPLED_FRAMES - 5 <= len(sample) <= SAMPLED_FRAMES
    assert max(np.diff(sample)) <= 2 * PER_WINDOW / SAMPLED_FRAMES + 1
    assert sample == sorted(set(sample))
    assert burst == list(range(burst[0], burst[0] + BURST_FRAMES))
    assert 0 <= burst[0] <= PER_WINDOW - BURST_FRAMES


def test_seed_and_window_decide_the_choice():
    def choice(seed, window):
        watched = collector(seed)
        watch(watched, range(window * PER_WINDOW, (window + 1) * PER_WINDOW))
        return [index - window * PER_WINDOW for index in kept(watched.close(window).sample)]

    assert choice(5, 0) == choice(5, 0)
    assert choice(5, 0) != choice(6, 0)
    assert choice(5, 0) != choice(5, 1)


def test_close_returns_frames_of_its_window_only():
    watched = collector()
    for window in range(3):
        watch(watched, range(window * PER_WINDOW, (window + 1) * PER_WINDOW))
        found = watched.close(window)
        assert found.window == window
        frames = kept((*found.sample, *found.burst))
        assert frames
        assert all(frame // PER_WINDOW == window for frame in frames)


def test_frame_whose_window_is_closed_while_it_is_cropped_is_not_one_of_the_next(monkeypatch):
    watched, undisturbed = collector(), collector()

    def crop(*given):
        watched.close(0)
        return crop_objects(*given)

    with monkeypatch.context() as patch:
        patch.setattr("ekya.pipeline.collector.crop_objects", crop)
        watch(watched, range(PER_WINDOW - 1, PER_WINDOW))
    for each in (watched, undisturbed):
        watch(each, range(PER_WINDOW, 2 * PER_WINDOW))
    assert kept(watched.close(1).sample) == kept(undisturbed.close(1).sample) != []


def test_late_close_returns_no_frames_of_the_next_window():
    """The order to close a window comes shortly after its end, when frames of the next have arrived."""
    prompt, late = collector(), collector()
    watch(prompt, range(PER_WINDOW))
    watch(late, range(PER_WINDOW + 30))
    expected, got = prompt.close(0), late.close(0)
    assert kept(got.sample) == kept(expected.sample)
    assert kept(got.burst) == kept(expected.burst)
    watch(prompt, range(PER_WINDOW, 2 * PER_WINDOW))
    watch(late, range(PER_WINDOW + 30, 2 * PER_WINDOW))
    assert kept(late.close(1).sample) == kept(prompt.close(1).sample)


def test_frame_after_its_window_changes_no_window():
    late, in_time = collector(), collector()
    watch(in_time, range(PER_WINDOW - 1))
    watch(in_time, range(PER_WINDOW, PER_WINDOW + 50))
    watch(late, range(PER_WINDOW - 1))
    watch(late, range(PER_WINDOW, PER_WINDOW + 20))
    assert not late.wants(frame_at(PER_WINDOW - 1).t_us)
    assert late.collect_frame(frame_at(PER_WINDOW - 1), Proposals(boxes_at(PER_WINDOW - 1))) is None
    watch(late, range(PER_WINDOW + 20, PER_WINDOW + 50))
    for window in range(2):
        expected, got = in_time.close(window), late.close(window)
        assert kept(got.sample) == kept(expected.sample) != []
        assert kept(got.burst) == kept(expected.burst)


def test_close_twice_is_the_same_and_of_unknown_window_empty():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    assert kept(watched.close(0).sample) == kept(watched.close(0).sample) != []
    for window in (4, -1):
        nothing = watched.close(window)
        assert (nothing.window, nothing.sample, nothing.burst) == (window, (), ())


def test_close_of_a_window_without_frames_is_empty():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    watch(watched, range(2 * PER_WINDOW, 2 * PER_WINDOW + 50))
    assert watched.close(1).sample == ()
    assert watched.close(2).sample != ()


def test_missing_frame_is_replaced_by_the_next():
    watched = collector()
    watch(watched, [index for index in range(PER_WINDOW) if index % 10 >= 5])
    sample = kept(watched.close(0).sample)
    assert all(index % 10 >= 5 for index in sample)
    assert {index // 10 for index in sample} == set(range(10))


def test_gap_is_replaced_by_one_frame():
    """The frames right after a gap do not replace those that are missing."""
    watched = collector()
    watch(watched, [index for index in range(PER_WINDOW) if not 20 <= index < 80])
    sample = kept(watched.close(0).sample)
    assert len(sample) <= 0.4 * SAMPLED_FRAMES + 2
    assert 80 in sample


def test_close_of_another_window_changes_nothing():
    asked, left_alone = collector(), collector()
    for watched in (asked, left_alone):
        watch(watched, range(PER_WINDOW + 50))
    for window in (0, 7, -1):
        asked.close(window)
    for watched in (asked, left_alone):
        watch(watched, range(PER_WINDOW + 50, 2 * PER_WINDOW))
    assert kept(asked.close(1).sample) == kept(left_alone.close(1).sample)


def test_slow_camera_keeps_each_frame_once():
    watched = collector(fps=2.0)
    for index in range(20):
        frame = Frame(index, index * 500_000, IMAGE, boxes_at(index))
        watched.collect_frame(frame, Proposals(boxes_at(index)))
    found = watched.close(0)
    sample = kept(found.sample)
    assert sample == sorted(set(sample))
    assert 10 <= len(sample) <= 20
    assert len(found.burst) == BURST_FRAMES


def test_see_returns_frames_of_the_sample_only():
    watched = collector()
    handed = []
    for index in range(PER_WINDOW):
        frame = watched.collect_frame(frame_at(index), Proposals(boxes_at(index)))
        if frame is not None:
            handed.append(frame.frame)
    assert handed == kept(watched.close(0).sample)


def test_objects_keep_their_track():
    watched = collector()
    watch(watched, range(20), given=True)
    found = watched.close(0)
    assert {tuple(frame.tracks) for frame in found.sample} == {(0, 1, 2)}
    assert all((frame.boxes == boxes_at(frame.frame)).all() for frame in found.sample)


def test_mean_objects_is_at_least_one():
    assert material([1, 2, 3], [1]).mean_objects == 2.0
    assert material([], [], []).mean_objects == 1.0
    assert WindowMaterial(0, (), ()).mean_objects == 1.0


def test_image_of_an_analysed_frame_is_not_kept():
    boxes = boxes_at(0)
    found = Detections(boxes, np.zeros(3, np.int64), np.ones(3, np.float32))
    kept = []
    for by in (found, None):
        watched = collector()
        every = [watched.collect_frame(frame_at(index), Proposals(boxes, by)) for index in range(PER_WINDOW)]
        kept.append(next(frame for frame in every if frame is not None))
    seen, unseen = kept
    assert (seen.image, seen.question.found) == (None, found)
    assert unseen.question.picture is IMAGE
    assert (seen.crops == crop_objects(IMAGE, boxes, SIDE)).all()
    assert (seen.select_objects(np.array([2])).question.boxes == boxes[2]).all()


def test_forget_drops_the_last_window_only():
    watched = collector()
    watch(watched, range(2 * PER_WINDOW))
    watched.forget_material()
    forgotten = watched.close(0)
    assert (forgotten.window, forgotten.sample, forgotten.burst) == (0, (), ())
    assert kept(watched.close(1).sample) != []


@pytest.mark.parametrize(
    ("task", "shape", "kept_shape"),
    [
        (Task.DETECT, (720, 1280), (360, LONGEST_SIDE)),
        (Task.DETECT, (1000, 500), (LONGEST_SIDE, 320)),
        (Task.DETECT, (40, 60), (40, 60)),
        (Task.CLASSIFY, (720, 1280), (720, 1280)),
    ],
)
def test_frames_for_a_detector_are_kept_smaller(task, shape, kept_shape):
    watched = WindowCollector(replace(settings(5), task=task), WINDOW_US)
    image = np.zeros((*shape, 3), np.uint8)
    for index in range(PER_WINDOW):
        watched.collect_frame(
            Frame(index, frame_at(index).t_us, image, None), Proposals(np.zeros((0, 4), np.float32))
        )
    found = watched.close(0)
    assert len(found.sample) > SAMPLED_FRAMES - 5
    assert len(found.burst) == BURST_FRAMES
    for frame in (*found.sample, *found.burst):
        assert frame.picture.shape == (*kept_shape, 3)
        assert frame.size == (shape[1], shape[0])


def newest(seed=5):
    return WindowCollector(replace(settings(seed), keeps_newest=True), WINDOW_US)


def test_since_returns_newest_frames_densely():
    watched = newest()
    watch(watched, range(PER_WINDOW + 60))
    now_us = frame_at(PER_WINDOW + 59).t_us
    found = watched.recent_material(1, now_us - 2_000_000)
    times = [frame.t_us for frame in found.sample]
    assert times == sorted(set(times))
    assert times[0] <= now_us - 2_000_000 + 2 * RECENT_EVERY_US
    assert min(times) >= now_us - 2_000_000
    assert len(times) >= 2_000_000 // (2 * RECENT_EVERY_US)
    assert (found.window, found.used_in, found.burst) == (1, 1, ())
    assert watched.close(0).used_in == 1


def test_since_reaches_over_the_border_of_windows():
    watched = newest()
    watch(watched, range(PER_WINDOW + 5))
    since_us = frame_at(PER_WINDOW - 5).t_us
    frames = kept(watched.recent_material(1, since_us).sample)
    assert min(frames) < PER_WINDOW <= max(frames)


def test_newest_frames_are_bounded_and_change_no_sample():
    watched, plain = newest(), collector()
    watch(watched, range(PER_WINDOW), given=True)
    watch(plain, range(PER_WINDOW), given=True)
    assert len(watched.recent_material(9, 0).sample) <= RECENT_FRAMES
    assert kept(watched.close(0).sample) == kept(plain.close(0).sample)
    assert kept(watched.close(0).burst) == kept(plain.close(0).burst)
    assert plain.recent_material(9, 0).sample == ()
