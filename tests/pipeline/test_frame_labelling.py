"""Tests of labelling whole frames for an edge model that detects."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from bright import FLEET, SIZE, BrightDetector, kept, serving_detector
from hypothesis import given
from hypothesis import strategies as st
from street import t_us

from ekya.core.areas import Areas
from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.objects import DOUBTFUL
from ekya.core.units import StreamId
from ekya.models.edge.architecture_table import Task
from ekya.models.golden.detections import Detections, GoldenObjects, no_detections
from ekya.models.golden.golden_from_detections import detector_model
from ekya.models.golden.golden_model import open_golden
from ekya.models.golden.label_file import LabelHead, LabelTable
from ekya.models.golden.spec import GoldenSpec
from ekya.pipeline.collector import WindowMaterial, spread
from ekya.pipeline.device_scopes import DeviceScopes
from ekya.pipeline.frame_labelling import SPANS
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.inference import judged_by
from ekya.pipeline.labelling import SAMPLE_PART
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation
from ekya.pipeline.window_preparation import profile_inference
from ekya.planning.adaptation.shadow_gate import LEAST_OBJECTS
from ekya.streams.ingest.motion import BoxFlow

SIDE = 96
FRAME_GPU_S = 0.01
GOLDEN = detector_model(FLEET, BrightDetector(), 0.4, names_boxes=False)
CAR, PERSON, HALF = (
    (12, 8, 60, 40, "car", 0.9),
    (78, 50, 108, 72, "person", 0.6),
    (80, 5, 104, 30, "car", 0.3),
)
TINY = (78, 50, 86, 56, "person", 0.9)


def prepared(sample, burst=(), golden=GOLDEN, serving=None, earlier=None, gpu_s=None, frames=24):
    limits = PreparationSettings(
        FLEET,
        SIDE,
        10.0,
        96,
        3,
        task=Task.DETECT,
        frames_per_window=frames,
        label_gpu_s=gpu_s,
        roll_back_margin=0.1,
    )
    return StreamPreparation(
        limits,
        WindowMaterial(2, tuple(sample), tuple(burst)),
        serving or serving_detector(),
        golden,
        golden_gpu_s=lambda questions: FRAME_GPU_S * len(questions),
        earlier=earlier,
    )


def street(count, *objects):
    return [kept(2 * at, *objects) for at in range(count)]


@given(st.integers(0, 60), st.data())
def test_spread_takes_distinct_frames_at_equal_distances(count, data):
    wanted = data.draw(st.integers(0, count))
    taken = spread(list(range(count)), wanted)
    assert len(set(taken)) == len(taken) == wanted
    assert taken == sorted(taken)
    if wanted:
        assert taken[-1] == count - 1
    if wanted > 1:
        assert taken[0] == 0
        assert np.ptp(np.diff(taken)) <= 1


def test_select_asks_for_as_many_frames_as_allowed():
    asked = prepared(street(30, CAR), frames=6).select()
    assert [frame.frame for frame in asked.frames] == [0, 12, 24, 34, 46, 58]
    assert len(asked.questions) == 6
    assert len(prepared(street(4, CAR)).select().frames) == 4
    assert prepared([]).select().questions == []


@pytest.mark.parametrize("frames", [4, 12])
def test_answers_of_inference_are_labels_at_no_cost(frames):
    nowhere = np.zeros((0, 4), np.float32)
    answer = GoldenObjects(np.array([[10, 10, 30, 30]], np.float32), np.ones(1, np.int64), nowhere)
    sample = [replace(one, answer=answer) if at % 5 == 0 else one for at, one in enumerate(street(30, CAR))]
    given = prepared(sample, frames=frames)
    asked = given.select()
    order = [frame.frame for frame in asked.frames]
    assert order == sorted(order)
    assert sum(frame.answer is not None for frame in asked.frames) == 6
    assert len(asked.questions) == len(order) - 6 == max(frames - 6, 0)
    assert prepared(sample, frames=frames, gpu_s=0.0).select().questions == [], "no budget is needed"
    classes = [of.classes.tolist() for of in given.label(asked).examples.objects]
    assert classes == [[1] if frame.answer is not None else [0] for frame in asked.frames]


def test_labels_are_fractions_with_position_and_time():
    labels = prepared(street(16, CAR, PERSON)).label()
    assert labels.window == 2
    for part in (labels.training, labels.validation):
        examples = part.examples
        assert len(examples) == len(part.frames) > 0
        assert examples.images.shape == (len(examples), SIDE, SIDE, 3)
        assert examples.names == FLEET
        assert examples.t_us.tolist() == [t_us(frame) for frame in part.frames]
        assert part.boxes.tolist() == [[0, 0, *SIZE]] * len(examples)
        for of in examples.objects:
            assert of.classes.tolist() == [0, 1]
            assert of.boxes == pytest.approx(np.array([CAR[:4], PERSON[:4]]) / np.tile(SIZE, 2), abs=1e-6)


def test_labels_split_by_track_and_the_youngest_validate():
    labels = prepared(street(48, CAR), frames=48).label()
    training, validation = labels.training.examples, labels.validation.examples
    tracks = [*training.tracks.tolist(), *validation.tracks.tolist()]
    assert sorted(set(tracks)) == [2 * SPANS + at for at in range(SPANS)]
    assert not set(training.tracks) & set(validation.tracks)
    assert training.t_us.max() < validation.t_us.min()
    assert 0.1 <= len(validation) / 48 <= 0.3
    assert labels.can_train


def test_empty_frames_are_labelled_and_train():
    sample = [kept(2 * at, *([CAR] if at % 2 else [])) for at in range(24)]
    labels = prepared(sample).label()
    counts = labels.training.examples.objects_in_each()
    assert 0 in counts
    assert 1 in counts
    assert len(labels.training.examples) + len(labels.validation.examples) == 24
    boxes, classes = labels.training.objects()
    assert len(classes) == len(boxes.frame) == len(labels.training.frames)
    assert [boxes.boxes[row].tolist() for row in np.flatnonzero(classes == DOUBTFUL)] == [[0] * 4] * sum(
        counts == 0
    )


def test_empty_street_cannot_train():
    labels = prepared(street(24)).label()
    assert (len(labels.training.examples), len(labels.validation.examples)) == (24, 0)
    assert not labels.can_train


def test_doubtful_boxes_are_no_objects():
    labels = prepared(street(16, CAR, HALF)).label()
    for of in labels.training.examples.objects:
        assert of.classes.tolist() == [0]
        assert of.doubtful == pytest.approx(np.array([HALF[:4]]) / np.tile(SIZE, 2), abs=1e-6)
    assert labels.histogram(len(FLEET), None) == (16, 0)


def test_masked_objects_are_neither_labels_nor_background_nor_mistakes():
    """The student finds cars and persons; of a mask over the right half, no person counts."""
    right = Areas(mask=(((0.5, 0.0), (1.0, 0.0), (1.0, 1.0), (0.5, 1.0)),))
    street = [replace(kept(2 * at, CAR, PERSON), areas=right) for at in range(24)]
    labels = prepared(street).label()
    for of in labels.examples.objects:
        assert of.classes.tolist() == [0]
        assert of.doubtful == pytest.approx(np.array([PERSON[:4]]) / np.tile(SIZE, 2), abs=1e-6)
    # What the golden detector does not see there is no mistake, either.
    unseen = tuple(replace(of, doubtful=of.doubtful[:0]) for of in labels.examples.objects)
    judged = judged_by(serving_detector(), replace(labels.examples, objects=unseen))
    assert (judged.correct.tolist(), judged.counted.tolist()) == ([2.0] * 24, [2.0] * 24)


def written(folder, frames, size):
    """Returns a golden model of a file that labels some frames with a car in the middle half of them."""
    width, height = size
    box = np.array([[width / 4, height / 4, 3 * width / 4, 3 * height / 4]], np.float32)
    found = Detections(box, np.zeros(1, np.int64), np.array([0.8], np.float32))
    path = folder / "labels.parquet"
    LabelTable(
        LabelHead(by="x", names=FLEET, finds=True), {StreamId("cam"): dict.fromkeys(frames, found)}
    ).save_table(path)
    return open_golden(GoldenSpec(model="file", weights=path), FLEET, Task.DETECT)


def test_frames_that_the_golden_model_never_saw_are_left_out(tmp_path):
    golden = written(tmp_path, [4, 8, 20, 28], SIZE)
    one = prepared(street(16, CAR), [kept(at, CAR) for at in range(3, 6)], golden)
    labels = one.label()
    assert sorted([*labels.training.frames, *labels.validation.frames]) == [4, 8, 20, 28]
    assert len(one.burst([InferenceConfig(1, SIDE)])) == 1
    unseen = prepared(street(16, CAR), street(3, CAR), written(tmp_path, [99], SIZE))
    assert len(unseen.label().training.examples) == 0
    assert unseen.burst([InferenceConfig(1, SIDE)]) == []


@pytest.mark.parametrize("source", ["file", "detector"])
def test_labels_of_large_frames_are_fractions_of_the_frame(source, tmp_path):
    """A large frame is kept as a smaller copy, and a file has its labels in pixels of the frame."""
    size = (1280, 720)
    sample = [kept(at, (320, 180, 960, 540, "car", 0.8), size=size) for at in range(16)]
    golden = written(tmp_path, range(16), size) if source == "file" else GOLDEN
    training = prepared(sample, golden=MeteredGolden(golden, lambda: 0.0)).label().training
    for of in training.examples.objects:
        assert of.boxes == pytest.approx(np.array([[0.25, 0.25, 0.75, 0.75]]), abs=0.01)
    boxes, _ = training.objects()
    assert boxes.boxes[0] == pytest.approx([320, 180, 960, 540], abs=8)


@pytest.mark.parametrize(("gpu_s", "labelled"), [(0.08, 6), (0.2, 15), (9.0, 24)])
def test_budget_is_divided_between_sample_and_burst(gpu_s, labelled):
    one = prepared(street(48, CAR), [kept(at, CAR) for at in range(11)], gpu_s=gpu_s)
    assert len(one.select().questions) == labelled
    assert len(one.burst_questions()) == min(6, int((1 - SAMPLE_PART) * gpu_s / FRAME_GPU_S))
    assert len(one.burst([InferenceConfig(1, SIDE)])) == len(one.burst_questions())


def test_budget_too_small_logs_a_warning(caplog):
    assert prepared(street(9, CAR), gpu_s=0.001).select().questions == []
    assert "golden.gpu_s_per_window allows no label" in caplog.text
    caplog.clear()
    prepared([], gpu_s=0.001).select()
    assert caplog.text == ""


def test_burst_counts_the_same_answers_at_each_resolution():
    """A person of a few pixels is seen at the finest resolution only."""
    entered = []

    @contextmanager
    def scope():
        entered.append(1)
        yield

    burst = [kept(at, CAR, TINY) for at in (0, 2, 3, 4)]
    frames = prepared([], burst).burst(
        [InferenceConfig(1, SIDE), InferenceConfig(5, 64)], DeviceScopes(scope=scope)
    )
    assert len(frames) == 3, "the longest run"
    for frame in frames:
        assert frame.labels.tolist() == [0, 1]
        assert frame.boxes == pytest.approx(np.array([CAR[:4], TINY[:4]]))
        assert frame.alike == {SIDE: (4, 4), 64: (2, 3)}
    assert len(entered) == 1 + 2 * 3
    one = prepared([], burst)
    assert one.images_in(frames) == 3
    configs = [InferenceConfig(1, SIDE), InferenceConfig(1, 64)]
    (fine, coarse), work = profile_inference(one, configs, lambda *_: ({SIDE: 0.01, 64: 0.005}, {}))
    assert sorted(work.images) == [(3, 64), (3, SIDE)]
    assert fine.relative_accuracy == pytest.approx(1.0)
    assert coarse.relative_accuracy < 0.8


def test_burst_follows_objects_into_as_many_frames_as_lambdas_of_the_golden_detector_skip():
    one = prepared([], [kept(at, CAR, PERSON) for at in range(5)])
    frames = one.burst([InferenceConfig(5, SIDE), InferenceConfig(3, GOLDEN_RESOLUTION)])
    assert [len(frame.followed) for frame in frames] == [2, 2, 2, 1, 0]
    assert set(frames[0].alike) == {SIDE}
    for frame in frames:
        for boxes, labels in frame.followed:
            assert boxes == pytest.approx(frame.boxes, abs=0.5)
            assert labels.tolist() == [0, 1]
    assert one.flow_operations(frames) == 7 * BoxFlow().count_operations((80, 120, 3), 2)


def test_burst_without_frames_is_empty():
    assert prepared([]).burst([InferenceConfig(1, SIDE)]) == []
    (frame,) = prepared([], [kept(0)]).burst([InferenceConfig(1, SIDE)])
    assert (len(frame.labels), frame.alike) == (0, {SIDE: (0, 0)})


def moving(count):
    """Frames in which each car is another one."""
    return [kept(2 * at, (2 + 50 * (at % 2), 8, 40 + 50 * (at % 2), 40, "car", 0.9)) for at in range(count)]


def test_serving_accuracy_is_f1_on_the_validation_part():
    labels = prepared(street(24, CAR, PERSON)).label()
    assert prepared([]).serving_accuracy(labels) == 1.0
    assert prepared([], serving=serving_detector(("car",))).serving_accuracy(labels) == pytest.approx(2 / 3)
    assert prepared([]).serving_accuracy(prepared([]).label()) == 0.0


def test_compare_needs_different_objects():
    blind = serving_detector(())
    one = prepared(moving(24), serving=blind, earlier=serving_detector())
    compared = one.compare(one.label())
    assert (compared.new, compared.old, compared.objects) == (0.0, 1.0, 24)
    assert one.after_rollback(compared).serving is one.earlier
    parked = prepared(street(24, CAR), serving=blind, earlier=serving_detector())
    assert parked.compare(parked.label()) is None, f"one object, and not {LEAST_OBJECTS}"


def test_objects_that_stay_in_place_are_compared_as_one():
    """Of 24 frames with four parked cars, which are replaced twice, twelve cars are seen."""
    sample = [
        kept(
            2 * at,
            *(
                (30 * lane, 5 + 25 * (at // 8), 30 * lane + 20, 20 + 25 * (at // 8), "car", 0.9)
                for lane in range(4)
            ),
        )
        for at in range(24)
    ]
    one = prepared(sample, serving=serving_detector(()), earlier=serving_detector())
    labels = one.label()
    assert labels.objects_in_frames == 96
    compared = one.compare(labels)
    assert compared.objects == 12
    assert one.compared_images(labels, compared) == 24


def test_outputs_of_a_detector_stay():
    one = prepared(street(24, CAR, PERSON))
    assert one.outputs(one.label()) == one.model.classes


@pytest.fixture
def blind_golden():
    """A golden detector that finds nothing."""
    source = BrightDetector()
    source.detect_objects = lambda _image: no_detections()
    return detector_model(FLEET, source, 0.4, names_boxes=False)


def test_doubt_where_only_the_student_sees_names_both_counts(blind_golden):
    one = prepared(moving(24), golden=blind_golden)
    warning = one.check_teacher(one.label())
    assert "first 24 labelled frames the golden detector finds 0 objects, and misses 24" in warning
    assert "\n" not in warning


def test_doubt_of_one_object_that_stays_is_none(blind_golden):
    """A box that is always there may be wrong in every frame."""
    one = prepared(street(24, CAR), golden=blind_golden)
    assert one.check_teacher(one.label()) is None


def test_doubt_where_something_moves_and_the_golden_detector_sees_nothing(blind_golden):
    sample = [kept(2 * at, (2 + 50 * (at % 2), 8, 40 + 50 * (at % 2), 40, "car", 0.55)) for at in range(24)]
    one = prepared(sample, golden=blind_golden)
    warning = one.check_teacher(one.label())
    assert "first 24 labelled frames, in which up to " in warning
    assert "finds nothing; " in warning
    assert "golden.layout" in warning
    assert "\n" not in warning


def test_doubt_of_doubtful_boxes_is_none():
    """Boxes that the golden detector half believes in, it has not missed."""
    hesitant = detector_model(FLEET, BrightDetector(), 0.95, names_boxes=False)
    one = prepared(moving(24), golden=hesitant)
    assert one.label().objects_in_frames == 0
    assert one.check_teacher(one.label()) is None


@pytest.mark.parametrize("sees", [(), ("car",), ("car", "person", "kite")])
def test_doubt_of_a_golden_detector_that_sees_as_much_is_none(sees):
    one = prepared(moving(24), serving=serving_detector(sees))
    assert one.check_teacher(one.label()) is None
    empty = prepared([])
    assert empty.check_teacher(empty.label()) is None
