"""Tests of translating classes between fleet and model, of runs of frames, and of a device's cost card."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from street import collected

from ekya.core.configs import RetrainConfig
from ekya.core.errors import UserError
from ekya.core.profile import Family, FamilyCurve
from ekya.core.units import StreamId
from ekya.core.weights import Compared, SceneOf
from ekya.models.edge.model import build_edge_model
from ekya.models.training.exemplars import ExemplarMemory
from ekya.models.training.labelled import LabelledCrops
from ekya.models.training.microprofile import SUBSET_EPOCHS
from ekya.models.training.operations import RetrainingCost, forward_operations
from ekya.pipeline.costs import CostCard, EdgeRates, load_card, price_by
from ekya.pipeline.crop_labelling import longest_run
from ekya.pipeline.gpu_facts import speed_by_card
from ekya.pipeline.labels import LabelledPart, LabelPool, StreamLabels
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import (
    StreamPreparation,
    counted_curve,
    data_of,
    in_classes,
    memory_in_classes,
    outputs_of,
)

FLEET = ("person", "car", "truck", "bus")


def crops_of(*classes):
    count = len(classes)
    order = np.arange(count, dtype=np.int64)
    pictures = np.full((count, 4, 4, 3), 7, np.uint8)
    return LabelledCrops(pictures, np.array(classes, np.int64), order + 50, order * 1000)


def labels_of(training, validation):
    parts = [
        LabelledPart(crops_of(*of), np.zeros(len(of), np.int64), np.zeros((len(of), 4), np.float32))
        for of in (training, validation)
    ]
    return StreamLabels(1, *parts)


def test_in_classes_translates_labels_by_name():
    ours = in_classes(crops_of(0, 1, 3, 1), ("bus", "car", "person"), FLEET)
    assert ours.classes.tolist() == [2, 1, 0, 1]
    assert ours.classes.dtype == np.int64
    assert ours.tracks.tolist() == [50, 51, 52, 53]


def test_in_classes_marks_unknown_classes():
    assert in_classes(crops_of(2, 1), ("car",), FLEET).classes.tolist() == [-1, 0]


def test_memory_in_classes_translates_labels():
    memory = ExemplarMemory(9, crops_of(3, 0))
    ours = memory_in_classes(memory, ("bus", "person"), FLEET)
    assert ours.budget == 9
    assert ours.exemplars().classes.tolist() == [0, 1]
    assert memory.exemplars().classes.tolist() == [3, 0]
    empty = ExemplarMemory(9)
    assert memory_in_classes(empty, ("bus",), FLEET) is empty


def test_memory_in_classes_drops_untrained_classes():
    memory = ExemplarMemory(9, crops_of(3, 0, 2, 0))
    ours = memory_in_classes(memory, ("car", "person"), FLEET).exemplars()
    assert ours.classes.tolist() == [1, 1]
    assert ours.tracks.tolist() == [51, 53]
    assert len(memory_in_classes(memory, ("car",), FLEET).exemplars()) == 0


def test_outputs_of_appends_new_classes_in_the_fleets_order():
    model = SimpleNamespace(classes=("truck", "person"), detector=None)
    assert outputs_of(model, labels_of([0, 3], [1, 2]), FLEET) == ("truck", "person", "car", "bus")
    assert outputs_of(model, labels_of([0], []), FLEET) == ("truck", "person")
    assert outputs_of(model, labels_of([], []), FLEET) == ("truck", "person")


@pytest.mark.parametrize(
    ("frames", "longest"),
    [
        ([], []),
        ([4], [4]),
        ([4, 5, 6], [4, 5, 6]),
        ([4, 5, 7, 8, 9, 12], [7, 8, 9]),
        ([1, 2, 4, 5], [1, 2]),
        ([1, 3, 5], [1]),
    ],
)
def test_longest_run_has_no_gap_and_is_the_first_of_equals(frames, longest):
    assert [frame.frame for frame in longest_run([collected(index, [1]) for index in frames])] == longest


CARD = CostCard("a device", 1e9, 2e9, 4e9, 0.25, 1e9, 1e9, 10)


def test_counted_curve_takes_times_from_the_card():
    measured = FamilyCurve(16, 0, 1, 64, (0.4, 0.5, 0.6, 0.6), epoch_gpu_s=99.0, prepare_gpu_s=99.0)

    def priced(curve, price):
        prepare_gpu_s, epoch_gpu_s = price(RetrainingCost(preparation=6 * 10**9, epoch=12 * 10**9, steps=2))
        return replace(curve, prepare_gpu_s=prepare_gpu_s, epoch_gpu_s=epoch_gpu_s)

    cost = RetrainingCost(preparation=4 * 10**9, epoch=8 * 10**9, steps=4)
    trial = SimpleNamespace(cost=lambda: cost, run=lambda: measured, priced=priced)
    curve, gpu_s = counted_curve(trial, CARD)
    assert curve == replace(measured, prepare_gpu_s=3.0, epoch_gpu_s=3.5)
    assert gpu_s == 2.0 + SUBSET_EPOCHS * 3.0


@pytest.fixture(scope="module")
def family_costs():
    """Family costs: operations are counted on the real model, built once for each family."""
    shapes = [(0, 0), (1, 0), (2, 0), (1, 64)]
    configs = [RetrainConfig(3, 16, head, blocks, 1.0) for blocks, head in shapes]
    return CARD.family_costs([*configs, *configs], 16)


def test_price_by_a_measured_cost_is_the_card_s(family_costs):
    """Steps cost nothing on this card, so that GPU-seconds are in proportion to operations."""
    card = replace(CARD, training_step_s=0.0)
    counted = RetrainingCost(preparation=6 * 10**9, epoch=12 * 10**9, steps=2)
    for cost in card.family_costs([RetrainConfig(3, 16, 0, 1, 1.0)], 16):
        assert price_by(cost, 16, "resnet18")(counted) == pytest.approx(card.retraining_gpu_s(counted))


def test_card_family_costs_grow_with_blocks_and_width(family_costs):
    costs = {cost.family: cost for cost in family_costs}
    assert list(costs) == [Family(0, 0, 16), Family(1, 0, 16), Family(1, 64, 16), Family(2, 0, 16)]
    head_only, one, wide, two = (cost.epoch_gpu_s for cost in costs.values())
    assert 0.0 < head_only < one < two
    assert one < wide < two
    assert all(cost.prepare_gpu_s > 0.0 for cost in costs.values())


def test_card_of_faster_device_costs_less(family_costs):
    slow = family_costs[1]
    config = [RetrainConfig(3, 16, 0, 1, 1.0)]
    card = replace(CARD, training_ops_per_s=8e9, training_step_s=0.125, batch_inference_ops_per_s=4e9)
    (fast,) = card.family_costs(config, 16)
    assert fast.epoch_gpu_s == pytest.approx(slow.epoch_gpu_s / 2)
    assert fast.prepare_gpu_s == pytest.approx(slow.prepare_gpu_s / 2)


def test_card_frame_cost_is_of_objects_and_proposer():
    one = CARD.frame_gpu_s(1, 16)
    assert CARD.frame_gpu_s(6, 16) == pytest.approx(6 * one)
    assert CARD.frame_gpu_s(1, 32) > 2 * one
    assert CARD.frame_gpu_s(0, 16, 5_000_000_000) == 5.0


def test_card_frame_cost_of_a_detector_is_of_the_frame():
    card = load_card().of("fastestdet")
    assert card.frame_gpu_s(0.0, 352) == card.frame_gpu_s(9.0, 352) > card.frame_gpu_s(9.0, 160) > 0
    assert card.frame_gpu_s(1.0, 352) == pytest.approx(0.0057, rel=0.02)


def test_card_labelling_by_detector_has_its_own_rate():
    card = replace(CARD, golden_ops_per_s=4e9)
    assert card.labelling_gpu_s(8_000_000_000, detector=False) == 2.0
    assert card.labelling_gpu_s(8_000_000_000, detector=True) == 8.0


def test_card_round_trip_is_identical(tmp_path):
    CARD.save(tmp_path / "card.json")
    assert load_card(tmp_path / "card.json") == CARD


def test_card_of_other_model_has_its_own_rates(tmp_path):
    rates = EdgeRates(2e9, 4e9, 8e9, 0.5)
    card = replace(CARD, others={"mobilenet_v3_small": rates})
    card.save(tmp_path / "card.json")
    small = load_card(tmp_path / "card.json").of("mobilenet_v3_small")
    operations = forward_operations(32, architecture="mobilenet_v3_small")
    assert small.frame_gpu_s(3, 32) == pytest.approx(3 * operations / 2e9)
    assert small.forward_gpu_s(3, 32) == pytest.approx(3 * operations / 4e9)
    assert small.retraining_gpu_s(RetrainingCost(preparation=4, epoch=16, steps=2)) == (1e-9, 2e-9 + 1.0)
    assert card.of("resnet18") == card
    unmeasured = card.of("efficientnet_b0")
    assert (unmeasured.architecture, unmeasured.inference_ops_per_s) == ("efficientnet_b0", 1e9)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"device": "x"}', "not json"])
def test_card_of_other_content_is_refused(tmp_path, content):
    path = tmp_path / "card.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"card\.json"):
        load_card(path)


def test_card_with_surplus_key_is_refused(tmp_path):
    CARD.save(tmp_path / "card.json")
    values = json.loads((tmp_path / "card.json").read_text()) | {"speed": 1}
    (tmp_path / "card.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="speed: "):
        load_card(tmp_path / "card.json")


def test_card_shipped_can_be_loaded():
    card = load_card()
    assert min(card.inference_ops_per_s, card.training_ops_per_s, card.golden_ops_per_s) > 1e8


def test_card_step_has_a_fixed_cost():
    assert CARD.retraining_gpu_s(RetrainingCost(preparation=0, epoch=0, steps=3)) == (0.0, 0.75)


class Says:
    """Classifier that always gives the same answer."""

    def __init__(self, index):
        self.index, self.asked = index, 0

    def predict(self, crops, _resolution):
        self.asked += len(crops)
        return np.full(len(crops), self.index, np.int64), np.ones(len(crops), np.float32)


def prepared(serving, earlier, background=None, margin=0.1):
    settings = PreparationSettings(FLEET, 4, 10.0, 40, 1, roll_back_margin=margin)
    golden = SimpleNamespace(background=background)
    return StreamPreparation(settings, None, Says(serving), golden, earlier=earlier)


MOSTLY_CARS = labels_of([1] * 7 + [0], [1, 1])


def test_compare_uses_one_picture_of_each_object_only():
    earlier = Says(1)
    stream = prepared(0, earlier)
    assert stream.compare(MOSTLY_CARS) == Compared(1 / 8, 7 / 8, 8)
    assert earlier.asked == stream.serving.asked
    people = labels_of([0] * 9 + [1], [0, 1])
    assert prepared(0, Says(1), background=1).compare(people) == Compared(1.0, 0.0, 9)


@pytest.mark.parametrize(
    ("earlier", "labels", "margin"),
    [
        (None, MOSTLY_CARS, 0.1),
        (Says(1), MOSTLY_CARS, 1.0),
        (Says(1), labels_of([1] * 7, [1]), 0.1),
        (Says(1), labels_of([], []), 0.1),
    ],
    ids=["the same weights", "never back", "few objects", "no labels"],
)
def test_compare_without_possible_roll_back_is_none(earlier, labels, margin):
    stream = prepared(0, earlier, margin=margin)
    assert stream.compare(labels) is None
    assert stream.after_rollback(None) is stream
    assert stream.serving.asked == (earlier.asked if earlier else 0) == 0


def test_settled_continues_with_the_weights_to_serve():
    stream = prepared(0, Says(1))
    assert stream.after_rollback(Compared(0.3, 0.9, 20)).serving is stream.earlier
    assert stream.after_rollback(Compared(0.85, 0.9, 20)) is stream
    assert stream.after_rollback(Compared(0.3, 0.9, 2)) is stream


# Data of a retraining that learns from other labels too


A, B = StreamId("a"), StreamId("b")
POOLING = ("car", "bus", "truck")


def part(classes, first):
    """Returns different crops of one object each, numbered from ``first``."""
    count = len(classes)
    pictures = np.arange(first, first + count, dtype=np.uint8)[:, None, None, None] * np.ones(
        (4, 4, 3), np.uint8
    )
    crops = LabelledCrops(
        pictures, np.array(classes, np.int64), np.arange(count) + first, np.zeros(count, np.int64)
    )
    return LabelledPart(crops, np.zeros(count, np.int64), np.zeros((count, 4), np.float32))


@pytest.fixture(scope="module")
def model():
    return build_edge_model(POOLING[:2], 0, 3, "shufflenet_v2_x1_0")


@pytest.fixture
def labels():
    """Labels of ``a`` with those of ``b``, which alone validates on a truck."""
    pool = LabelPool()
    pool.add(A, StreamLabels(1, part([0, 0, 1], 10), part([0, 1], 20)))
    pool.add(B, StreamLabels(1, part([0, 1, 1], 30), part([1, 2], 40)))
    both, _ = pool.join_labels(A, (SceneOf(A, 0), SceneOf(B, 0)))
    return both


def shown(examples):
    return sorted(int(image[0, 0, 0]) for image in examples.images)


def test_a_retraining_learns_all_pooled_labels_of_other_streams(model, labels):
    data = data_of(model, labels, ExemplarMemory(), PreparationSettings(POOLING, 4, 10.0, 40, 1), 2)
    assert shown(data.pooled) == [30, 31, 32, 40, 41]


def test_card_of_a_gpu_server_is_found_by_its_name_and_an_unknown_one_is_refused_with_the_names():
    card = load_card(Path("h200"))
    assert card.gpu.count_trainers(1) == 6
    with pytest.raises(UserError, match="jetson_orin"):
        load_card(Path("h300"))


def test_first_run_believed_frames_and_labels_dearer_than_the_card_says():
    card = load_card(Path("h200"))
    first = card.as_first_believed()
    assert first.gpu is None
    assert first.planned_frame_gpu_s(6, 32) == pytest.approx(card.gpu.first.frame_s)
    assert first.planned_frame_gpu_s(6, 32) > 10 * card.planned_frame_gpu_s(6, 32)
    with pytest.raises(ValueError, match="first run"):
        load_card(Path("t4")).as_first_believed()


def test_host_that_binds_is_the_servers_interpreters_or_the_cores():
    facts = load_card(Path("h200")).gpu
    interpreters = facts.host_part_s(160.0, 1)
    assert facts.host_part_s(160.0, 2) == pytest.approx(interpreters / 2)
    few = replace(facts, cores=3.0)
    assert few.host_part_s(160.0, 1) > interpreters


@pytest.mark.parametrize(
    ("gpu", "card"), [("NVIDIA H200", "h200"), ("Tesla T4", "t4"), ("Orin (nvgpu)", "jetson_orin")]
)
def test_speed_of_a_gpu_that_was_not_measured_is_its_cards_and_never_linear(gpu, card):
    name, curve = speed_by_card(gpu, 16.0, 1)
    assert name == card
    assert curve.speed_at(250) > 0.25
    assert speed_by_card("NVIDIA B100", 16.0, 1)[0] == "jetson_orin", "the card that is filled soonest"
