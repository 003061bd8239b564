"""Plans with λ of the golden detector, whose accuracy does not depend on the edge model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from views import at_grants, with_golden

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig
from ekya.core.plan import Assignment, Phase
from ekya.core.speed import LINEAR
from ekya.core.units import JobId, StreamId
from ekya.core.view import InferenceOption, RetrainOption, RunningRetraining, StreamView, WindowView
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.allocation import choices_by_stream, kept_floors
from ekya.planning.schedulers.ekya import Ekya
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.pick import StreamChoices
from ekya.planning.schedulers.registry import make_scheduler
from ekya.planning.schedulers.tables import value_tables
from ekya.testing import GAMMAS, window_views

EVERY = InferenceConfig(1, 32)
FIFTH = InferenceConfig(5, GOLDEN_RESOLUTION)
PLANNERS = ("ekya", "serial", "exact", "thief")


def camera(name, accuracy, golden_milli, *gammas):
    """A stream whose edge model needs a fifth of a GPU; the golden detector is right to 90%."""
    lambdas = (InferenceOption(EVERY, 1.0, 200), InferenceOption(FIFTH, 0.9, golden_milli))
    return StreamView(StreamId(name), accuracy, gammas, lambdas)


def window(*streams, capacity_milli=1000):
    return WindowView(0, 100_000_000, capacity_milli, 50, 50, 0.0, streams, LINEAR)


def gamma(after, gpu_s):
    return RetrainOption(GAMMAS[0], after, gpu_s)


@settings(max_examples=60)
@given(window_views().map(with_golden))
def test_value_tables_hold_the_picked_detector_at_every_share(view):
    tables = value_tables(view)
    for row, choice in enumerate(choices_by_stream(view).values()):
        accuracy = choice.stream.accuracy
        for quanta in range(tables.levels):
            picked = choice.choose_inference(quanta * view.quantum_milli)
            best = max(accuracy * tables.part[row, quanta], tables.golden[row, quanta])
            assert picked.option.full_accuracy(accuracy) * picked.part == pytest.approx(best, abs=1e-9)


@settings(max_examples=40)
@given(window_views().map(with_golden))
def test_plans_are_valid_and_worth_what_they_promise(view):
    for name in PLANNERS:
        plan = make_scheduler(name).plan(view)
        assert plan.expected_accuracy == pytest.approx(evaluate_phases(view, plan.phases).score)
        for phase in plan.phases:
            given = sum(one.inference_share_milli + one.retrain_share_milli for one in phase.assignments)
            assert given <= view.capacity_milli


def test_golden_detector_is_picked_where_the_model_is_worse():
    for accuracy, config in ((0.6, FIFTH), (0.9, EVERY), (0.95, EVERY)):
        view = window(camera("a", accuracy, 500))
        picked = StreamChoices(view, view.streams[0]).choose_inference(500)
        assert picked.option.config == config
    assert StreamChoices(view, camera("a", 0.1, 500)).choose_inference(450).option.config == EVERY, "too dear"


def test_limits_hold_for_the_accuracy_of_the_golden_detector():
    view = replace(window(camera("a", 0.3, 500)), min_accuracy=0.8)
    assert not StreamChoices(view, view.streams[0]).choose_inference(500).below_min
    assert StreamChoices(view, view.streams[0]).choose_inference(450).below_min
    (floor,) = kept_floors(view, 1000).values()
    assert floor == 500


def test_retraining_gains_nothing_while_the_golden_detector_answers():
    """It is done after half of the window, and serves then only where the edge model analyses."""
    view = window(camera("a", 0.4, 500, gamma(0.8, 25.0)))

    def value(config):
        assigned = Assignment(StreamId("a"), GAMMAS[0], 500, config, 500, False, "")
        return evaluate_phases(view, (Phase((assigned,)),)).score

    assert value(EVERY) == pytest.approx(0.6)
    assert value(FIFTH) == pytest.approx(0.9)


@pytest.mark.parametrize("planner", PLANNERS)
def test_planners_take_a_cheap_golden_detector_and_no_dear_one(planner):
    for golden_milli, config in ((550, FIFTH), (1100, EVERY)):
        plan = make_scheduler(planner).plan(window(camera("a", 0.4, golden_milli, gamma(0.8, 20.0))))
        (assigned,) = plan.phases[0].assignments
        assert assigned.inference == config
        assert (assigned.retrain is None) == (config == FIFTH) or planner == "thief", "it keeps idle shares"


@pytest.mark.parametrize("planner", ["ekya", "serial", "exact"])
def test_planners_retrain_a_stream_beside_one_with_the_golden_detector(planner):
    """The share that the golden detector needs is there once, and the second stream gains less by it."""
    view = window(
        camera("a", 0.3, 500, gamma(0.35, 40.0)), camera("b", 0.4, 900, gamma(0.9, 10.0)), capacity_milli=1000
    )
    first, second = make_scheduler(planner).plan(view).phases[0].assignments
    assert (first.inference, first.retrain) == (FIFTH, None)
    assert (second.inference, second.retrain) == (EVERY, GAMMAS[0])


def test_students_behind_the_golden_detector_learn_on_what_is_left():
    """The best of those that end in time comes first; what runs goes on; nothing is begun for no gain."""
    able = camera("b", 0.4, 300, gamma(0.8, 20.0), gamma(0.85, 30.0), gamma(0.9, 200.0))
    view = window(camera("a", 0.8, 300, gamma(0.83, 20.0)), able, camera("c", 0.4, 300, gamma(0.405, 1.0)))
    view = replace(view, capacity_milli=1900)
    plan = Ekya().plan(view)
    assert all(one.retrain is None and one.inference == FIFTH for one in plan.phases[0].assignments)
    first, second, third = granted(view).phases[0].assignments
    assert [one.retrain_share_milli for one in (first, second, third)] == [0, 1000, 0]
    assert "on what is left" in second.reason
    running = RunningRetraining(JobId(1), gamma(0.83, 20.0), 500)
    goes_on = replace(view.streams[0], running=running, retrain_options=())
    first, second, _ = granted(replace(view, streams=(goes_on, *view.streams[1:]))).phases[0].assignments
    assert (first.retrain_share_milli, second.retrain_share_milli) == (1000, 0)


def test_learning_on_what_is_left_takes_nothing_from_inference():
    """On two GPUs with a camera each at 400, and on cores where crowded frames need more than is free."""
    cameras = [camera(name, 0.4, 400, gamma(0.8, 10.0)) for name in "abc"]
    view = replace(window(*cameras), capacity_milli=2000)
    for packing in Packing:
        found = granted(view, packing=packing).phases[0].assignments
        without = at_grants(view, Ekya().plan(view), make_scheduler("thief").needs, step=50, packing=packing)
        kept = [one.inference_share_milli for one in without.phases[0].assignments]
        assert [one.inference_share_milli for one in found] >= kept
    crowded = replace(cameras[0].inference_options[1], ample_milli=900)
    alone = replace(cameras[0], inference_options=(cameras[0].inference_options[0], crowded))
    (one,) = granted(window(alone)).phases[0].assignments
    assert (one.inference_share_milli, one.retrain_share_milli) == (900, 100)


def granted(view, name="ekya", packing=Packing.POOL):
    """Returns a scheduler's plan as it is carried out."""
    scheduler = make_scheduler(name)
    return at_grants(view, scheduler.plan(view), scheduler.needs, step=50, packing=packing)


@pytest.mark.parametrize("planner", PLANNERS)
def test_planners_retrain_a_model_that_gets_better_than_the_golden_detector(planner):
    """The retraining is done after 6 s, so the model is right to 94% over the window."""
    plan = make_scheduler(planner).plan(window(camera("a", 0.2, 550, gamma(0.99, 5.0))))
    assert plan.phases[0].assignments[0].retrain == GAMMAS[0]
    assert plan.phases[-1].assignments[0].inference == EVERY
