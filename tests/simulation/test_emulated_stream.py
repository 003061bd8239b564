"""Tests of a camera on virtual time: each frame is answered once, and the share limits the analysed ones."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.records import NOT_ANSWERED, FramePrediction
from ekya.core.units import ModelVersion
from ekya.models.golden.detections import Proposals
from ekya.pipeline.inference import Proposed
from ekya.simulation.emulated.stream import EmulatedStream
from ekya.streams.ingest.frame import Frame, Truth

PERIOD_US = 100_000
LOOK_GPU_S = 0.06
"""Cost of one object in one frame; every frame shows one object."""

PROPOSER_GPU_S = 0.01
IMAGE = np.zeros((4, 4, 3), np.uint8)
BOXES = np.array([[0, 0, 2, 2]], np.float32)
EVERY, FIFTH = InferenceConfig(1, 32), InferenceConfig(5, GOLDEN_RESOLUTION)

CARD = SimpleNamespace(
    frame_gpu_s=lambda objects, _resolution, operations: objects * LOOK_GPU_S + operations * PROPOSER_GPU_S,
    proposing_gpu_s=lambda operations: operations * PROPOSER_GPU_S,
)

CLASSIFIER = SimpleNamespace(predict=lambda crops, _resolution: None)


@dataclass
class Steps:
    """Fake steps that also collect: they want the boxes of some frames."""

    wanted: frozenset[int] = frozenset()
    answered_by: int = NOT_ANSWERED
    seen: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    operations: tuple[int, ...] = (1,)
    proposes_free: bool = False
    followed: list[int] = field(default_factory=list)

    def propose(self, frame):
        self.proposed.append(frame.index)
        operations = self.operations[frame.index % len(self.operations)]
        return Proposals(BOXES, count_operations=lambda: operations)

    def wants(self, t_us):
        return t_us // PERIOD_US in self.wanted

    @property
    def collector(self):
        return self

    def collect(self, frame, proposals):
        self.seen.append(frame.index)

    def cut(self, frame, boxes, _resolution):
        images = np.zeros((len(boxes), 2, 2, 3), np.uint8)
        return Proposed(frame.index, frame.t_us, boxes, images, (4, 4))

    def prediction_rows(self, frames, config, version, _answer):
        return [self._row(frame.frame, frame.t_us, True, frame.frame, config, version) for frame in frames]

    def answered(self, frame):
        self.answered_by = max(frame, self.answered_by)

    def ask_golden(self, frame, config, version):
        self.answered(frame.index)
        return self._row(frame.index, frame.t_us, True, frame.index, config, version)

    def follow(self, frame, config, version):
        if self.answered_by == NOT_ANSWERED:
            return None
        self.followed.append(frame.index)
        self.answered(frame.index)
        return self._row(frame.index, frame.t_us, False, frame.index, config, version), 2

    def skip(self, frame, t_us, config, version):
        return self._row(frame, t_us, False, self.answered_by, config, version)

    def _row(self, frame, t_us, analysed, answered_by, config, version):
        none = np.zeros(0, np.float32)
        return FramePrediction(
            frame,
            t_us,
            0,
            analysed,
            answered_by,
            version,
            config.every,
            config.resolution,
            none,
            none,
            none,
        )


def camera(count=40, given=True, steps=None):
    truth = Truth(BOXES, np.zeros(1, np.int64), np.zeros(1, np.int64))
    frames = [(Frame(at, at * PERIOD_US, IMAGE, BOXES if given else None), truth) for at in range(count)]
    steps = replace(steps or Steps(), proposes_free=given)
    return EmulatedStream(iter(frames), steps, CARD, None, lambda _model: CLASSIFIER, LOOK_GPU_S), steps


def costs_of(share_milli, operations):
    """Returns the GPU-seconds used by a camera without boxes, and the number of its analysed frames."""
    stream, _ = camera(given=False, steps=Steps(operations=operations))
    stream.configure(EVERY, share_milli, 0)
    looked = len(analysed(rows_after(stream)))
    return stream.used_gpu_s(), looked


def test_stream_cheaply_searched_frame_is_charged_less():
    used, looked = costs_of(1000, (3, 0))
    assert looked == 40
    assert used == pytest.approx(40 * LOOK_GPU_S + 20 * 3 * PROPOSER_GPU_S)


def test_stream_skipped_search_is_charged_to_next_analysed_frame():
    used, looked = costs_of(300, (4, 0))
    assert looked < 20
    assert used >= looked * (LOOK_GPU_S + 2 * PROPOSER_GPU_S)


def rows_after(stream, until=40):
    stream.advance(until * PERIOD_US)
    return stream.take_rows()[0]


def analysed(rows):
    return [row.frame for row in rows if row.analysed]


def test_stream_enough_share_analyses_every_frame_immediately():
    stream, _ = camera()
    stream.configure(EVERY, 1000, 0)
    rows = rows_after(stream)
    assert analysed(rows) == list(range(40))
    assert stream.used_gpu_s() == pytest.approx(40 * LOOK_GPU_S)
    assert stream.used_gpu_s() == 0.0


def test_stream_lambda_every_k_analyses_every_kth_frame():
    stream, _ = camera()
    stream.configure(InferenceConfig(5, 16), 1000, 0)
    rows = rows_after(stream)
    assert analysed(rows) == list(range(0, 40, 5))
    assert [row.answered_by for row in rows] == [at - at % 5 for at in range(40)]
    assert {(row.every, row.resolution) for row in rows} == {(5, 16)}


def test_stream_overloaded_analyses_newest_frame():
    """Analysing takes 2.5 frame periods: frame 0 begins at 0, frame 2 at 2.5, then the newest each time."""
    stream, _ = camera(12)
    stream.configure(EVERY, 240, 0)
    rows = rows_after(stream, 12)
    assert analysed(rows) == [0, 2, 4, 7, 9]
    # Frames that arrive during an analysis are answered by that analysis.
    assert [row.answered_by for row in rows] == [0, 0, 2, 2, 4, 4, 4, 7, 7, 9, 9, 9]


@st.composite
def histories(draw):
    """Draws changes of share and λ at some times."""
    times = sorted(draw(st.lists(st.integers(0, 3_900_000), max_size=4)))
    return [
        (
            t_us,
            InferenceConfig(draw(st.sampled_from([1, 2, 5])), 32),
            draw(st.sampled_from([0, 100, 300, 1000])),
        )
        for t_us in [0, *times]
    ]


def play(history, cuts=(), given=True, wanted=frozenset()):
    stream, steps = camera(given=given, steps=Steps(wanted))
    for t_us, config, share_milli in history:
        for cut in cuts:
            if cut <= t_us:
                stream.advance(cut)
        stream.configure(config, share_milli, t_us)
    for cut in cuts:
        stream.advance(max(cut, history[-1][0]))
    stream.advance(40 * PERIOD_US)
    return stream, steps, *stream.take_rows()


@settings(max_examples=60)
@given(histories(), st.booleans())
def test_stream_every_frame_has_one_row_with_earlier_answer(history, given_boxes):
    stream, _, rows, references = play(history, given=given_boxes)
    assert stream.ended
    assert [row.frame for row in rows] == [one.frame for one in references] == list(range(40))
    assert stream.arrived == 40
    looked_at = set(analysed(rows))
    for row in rows:
        if row.analysed:
            assert row.answered_by == row.frame
        else:
            assert row.answered_by < row.frame
            assert row.answered_by == NOT_ANSWERED or row.answered_by in looked_at
    answers = [row.answered_by for row in rows if not row.analysed]
    assert answers == sorted(answers)


def told(rows):
    return [(row.frame, row.analysed, row.answered_by, row.every) for row in rows]


@settings(max_examples=40)
@given(histories(), st.lists(st.integers(0, 3_900_000), max_size=5).map(sorted))
def test_stream_advance_in_parts_gives_same_rows(history, cuts):
    once, in_pieces = play(history), play(history, cuts)
    assert told(once[2]) == told(in_pieces[2])
    assert once[0].used_gpu_s() == pytest.approx(in_pieces[0].used_gpu_s())


@settings(max_examples=30)
@given(st.integers(1, 1000), st.integers(1, 1000), st.sampled_from([1, 2, 5]))
def test_stream_lower_share_analyses_fewer_frames(a, b, every):
    low, high = sorted((a, b))
    config = InferenceConfig(every, 32)
    fewer, more = (len(analysed(play([(0, config, share)])[2])) for share in (low, high))
    assert fewer <= more
    assert fewer <= 1 + low / 1000 * 4.0 / LOOK_GPU_S


def test_stream_without_share_waits_for_one():
    stream, _ = camera()
    stream.configure(EVERY, 0, 0)
    stream.configure(EVERY, 1000, 10 * PERIOD_US + 50_000)
    rows = rows_after(stream)
    assert analysed(rows) == list(range(10, 40))
    assert all(row.answered_by == NOT_ANSWERED for row in rows[:10])
    # Frame 10 has waited; its analysis begins with the share and ends after frame 11 has arrived.
    assert rows[10].answered_by == 10


def test_stream_analysis_in_progress_keeps_its_share():
    """Analysing frame 0 takes 6 frame periods at a tenth of the GPU, although the share grows meanwhile."""
    stream, _ = camera(10)
    stream.configure(EVERY, 100, 0)
    stream.configure(EVERY, 1000, PERIOD_US)
    assert analysed(rows_after(stream, 10)) == [0, 5, 6, 7, 8, 9]


def test_stream_new_lambda_holds_from_its_time_on():
    stream, _ = camera(12)
    stream.configure(EVERY, 1000, 0)
    stream.configure(InferenceConfig(4, 16), 1000, 5 * PERIOD_US)
    rows = rows_after(stream, 12)
    assert analysed(rows) == [0, 1, 2, 3, 4, 8]
    assert [row.resolution for row in rows] == [32] * 5 + [16] * 7


def test_stream_new_weights_answer_from_next_analysis_on():
    stream, _ = camera(10)
    stream.configure(EVERY, 1000, 0)
    stream.swap(None, ModelVersion(1), 5 * PERIOD_US + 1)
    assert [row.model_version for row in rows_after(stream, 10)] == [0] * 6 + [1] * 4


def test_stream_searched_boxes_are_found_once_and_charged():
    """Boxes of wanted frames are found on arrival, those of other frames when they are analysed."""
    stream, steps, rows, _ = play([(0, InferenceConfig(5, 32), 1000)], given=False, wanted=frozenset({3, 5}))
    assert analysed(rows) == list(range(0, 40, 5))
    assert steps.proposed == [0, 3, 5, 10, 15, 20, 25, 30, 35]
    assert steps.seen == steps.proposed
    assert stream.used_gpu_s() == pytest.approx(8 * LOOK_GPU_S + 9 * PROPOSER_GPU_S)


@settings(max_examples=40)
@given(histories(), st.frozensets(st.integers(0, 39)))
def test_stream_searches_run_in_frame_order_and_are_charged(history, wanted):
    """Analysing takes longer than a frame period: a frame can still wait when the next wanted one comes."""
    stream, steps, rows, _ = play(history, given=False, wanted=wanted)
    assert steps.seen == steps.proposed == sorted(set(steps.proposed))
    looks = analysed(rows)
    assert wanted | set(looks) <= set(steps.seen)
    expected = len(looks) * LOOK_GPU_S + len(wanted | set(looks)) * PROPOSER_GPU_S
    assert stream.used_gpu_s() == pytest.approx(expected)


def test_stream_collected_frames_do_not_depend_on_share():
    wanted = frozenset(range(0, 40, 3))
    for share_milli in (0, 50, 1000):
        _, steps, _, _ = play([(0, EVERY, share_milli)], given=False, wanted=wanted)
        assert wanted <= set(steps.seen)
        assert len(steps.seen) == len(set(steps.seen))


def following(*history):
    """Plays a camera of a golden detector with followed boxes; returns its GPU-seconds, steps and rows."""
    stream, steps = camera(20)
    for t_us, config, share_milli in history:
        stream.configure(config, share_milli, t_us)
    rows = rows_after(stream, 20)
    return stream.used_gpu_s(), steps, rows


def test_stream_follows_boxes_into_the_frames_that_lambda_skips():
    used_gpu_s, _, rows = following((0, FIFTH, 1000))
    assert analysed(rows) == [0, 5, 10, 15]
    assert [row.answered_by for row in rows] == list(range(20))
    assert used_gpu_s == pytest.approx(4 * LOOK_GPU_S + 16 * 2 * PROPOSER_GPU_S)


def test_stream_busy_with_an_analysis_follows_into_the_newest_frame_after_it():
    """An analysis takes 2.4 frame periods at a quarter of the GPU, and following 0.8."""
    _, steps, rows = following((0, FIFTH, 250))
    assert analysed(rows) == [0, 5, 10, 15]
    assert steps.followed == [2, 3, 4, 7, 8, 9, 12, 13, 14, 17, 18, 19]
    assert [row.answered_by for row in rows][:8] == [0, 0, 2, 3, 4, 5, 5, 7]


def test_stream_overloaded_or_without_a_share_follows_nothing():
    """Frame 5 waits behind the analysis of frame 0, which takes 12 periods; then there is no share."""
    _, steps, rows = following((0, FIFTH, 50), (11 * PERIOD_US, FIFTH, 0))
    assert analysed(rows) == [0]
    assert steps.followed == []
    assert {row.answered_by for row in rows} == {0}
