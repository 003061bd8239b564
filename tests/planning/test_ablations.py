from hypothesis import given, settings
from hypothesis import strategies as st
from views import GAMMAS, window_views

from ekya.core.configs import InferenceConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.allocation import shares_of
from ekya.planning.schedulers.baselines import FixedConfig, FixedRes, Uniform
from ekya.planning.schedulers.registry import make_scheduler

CHEAP = RetrainOption(GAMMAS[0], 0.9, 5.0)
DEAR = RetrainOption(GAMMAS[1], 0.95, 55.0)
LAMBDAS = (
    InferenceOption(InferenceConfig(1, 32), 1.0, 400),
    InferenceOption(InferenceConfig(5, 32), 0.8, 100),
)


def view(accuracies, capacity=1000):
    streams = tuple(
        StreamView(StreamId(f"s{place}"), accuracy, (CHEAP, DEAR), LAMBDAS)
        for place, accuracy in enumerate(accuracies)
    )
    return WindowView(0, 60_000_000, capacity, 50, 50, 0.0, streams, LINEAR)


def first(scheduler, seen):
    return scheduler.plan(seen).phases[0].assignments


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
    assert [a.retrain for a in first(FixedRes(), view([0.5, 0.5], 2000))] == [CHEAP.config] * 2
    assert [a.retrain for a in first(FixedRes(), view([0.92, 0.5], 2000))] == [None, CHEAP.config]


def test_fixed_config_steals_for_one_gamma():
    fixed = first(FixedConfig(fixed_gamma=CHEAP.config), view([0.9, 0.2]))
    assert [a.retrain for a in fixed] == [None, CHEAP.config]
    shares = shares_of(make_scheduler("uniform").plan(view([0.9, 0.2])).phases[0])
    assert fixed[1].retrain_share_milli > max(shares.values())


@settings(max_examples=40)
@given(window_views(), st.sampled_from(GAMMAS))
def test_fixed_config_offers_no_other_gamma(seen, gamma):
    running = {s.stream: s.running.option.config for s in seen.streams if s.running}
    for assigned in first(FixedConfig(fixed_gamma=gamma), seen):
        assert assigned.retrain in (None, running.get(assigned.stream, gamma))
