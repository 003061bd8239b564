"""Tests that recorded passes answer like direct ones; the fake recorder repeats the work as CUDA would."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from other_weights import every_detector_lived_in
from torch import Tensor

from ekya.models.edge.architecture_table import DETECTORS
from ekya.models.edge.detection.predictor import DetectorPredictor
from ekya.models.edge.forward import TORCH, ForwardWay
from ekya.models.edge.graphs import CudaRecorder, Graphs, Recorded, padded
from ekya.models.edge.predictor import Predictor


@dataclass
class Repeats:
    """Fake recorder that keeps the work; each replay writes to the same buffer, as a CUDA graph does."""

    level: int = 1
    broken: str = ""
    recorded: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    replayed: int = 0

    def stream(self) -> int:
        return self.level

    def record_pass(self, work, given: Tensor) -> Recorded:
        if self.broken:
            raise RuntimeError(self.broken)
        self.recorded.append((self.level, tuple(given.shape)))
        answers = work(given).clone()

        def replay() -> None:
            self.replayed += 1
            answers.copy_(work(given))

        return Recorded(replay, given, answers)


def brightness(crops: Tensor, resolution: int) -> Tensor:
    return crops.float().mean(dim=(1, 2)) * resolution


def crops_of(count: int, seed: int = 0, side: int = 4) -> Tensor:
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=seeded(seed))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 2), st.integers(0, 3)), max_size=8))
def test_graphs_in_any_order_answer_as_the_work(calls) -> None:
    recorder = Repeats()
    graphs = Graphs(brightness, recorder)
    kept = []
    for count, level, seed in calls:
        recorder.level = level
        crops = crops_of(count, seed)
        kept.append((graphs(crops, 3), brightness(crops, 3)))
    # Compared only now: no later pass may have changed an earlier answer.
    assert all(torch.equal(found, expected) for found, expected in kept)


def test_graphs_record_each_level_size_and_resolution_once() -> None:
    recorder = Repeats()
    graphs = Graphs(brightness, recorder)
    for count in (5, 6, 8, 5, 3):
        graphs(crops_of(count), 4)
    assert recorder.recorded == [(1, (8, 4, 4, 3)), (1, (4, 4, 4, 3))]
    recorder.level = 2
    graphs(crops_of(5), 4)
    assert recorder.recorded[2:] == [(2, (8, 4, 4, 3))], "a graph runs where it was recorded"
    graphs(crops_of(5), 3)
    graphs(crops_of(5, side=6), 4)
    assert len(recorder.recorded) == 5
    assert recorder.replayed == 8


def test_graphs_unrecordable_work_runs_directly_with_a_warning(caplog) -> None:
    recorder = Repeats(broken="operation not permitted when stream is capturing\nmore of it")
    graphs = Graphs(brightness, recorder)
    for seed in range(3):
        crops = crops_of(5, seed)
        assert torch.equal(graphs(crops, 2), brightness(crops, 2))
    assert graphs.refused == "operation not permitted when stream is capturing"
    assert [record.getMessage() for record in caplog.records] == [
        "predicting without CUDA graphs: operation not permitted when stream is capturing"
    ]


@given(st.integers(1, 1000))
def test_graphs_padding_is_less_than_half_of_a_batch(crops: int) -> None:
    assert crops <= padded(crops) < 2 * crops


def test_predictor_with_graphs_predicts_as_without(tiny_model, make_bars) -> None:
    recorder = Repeats()
    way = ForwardWay(graphs=True, crops_a_pass=8)
    crops = make_bars(21, 1).crops
    predictor = Predictor(tiny_model, "cpu", way, recorder)
    classes, confidence = predictor.predict(crops, 24)
    expected, sure = Predictor(tiny_model).predict(crops, 24)
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_allclose(confidence, sure, atol=1e-5)
    assert recorder.replayed == 3
    assert predictor.predict(crops[:0], 24)[0].shape == (0,)


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_detector_with_graphs_has_one_for_each_side_and_padded_batch(name) -> None:
    recorder, model = Repeats(), every_detector_lived_in()[name]
    way = ForwardWay(engine=TORCH, images_a_pass=16)
    recorded = DetectorPredictor(model, "cpu", replace(way, graphs=True), recorder)
    plain = DetectorPredictor(model, "cpu", way)
    assert "CUDA graphs" in str(recorded.way)
    for count, side in ((3, 64), (4, 64), (1, 64), (18, 64), (1, 96)):
        images = np.random.default_rng(count).integers(0, 256, (count, side, side, 3)).astype(np.uint8)
        found, expected = (of.predict(images, side) for of in (recorded, plain))
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
        np.testing.assert_allclose(found.boxes, expected.boxes, atol=1e-5)
    assert [shape[:2] for _, shape in recorder.recorded] == [(4, 64), (1, 64), (16, 64), (2, 64), (1, 96)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: CUDA graphs cannot be recorded")
def test_graphs_on_a_gpu_answer_as_the_model_on_their_stream(tiny_model, make_bars) -> None:
    crops = make_bars(6, 1).crops
    _, sure = Predictor(tiny_model, "cuda", ForwardWay()).predict(crops, 32)
    recorder = CudaRecorder("cuda")
    predictor = Predictor(tiny_model, "cuda", ForwardWay(graphs=True), recorder)
    seen = set()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            seen.add(recorder.stream())
            for _ in range(2):
                _, confidence = predictor.predict(crops, 32)
                np.testing.assert_allclose(confidence, sure, atol=1e-2)  # a GPU computes with fewer digits
    assert len(seen) == 2
