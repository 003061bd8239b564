"""Tests of measuring a fleet's costs on its own sources, models and γ."""

import cv2
import numpy as np
import pytest

import ekya.pipeline.measure_host
import ekya.streams.ingest.motion
from ekya.core.configs import RetrainConfig
from ekya.core.host import TYPICAL_OBJECTS, StreamCosts
from ekya.core.units import StreamId
from ekya.models.edge.forward import MOST_IMAGES
from ekya.models.edge.model import build_edge_model
from ekya.models.edge.multi_model import Predictors
from ekya.models.golden.detections import Proposals
from ekya.pipeline.measure_host import (
    Timer,
    batched_gpu_s,
    family_costs,
    finding_gpu_s,
    following_gpu_s,
    frame_label_gpu_s,
    label_gpu_s,
    of_all_streams,
    passing_gpu_s,
)
from ekya.pipeline.sampled_sources import SampledSource, sample_sources
from ekya.pipeline.speed_jobs import random_frames, random_images
from ekya.streams.ingest.frame import Frame
from ekya.streams.ingest.motion import BoxFlow
from ekya.streams.synthetic.source import CitySpec

CLASSES = ("person", "car", "truck", "bus", "bicycle", "motorcycle")


def city(seed, fps=5.0):
    return CitySpec(seed=seed, fps=fps, duration_s=2.0, width=64, height=48)


class Clock(Timer):
    """Timer that counts calls: each takes one second."""

    def __init__(self):
        super().__init__("cpu")
        self.calls = 0

    def _now(self):
        return float(self.calls)


def test_stream_costs_at_crowd_scale_classifying_only():
    costs = StreamCosts(25.0, {32: 0.016, 24: 0.013}, 0.010)
    assert costs.at_crowd(1.0) == pytest.approx(costs.frame_gpu_s)
    assert costs.at_crowd(3.0) == {32: pytest.approx(0.028), 24: pytest.approx(0.019)}
    assert costs.at_crowd(0.0) == {32: pytest.approx(0.010), 24: pytest.approx(0.010)}
    assert costs.object_gpu_s == pytest.approx(0.006 / TYPICAL_OBJECTS)


def test_stream_costs_of_a_detector_do_not_depend_on_the_crowd():
    costs = StreamCosts(25.0, {352: 0.007, 160: 0.002}, per_object=False)
    assert costs.at_crowd(0.0) == costs.at_crowd(5.0) == costs.frame_gpu_s
    assert costs.object_gpu_s == 0.007


def test_finding_cost_is_of_a_frame():
    timer = Clock()
    frames = tuple(Frame(at, at, np.zeros((8, 8, 3), np.uint8), None) for at in range(3))

    class Finds:
        def propose_boxes(self, frame):
            timer.calls += 1
            return Proposals(np.zeros((0, 4), np.float32))

    assert finding_gpu_s(SampledSource(10.0, frames), Finds(), timer) == 1.0


@pytest.fixture
def followed(monkeypatch):
    """Clock whose optical flow takes a second a start, and one a box that is followed."""
    timer = Clock()

    class Flow(BoxFlow):
        def start(self, image, boxes):
            timer.calls += 1
            super().start_boxes(image, boxes)

        def follow_boxes(self, image):
            timer.calls += len(self.rows)
            return super().follow_boxes(image)

    monkeypatch.setattr(ekya.pipeline.measure_host, "BoxFlow", Flow)
    return timer


TYPICAL = len(random_frames(1, 8, ("object",)).objects[0].boxes)


def noise(height, width, shift=0):
    image = np.random.default_rng(7).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return np.roll(cv2.blur(image, (5, 5)), shift, axis=1)


def sampled(*images):
    return SampledSource(10.0, tuple(Frame(at, at, image, None) for at, image in enumerate(images)))


@pytest.mark.parametrize("heights", [(48, 60, 60), (48, 60, 48), (48,)])
def test_following_cost_of_a_camera_that_changes_its_size_is_measured(followed, heights):
    assert following_gpu_s(sampled(*(noise(height, 64) for height in heights)), followed) == TYPICAL


def test_following_cost_is_of_all_boxes_where_they_leave_the_picture(followed, monkeypatch):
    monkeypatch.setattr(ekya.streams.ingest.motion, "_LEAST_VISIBLE", 2.0)  # every box leaves
    assert following_gpu_s(sampled(noise(48, 64), noise(48, 64, shift=3)), followed) == TYPICAL


def test_unmeasured_streams_cost_as_much_as_the_most_expensive():
    cheap, dear = StreamCosts(5.0, {32: 0.1}), StreamCosts(25.0, {32: 0.05})
    known = of_all_streams({StreamId("a"): cheap, StreamId("b"): dear}, [StreamId(one) for one in "abc"])
    assert known == {"a": cheap, "b": dear, "c": dear}


@pytest.mark.live
@pytest.mark.virtual
def test_sample_sources_opens_few_different_sources_once():
    specs = {StreamId(f"cam-{at}"): city(at // 2, fps=5.0 + at // 2) for at in range(12)}
    sampled = sample_sources(specs, CLASSES)
    assert sorted(sampled) == [f"cam-{at}" for at in range(8)]
    assert [sampled[StreamId(f"cam-{at}")].fps for at in (0, 1, 2, 6)] == [5.0, 5.0, 6.0, 8.0]
    assert all(frame.image.shape == (48, 64, 3) for one in sampled.values() for frame in one.frames)


def test_family_costs_of_blocks_exceed_those_of_a_head():
    model = build_edge_model(CLASSES, 0, 0, "mobilenet_v3_small")
    configs = [RetrainConfig(epochs, 16, 0, blocks, 1.0) for epochs in (4, 8) for blocks in (0, 1)]
    timer = Timer("cpu")
    head, block = family_costs(model, configs, 16, "cpu", timer)
    assert (head.family.trainable_blocks, block.family.trainable_blocks) == (0, 1)
    assert 0 < head.epoch_gpu_s < block.epoch_gpu_s
    assert head.prepare_gpu_s > 0
    assert timer.longest_s > 0


def test_family_costs_of_a_detector_are_per_frame():
    model = build_edge_model(CLASSES, 0, 0, "fastestdet")
    configs = [RetrainConfig(10, 8, 0, blocks, 1.0) for blocks in (0, 1)]
    head, neck = family_costs(model, configs, 96, "cpu", Timer("cpu"))
    assert 0 < head.epoch_gpu_s < neck.epoch_gpu_s
    assert head.prepare_gpu_s > 0


def test_passing_cost_is_measured_at_every_side():
    predictor = Predictors().predictor_for(build_edge_model(CLASSES, 0, 0, "fastestdet"))
    timer = Timer("cpu")
    costs = passing_gpu_s(predictor, random_images(1, 160), (160, 64), timer)
    assert costs[160] > costs[64] > 0
    assert timer.longest_s == costs[160]


def test_label_cost_of_a_detector_is_per_frame():
    timer = Clock()

    class Golden:
        def find_objects(self, picture):
            timer.calls += 1

    assert frame_label_gpu_s(Golden(), np.zeros((48, 64, 3), np.uint8), timer) == 1.0


def test_label_cost_is_per_object():
    timer = Clock()
    asked = []

    class Golden:
        def label_boxes(self, items):
            timer.calls += 1
            asked.append(sum(len(item.boxes) for item in items))
            return []

    took_s = label_gpu_s(Golden(), np.zeros((48, 64, 3), np.uint8), timer)
    assert took_s == pytest.approx(1.0 / asked[0])
    assert timer.longest_s == 1.0


def test_frame_on_a_gpu_costs_what_it_adds_to_a_pass_and_its_part_of_a_full_one():
    """A pass takes 2 s, and a tenth of a second for each of its images."""
    clock = [0.0]

    class Server:
        def predict(self, images, resolution):
            clock[0] += 2.0 + 0.1 * len(images)

    timer = Timer("cpu")
    timer._clock = lambda: clock[0]
    costs = batched_gpu_s(Server(), random_images(6, 32), (32,), timer)
    assert costs == pytest.approx({32: 0.6 + 2.0 / MOST_IMAGES})
