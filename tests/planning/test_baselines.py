from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.allocation import shares_of
from ekya.planning.schedulers.baselines import FixedConfig, FixedRes, Uniform
from ekya.planning.schedulers.registry import make_scheduler
from ekya.testing import GAMMAS, window_views

CHEAP = RetrainOption(GAMMAS[0], 0.9, 5.0)
DEAR = RetrainOption(GAMMAS[1], 0.5, 20.0)
LONG = RetrainOption(GAMMAS[1], 0.95, 55.0)
LAMBDAS = (
    InferenceOption(InferenceConfig(1, 32), 1.0, 400),
    InferenceOption(InferenceConfig(5, 32), 0.8, 100),
)


def view(*accuracies, capacity=1000, gammas=(CHEAP, DEAR)):
    streams = tuple(
        StreamView(StreamId(f"s{i}"), accuracy, gammas, LAMBDAS) for i, accuracy in enumerate(accuracies)
    )
    return WindowView(0, 60_000_000, capacity, 50, 50, 0.4, streams, LINEAR)


def first(scheduler, seen):
    return scheduler.plan(seen).phases[0].assignments


def test_uniform_without_gamma_takes_dearest_that_finishes():
    rich = first(make_scheduler("uniform"), view(0.5, 0.5, 0.5, capacity=3000))
    poor = first(make_scheduler("uniform"), view(0.5, 0.5, 0.5, capacity=600))
    starved = first(make_scheduler("uniform"), view(0.5, 0.5, 0.5, capacity=300))
    assert {a.retrain for a in rich} == {DEAR.config}
    assert {a.retrain for a in poor} == {CHEAP.config}
    assert {a.retrain for a in starved} == {None}


def test_uniform_splits_capacity_evenly():
    assignments = first(make_scheduler("uniform"), view(0.5, 0.5, 0.5))
    totals = [a.retrain_share_milli + a.inference_share_milli for a in assignments]
    assert totals == [350, 350, 300]
    assert all(abs(a.retrain_share_milli - a.inference_share_milli) <= 50 for a in assignments)
    assert {a.inference for a in assignments} == {InferenceConfig(5, 32)}


def test_uniform_with_options_uses_their_gamma_and_part():
    scheduler = Uniform(inference_part_milli=900, fixed_gamma=CHEAP.config)
    assigned = first(scheduler, view(0.5))[0]
    assert (assigned.retrain, assigned.retrain_share_milli, assigned.inference_share_milli) == (
        CHEAP.config,
        100,
        900,
    )


def test_uniform_after_completion_leaves_share_idle():
    base = view(0.5, 0.5)
    done = replace(base, streams=(replace(base.streams[0], retrain_options=()), base.streams[1]))
    before = first(make_scheduler("uniform"), base)
    after = first(make_scheduler("uniform"), done)
    assert after[1] == before[1]
    assert after[0].inference_share_milli == before[0].inference_share_milli
    assert "25% of a GPU stays idle" in after[0].reason


def test_no_retrain_gives_all_gpus_to_inference():
    assignments = first(make_scheduler("no-retrain"), view(0.5, 0.5))
    assert [(a.retrain, a.inference_share_milli) for a in assignments] == [(None, 500), (None, 500)]
    assert {a.inference for a in assignments} == {InferenceConfig(1, 32)}
    assert "never" in assignments[0].reason


@settings(max_examples=40)
@given(window_views(), st.sampled_from([300, 500, 900]))
def test_fixed_res_takes_shares_of_uniform(seen, part):
    """FixedRes also has uniform's share for retraining, where both retrain a stream."""
    ours = {a.stream: a for a in first(FixedRes(part), seen)}
    for uniform in first(Uniform(part), seen):
        assert ours[uniform.stream].inference_share_milli == uniform.inference_share_milli
        if uniform.retrain is not None and ours[uniform.stream].retrain is not None:
            assert ours[uniform.stream].retrain_share_milli == uniform.retrain_share_milli


def test_fixed_res_picks_gamma_from_profiles():
    """The dear γ is done in time at a whole GPU, with its 55 GPU-seconds, but not at half a GPU."""
    assert [a.retrain for a in first(FixedRes(), view(0.5, 0.5, capacity=2000, gammas=(CHEAP, LONG)))] == [
        CHEAP.config
    ] * 2
    assert [a.retrain for a in first(FixedRes(), view(0.92, 0.5, capacity=2000, gammas=(CHEAP, LONG)))] == [
        None,
        CHEAP.config,
    ]


def test_fixed_config_steals_for_one_gamma():
    seen = replace(view(0.9, 0.2, gammas=(CHEAP, LONG)), min_accuracy=0.0)
    fixed = first(FixedConfig(fixed_gamma=CHEAP.config), seen)
    assert [a.retrain for a in fixed] == [None, CHEAP.config]
    shares = shares_of(make_scheduler("uniform").plan(seen).phases[0])
    assert fixed[1].retrain_share_milli > max(shares.values())


@settings(max_examples=40)
@given(window_views(), st.sampled_from(GAMMAS))
def test_fixed_config_offers_no_other_gamma(seen, gamma):
    running = {s.stream: s.running.option.config for s in seen.streams if s.running}
    for assigned in first(FixedConfig(fixed_gamma=gamma), seen):
        assert assigned.retrain in (None, running.get(assigned.stream, gamma))
