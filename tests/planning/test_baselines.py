from dataclasses import replace

from views import GAMMAS

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.baselines import Uniform
from ekya.planning.schedulers.registry import make_scheduler

CHEAP = RetrainOption(GAMMAS[0], 0.9, 5.0)
DEAR = RetrainOption(GAMMAS[1], 0.5, 20.0)


def view(count=3, capacity=1000):
    lambdas = (
        InferenceOption(InferenceConfig(1, 32), 1.0, 400),
        InferenceOption(InferenceConfig(5, 32), 0.8, 100),
    )
    streams = tuple(StreamView(StreamId(f"s{i}"), 0.5, (CHEAP, DEAR), lambdas) for i in range(count))
    return WindowView(0, 60_000_000, capacity, 50, 50, 0.4, streams, LINEAR)


def test_uniform_without_gamma_takes_dearest_that_finishes():
    rich = make_scheduler("uniform").plan(view(capacity=3000)).phases[0].assignments
    poor = make_scheduler("uniform").plan(view(capacity=600)).phases[0].assignments
    starved = make_scheduler("uniform").plan(view(capacity=300)).phases[0].assignments
    assert {a.retrain for a in rich} == {DEAR.config}
    assert {a.retrain for a in poor} == {CHEAP.config}
    assert {a.retrain for a in starved} == {None}


def test_uniform_splits_capacity_evenly():
    assignments = make_scheduler("uniform").plan(view()).phases[0].assignments
    totals = [a.retrain_share_milli + a.inference_share_milli for a in assignments]
    assert totals == [350, 350, 300]
    assert all(abs(a.retrain_share_milli - a.inference_share_milli) <= 50 for a in assignments)
    assert {a.inference for a in assignments} == {InferenceConfig(5, 32)}


def test_uniform_with_options_uses_their_gamma_and_part():
    scheduler = Uniform(inference_part_milli=900, fixed_gamma=CHEAP.config)
    assigned = scheduler.plan(view(1)).phases[0].assignments[0]
    assert (assigned.retrain, assigned.retrain_share_milli, assigned.inference_share_milli) == (
        CHEAP.config,
        100,
        900,
    )


def test_uniform_after_completion_leaves_share_idle():
    base = view(2)
    done = replace(base, streams=(replace(base.streams[0], retrain_options=()), base.streams[1]))
    before = make_scheduler("uniform").plan(base).phases[0].assignments
    after = make_scheduler("uniform").plan(done).phases[0].assignments
    assert after[1] == before[1]
    assert after[0].inference_share_milli == before[0].inference_share_milli
    assert "25% of a GPU stays idle" in after[0].reason


def test_no_retrain_gives_all_gpus_to_inference():
    assignments = make_scheduler("no-retrain").plan(view(2)).phases[0].assignments
    assert [(a.retrain, a.inference_share_milli) for a in assignments] == [(None, 500), (None, 500)]
    assert {a.inference for a in assignments} == {InferenceConfig(1, 32)}
    assert "never" in assignments[0].reason
