"""Tests of the frames kept for the golden model: chosen by seed and window only."""

import numpy as np
import pytest
from street import FPS, IMAGE, PER_WINDOW, SIDE, WINDOW_US, boxes_at, frame_at, material

from ekya.models.golden.detections import Detections, Proposals
from ekya.pipeline.collector import BURST_FRAMES, SAMPLED_FRAMES, WindowCollector, WindowMaterial
from ekya.streams.ingest.crops import crop_objects
from ekya.streams.ingest.frame import Frame


def collector(seed=5, fps=FPS):
    return WindowCollector(seed, fps, WINDOW_US, SIDE)


def watch(watched, indices, every=1, given=False):
    """Passes frames to the collector: those that λ analyses, and those that the collector wants."""
    for index in indices:
        frame = frame_at(index, given)
        if given or index % every == 0 or watched.wants(frame.t_us):
            watched.see(frame, Proposals(boxes_at(index)))


def kept(collected_frames):
    return [frame.frame for frame in collected_frames]


@pytest.mark.parametrize("every", [2, 3, 5, 10, 1000])
def test_the_same_frames_are_kept_whatever_inference_looks_at(every):
    all_seen, some_seen = collector(), collector()
    for window in range(2):
        frames = range(window * PER_WINDOW, (window + 1) * PER_WINDOW)
        watch(all_seen, frames, given=True)
        watch(some_seen, frames, every)
        expected, got = all_seen.close(window), some_seen.close(window)
        assert kept(got.sample) == kept(expected.sample) != []
        assert kept(got.burst) == kept(expected.burst) != []


@pytest.mark.parametrize("every", [1, 5, 25])
def test_where_only_analysed_frames_are_kept_no_other_is_asked_for(every):
    watched, all_seen = WindowCollector(5, FPS, WINDOW_US, SIDE, only_analysed=True), collector()
    watch(watched, range(PER_WINDOW), every)
    watch(all_seen, range(PER_WINDOW), given=True)
    got = kept(watched.close(0).sample)
    assert all(frame % every == 0 for frame in got)
    assert len(got) >= min(PER_WINDOW // every, 48) // 2
    if every == 1:
        assert got == kept(all_seen.close(0).sample)


def test_a_sample_is_spread_over_the_window_and_a_burst_is_in_one_piece():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    found = watched.close(0)
    sample, burst = kept(found.sample), kept(found.burst)
    assert SAMPLED_FRAMES - 5 <= len(sample) <= SAMPLED_FRAMES
    assert max(np.diff(sample)) <= 2 * PER_WINDOW / SAMPLED_FRAMES + 1
    assert sample == sorted(set(sample))
    assert burst == list(range(burst[0], burst[0] + BURST_FRAMES))
    assert 0 <= burst[0] <= PER_WINDOW - BURST_FRAMES


def test_seeds_and_windows_choose_differently():
    def choice(seed, window):
        watched = collector(seed)
        watch(watched, range(window * PER_WINDOW, (window + 1) * PER_WINDOW))
        return [index - window * PER_WINDOW for index in kept(watched.close(window).sample)]

    assert choice(5, 0) == choice(5, 0)
    assert choice(5, 0) != choice(6, 0)
    assert choice(5, 0) != choice(5, 1)


def test_a_window_holds_its_own_frames_only():
    watched = collector()
    for window in range(3):
        watch(watched, range(window * PER_WINDOW, (window + 1) * PER_WINDOW))
        found = watched.close(window)
        assert found.window == window
        frames = kept((*found.sample, *found.burst))
        assert frames
        assert all(frame // PER_WINDOW == window for frame in frames)


def test_the_new_windows_frames_do_not_leak_into_the_old_one_that_is_still_to_be_closed():
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


def test_a_frame_that_comes_after_its_window_costs_neither_window_anything():
    late, in_time = collector(), collector()
    watch(in_time, range(PER_WINDOW - 1))
    watch(in_time, range(PER_WINDOW, PER_WINDOW + 50))
    watch(late, range(PER_WINDOW - 1))
    watch(late, range(PER_WINDOW, PER_WINDOW + 20))
    assert not late.wants(frame_at(PER_WINDOW - 1).t_us)
    assert late.see(frame_at(PER_WINDOW - 1), Proposals(boxes_at(PER_WINDOW - 1))) is None
    watch(late, range(PER_WINDOW + 20, PER_WINDOW + 50))
    for window in range(2):
        expected, got = in_time.close(window), late.close(window)
        assert kept(got.sample) == kept(expected.sample) != []
        assert kept(got.burst) == kept(expected.burst)


def test_a_window_can_be_closed_twice_and_an_unknown_one_is_empty():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    assert kept(watched.close(0).sample) == kept(watched.close(0).sample) != []
    for window in (4, -1):
        nothing = watched.close(window)
        assert (nothing.window, nothing.sample, nothing.burst) == (window, (), ())


def test_a_window_without_frames_is_empty():
    watched = collector()
    watch(watched, range(PER_WINDOW))
    watch(watched, range(2 * PER_WINDOW, 2 * PER_WINDOW + 50))
    assert watched.close(1).sample == ()
    assert watched.close(2).sample != ()


def test_frames_that_never_came_are_replaced_by_the_next_that_did():
    watched = collector()
    watch(watched, [index for index in range(PER_WINDOW) if index % 10 >= 5])
    sample = kept(watched.close(0).sample)
    assert all(index % 10 >= 5 for index in sample)
    assert {index // 10 for index in sample} == set(range(10))


def test_one_frame_stands_for_a_gap_and_no_more():
    """The frames right after a gap do not replace those that are missing."""
    watched = collector()
    watch(watched, [index for index in range(PER_WINDOW) if not 20 <= index < 80])
    sample = kept(watched.close(0).sample)
    assert len(sample) <= 0.4 * SAMPLED_FRAMES + 2
    assert 80 in sample


def test_asking_for_another_window_costs_the_present_one_nothing():
    asked, left_alone = collector(), collector()
    for watched in (asked, left_alone):
        watch(watched, range(PER_WINDOW + 50))
    for window in (0, 7, -1):
        asked.close(window)
    for watched in (asked, left_alone):
        watch(watched, range(PER_WINDOW + 50, 2 * PER_WINDOW))
    assert kept(asked.close(1).sample) == kept(left_alone.close(1).sample)


def test_a_slow_camera_has_fewer_frames_than_parts_and_keeps_each_once():
    watched = collector(fps=2.0)
    for index in range(20):
        frame = Frame(index, index * 500_000, IMAGE, boxes_at(index))
        watched.see(frame, Proposals(boxes_at(index)))
    found = watched.close(0)
    sample = kept(found.sample)
    assert sample == sorted(set(sample))
    assert 10 <= len(sample) <= 20
    assert len(found.burst) == BURST_FRAMES


def test_only_the_sample_is_handed_back():
    watched = collector()
    handed = []
    for index in range(PER_WINDOW):
        frame = watched.see(frame_at(index), Proposals(boxes_at(index)))
        if frame is not None:
            handed.append(frame.frame)
    assert handed == kept(watched.close(0).sample)


def test_objects_keep_their_number_from_frame_to_frame():
    watched = collector()
    watch(watched, range(20), given=True)
    found = watched.close(0)
    assert {tuple(frame.tracks) for frame in found.sample} == {(0, 1, 2)}
    assert all((frame.boxes == boxes_at(frame.frame)).all() for frame in found.sample)


def test_mean_objects():
    assert material([1, 2, 3], [1]).mean_objects == 2.0
    assert material([], [], []).mean_objects == 1.0
    assert WindowMaterial(0, (), ()).mean_objects == 1.0


def test_a_picture_that_the_golden_network_has_seen_is_not_kept_and_its_crops_are():
    boxes = boxes_at(0)
    found = Detections(boxes, np.zeros(3, np.int64), np.ones(3, np.float32))
    kept = []
    for by in (found, None):
        watched = collector()
        every = [watched.see(frame_at(index), Proposals(boxes, by)) for index in range(PER_WINDOW)]
        kept.append(next(frame for frame in every if frame is not None))
    seen, unseen = kept
    assert (seen.image, seen.question.found) == (None, found)
    assert unseen.question.picture is IMAGE
    assert (seen.crops == crop_objects(IMAGE, boxes, SIDE)).all()
    assert (seen.take(np.array([2])).question.boxes == boxes[2]).all()


def test_what_was_kept_of_a_window_can_be_forgotten_and_the_next_one_is_not():
    watched = collector()
    watch(watched, range(2 * PER_WINDOW))
    watched.forget()
    forgotten = watched.close(0)
    assert (forgotten.window, forgotten.sample, forgotten.burst) == (0, (), ())
    assert kept(watched.close(1).sample) != []
