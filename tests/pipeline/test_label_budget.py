"""Tests of the golden model's budget for a window in GPU-seconds, and of its cost estimate."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from street import SIDE, collected

from ekya.models.golden.detections import ON_CPU, Detections
from ekya.models.golden.golden_model import calls_for
from ekya.pipeline.collector import WindowMaterial
from ekya.pipeline.golden_inference import MeteredGolden
from ekya.pipeline.labelling import affordable_count
from ekya.pipeline.settings import PreparationSettings
from ekya.pipeline.stream_preparation import StreamPreparation

NOTHING = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32))


class Golden:
    """Golden model that costs one operation per box or, as a detector, one per picture not yet analysed."""

    def __init__(self, background=None):
        self.background, self.finds, self.runs_on = background, background is not None, ON_CPU

    def label_boxes(self, items):
        return [np.zeros(len(item.boxes), np.int64) for item in items]

    def operations(self, items):
        if self.background is None:
            return sum(len(item.boxes) for item in items)
        return sum(item.found is None for item in items if len(item.boxes))


def prepared(budget_gpu_s, golden, objects, seen=False, one_gpu_s=0.01):
    found = NOTHING if seen else None
    sample = tuple(collected(at, range(objects), found) for at in range(30))
    burst = tuple(collected(40 + at, range(objects), found) for at in range(11))
    settings = PreparationSettings(("car", "background"), SIDE, 10.0, 96, 3, label_gpu_s=budget_gpu_s)
    material = WindowMaterial(2, sample, burst)
    return StreamPreparation(
        settings,
        material,
        None,
        golden,
        golden_gpu_s=lambda items: one_gpu_s * golden.operations(items),
    )


@given(st.floats(0.01, 10), st.integers(1, 50), st.integers(0, 60))
def test_affordable_is_what_fits_the_budget(one_gpu_s, count, most):
    assert affordable_count(one_gpu_s * count, one_gpu_s, most) == min(count, most)
    assert affordable_count(one_gpu_s * (count - 0.5), one_gpu_s, most) == min(count - 1, most)
    assert affordable_count(None, one_gpu_s, most) == affordable_count(1.0, 0.0, most) == most


@pytest.mark.parametrize("background", [None, 1])
@settings(max_examples=15)
@given(budget_gpu_s=st.floats(0.001, 3.0), objects=st.integers(0, 9))
def test_label_budget_covers_sample_and_burst(background, budget_gpu_s, objects):
    golden = Golden(background)
    one = prepared(budget_gpu_s, golden, objects)
    asked = [*one.select().questions, *one.burst_questions()]
    assert one.golden_gpu_s(asked) <= budget_gpu_s + 1e-9
    whole = prepared(None, golden, objects)
    everything = [*whole.select().questions, *whole.burst_questions()]
    if whole.golden_gpu_s(everything) <= budget_gpu_s / 4:
        assert one.golden_gpu_s(asked) == whole.golden_gpu_s(everything), "nothing is saved in vain"


def test_label_budget_is_used_up_to_the_last_label():
    assert sum(len(item.boxes) for item in prepared(0.4, Golden(), 9).select().questions) == 30
    assert len(prepared(0.08, Golden(1), 9).select().questions) == 6
    assert len(prepared(0.08, Golden(1), 9).burst_questions()) == 2


def test_label_budget_ignores_pictures_with_detections():
    seen, unlimited = prepared(0.001, Golden(1), 6, seen=True), prepared(None, Golden(1), 6, seen=True)
    assert len(seen.select().questions) == len(unlimited.select().questions) == 30
    assert len(seen.burst_questions()) == 11


def test_label_budget_free_golden_model_is_not_limited():
    free = prepared(0.001, Golden(), 6, one_gpu_s=0.0)
    assert sum(len(item.boxes) for item in free.select().questions) == 90, "three of five objects, 30 times"


def test_label_budget_labels_the_selection():
    one = prepared(0.4, Golden(), 9)
    labels = one.label(one.select())
    assert len(labels.training.examples) + len(labels.validation.examples) == 30
    few = replace(one, settings=replace(one.settings, label_gpu_s=0.04))
    labels = few.label()
    assert len(labels.training.examples) + len(labels.validation.examples) == 3


def test_metered_golden_predicts_cost_from_earlier_calls():
    now = iter([10.0, 10.5, 20.0, 21.5])
    golden = MeteredGolden(Golden(), clock=lambda: next(now))
    two, three = collected(0, range(2)).question, collected(1, range(3)).question
    assert golden.gpu_s([two]) == 0.0
    golden.try_out()
    assert golden.gpu_s([two]) == pytest.approx(1.0), "half a second for one box"
    assert [len(of) for of in golden.label_boxes([three])] == [3]
    assert golden.gpu_s([two]) == pytest.approx(2 * 2.0 / 4)
    assert (golden.background, golden.operations([two, three])) == (None, 5)


def test_calls_are_pictures_that_are_not_yet_analysed():
    asked = [collected(at, range(2), NOTHING if at == 0 else None).question for at in range(3)]
    without_boxes = collected(3, range(0)).question
    assert calls_for(Golden(1), asked) == 2
    assert calls_for(Golden(1), [without_boxes]) == 0, "without boxes there is no background either"
    assert calls_for(Golden(), [*asked, without_boxes]) == 3


@pytest.mark.parametrize("background", [None, 1])
def test_label_budget_too_small_logs_a_warning(background, caplog):
    assert not prepared(0.01, Golden(background), 6, one_gpu_s=0.02).select().questions
    assert "allows no label" in caplog.text and "allow a multiple of 0.0" in caplog.text
    caplog.clear()
    prepared(0.1, Golden(background), 6, one_gpu_s=0.02).select()
    prepared(0.01, Golden(background), 0).select()
    assert not caplog.text
