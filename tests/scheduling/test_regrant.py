from hypothesis import given, settings
from hypothesis import strategies as st
from views import GAMMAS, window_views

from ekya.core.configs import InferenceConfig
from ekya.core.ids import StreamId
from ekya.core.speed import LINEAR
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.placement.grants import quantise
from ekya.scheduling.allocation import shares_of
from ekya.scheduling.objective import evaluate
from ekya.scheduling.registry import SCHEDULERS, make_scheduler
from ekya.scheduling.regrant import regrant


def granted_plan(name, view, step):
    scheduler = make_scheduler(name)
    plan = scheduler.plan(view)
    grants = quantise(shares_of(plan.phases[0]), step, view.capacity_milli)
    return plan, regrant(view, plan, dict(grants.shares_milli), grants.spare_milli, step, scheduler.needs)


@settings(max_examples=40)
@given(st.sampled_from(sorted(SCHEDULERS)), window_views(), st.sampled_from([1, 50, 125, 500]))
def test_granted_shares_are_steps_within_the_capacity(name, view, step):
    _, after = granted_plan(name, view, step)
    shares = list(shares_of(after.phases[0]).values())
    assert sum(shares) <= view.capacity_milli
    assert all(share % step == 0 and share <= 1000 for share in shares)
    assert after.expected_accuracy == evaluate(view, after.phases).score


@settings(max_examples=40)
@given(window_views())
def test_what_is_left_over_never_hurts(view):
    before, after = granted_plan("thief", view, view.quantum_milli)
    assert after.expected_accuracy >= before.expected_accuracy - 1e-9


@settings(max_examples=40)
@given(window_views(), st.sampled_from([50, 125, 500]))
def test_a_static_scheduler_keeps_its_gamma_and_takes_no_more(view, step):
    before, after = granted_plan("uniform", view, step)
    asked, got = shares_of(before.phases[0]), shares_of(after.phases[0])
    assert all(got[job] <= asked[job] for job in asked)
    for old, new in zip(before.phases[0].assignments, after.phases[0].assignments, strict=True):
        assert new.retrain == old.retrain or (new.retrain is None and new.retrain_share_milli == 0)


def test_what_the_thief_left_idle_goes_where_it_gains_most():
    """With nothing worth retraining the start's half for it is idle; inference needs 700 for every frame."""
    stream = StreamView(
        StreamId("a"),
        0.9,
        (RetrainOption(GAMMAS[0], 0.8, 1.0),),
        (
            InferenceOption(InferenceConfig(1, 32), 1.0, 700),
            InferenceOption(InferenceConfig(2, 32), 0.9, 350),
        ),
    )
    view = WindowView(0, 60_000_000, 1000, 50, 50, 0.4, (stream,), LINEAR)
    before, after = (plan.phases[0].assignments[0] for plan in granted_plan("thief", view, 50))
    assert (before.inference.every, before.inference_share_milli) == (2, 500)
    assert (after.inference.every, after.inference_share_milli) == (1, 700)
