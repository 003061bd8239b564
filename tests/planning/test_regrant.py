from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from views import at_grants

from ekya.core.configs import InferenceConfig
from ekya.core.plan import Assignment, Phase, Plan
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.placement.pack import Packing
from ekya.planning.schedulers.allocation import shares_of
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import SCHEDULERS, make_scheduler
from ekya.testing import GAMMAS, window_views

THIEF = make_scheduler("thief").needs


def granted_plan(name, view, step, packing=Packing.POOL):
    scheduler = make_scheduler(name)
    plan = scheduler.plan(view)
    return plan, at_grants(view, plan, scheduler.needs, step=step, packing=packing)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SCHEDULERS)),
    window_views(),
    st.sampled_from([1, 50, 125, 500]),
    st.sampled_from(list(Packing)),
)
def test_regrant_shares_are_steps_within_gpus(name, view, step, packing):
    plan, after = granted_plan(name, view, step, packing)
    shares = list(shares_of(after.phases[0]).values())
    assert sum(shares) <= view.capacity_milli
    assert all(share % step == 0 and share <= 1000 for share in shares)
    assert after.expected_accuracy == evaluate_phases(view, after.phases).score
    first = evaluate_phases(view, plan.phases[:1]).score
    assert after.rounding_cost == pytest.approx(first - evaluate_phases(view, after.phases[:1]).score)
    used = {}
    for one in after.phases[0].assignments:
        for share, gpu in (
            (one.retrain_share_milli, one.retrain_gpu),
            (one.inference_share_milli, one.inference_gpu),
        ):
            assert (gpu is not None) == (packing is not Packing.POOL and share > 0)
            used[gpu] = used.get(gpu, 0) + share
    assert all(share <= 1000 for gpu, share in used.items() if gpu is not None)


@settings(max_examples=40)
@given(window_views())
def test_regrant_leftovers_never_lower_objective(view):
    before, after = granted_plan("thief", view, view.quantum_milli)
    assert after.expected_accuracy >= before.expected_accuracy - 1e-9


@settings(max_examples=40)
@given(window_views(), st.sampled_from([50, 125, 500]))
def test_regrant_of_static_plan_grows_nothing(view, step):
    before, after = granted_plan("uniform", view, step)
    asked, got = shares_of(before.phases[0]), shares_of(after.phases[0])
    assert all(got[job] <= asked[job] for job in asked)
    for old, new in zip(before.phases[0].assignments, after.phases[0].assignments, strict=True):
        assert new.retrain == old.retrain or (new.retrain is None and new.retrain_share_milli == 0)


def test_regrant_gives_idle_share_where_it_gains():
    """Nothing is worth retraining, so its half of the start is idle; inference needs 700 for every frame."""
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


def crowded_view(capacity_milli):
    """Two streams whose λ for every frame needs 190, or 230 where they are crowded; nothing to retrain."""
    every = InferenceOption(InferenceConfig(1, 32), 1.0, 190, ample_milli=230)
    streams = tuple(StreamView(StreamId(name), 0.9, (), (every,)) for name in "ab")
    return WindowView(0, 60_000_000, capacity_milli, 50, 50, 0.4, streams, LINEAR)


@pytest.mark.parametrize(
    ("capacity_milli", "shares"), [(400, [200, 200]), (470, [250, 200]), (900, [250, 250])]
)
def test_regrant_gives_spare_to_crowded_frames(capacity_milli, shares):
    view = crowded_view(capacity_milli)
    needed = phase_of(view, [200, 200])
    plan = Plan((needed, needed), 0.9)
    granted = at_grants(view, plan, make_scheduler("ekya").needs)
    given = granted.phases[0].assignments
    assert [one.inference_share_milli for one in given] == shares
    assert [one.reason for one in given] == [
        "as asked"
        if share == 200
        else "as asked; has 5% more for crowded frames, which no other job gains from"
        for share in shares
    ]
    assert (granted.phases[1], granted.expected_accuracy) == (needed, 0.9), "what is forecast stays"


def test_regrant_keeps_fixed_shares():
    view = crowded_view(900)
    plan = Plan((phase_of(view, [200, 200]),), 0.9)
    granted = at_grants(view, plan, make_scheduler("uniform").needs)
    assert [one.inference_share_milli for one in granted.phases[0].assignments] == [200, 200]


def phase_of(view, shares):
    return Phase(
        tuple(
            Assignment(stream.stream, None, 0, stream.inference_options[0].config, share, False, "as asked")
            for stream, share in zip(view.streams, shares, strict=True)
        )
    )


def waiting_view():
    gamma = RetrainOption(GAMMAS[0], 0.9, 10.0)
    longer = RetrainOption(GAMMAS[1], 0.95, 12.0)
    lambdas = (InferenceOption(InferenceConfig(1, 32), 1.0, 300),)
    streams = tuple(StreamView(StreamId(name), 0.5, (gamma, longer), lambdas) for name in "ab")
    return WindowView(0, 60_000_000, 2000, 50, 50, 0.4, streams, LINEAR)


def in_turn(view, share_milli, inference_milli=300):
    """Retrains ``a`` first and then ``b``, with the γ that is quicker and gains less."""
    a, b = view.streams

    def phase(who, share):
        return Phase(
            tuple(
                Assignment(
                    one.stream,
                    GAMMAS[0] if one is who else None,
                    share if one is who else 0,
                    InferenceConfig(1, 32),
                    inference_milli,
                    False,
                    "so",
                )
                for one in view.streams
            )
        )

    phases = (phase(a, share_milli), phase(b, share_milli))
    return Plan(phases, evaluate_phases(view, phases).score)


def test_regrant_of_fitting_plan_keeps_phases():
    view = waiting_view()
    plan = in_turn(view, 1000)
    assert at_grants(view, plan, THIEF, step=50) == plan
    packed = at_grants(view, plan, THIEF, step=50, packing=Packing.BEST_FIT)
    assert packed.expected_accuracy == plan.expected_accuracy
    assert packed.phases[1:] == plan.phases[1:]
    assert [(a.retrain_gpu, a.inference_gpu) for a in packed.phases[0].assignments] == [(0, 1), (None, 1)]


def test_regrant_of_phased_plan_keeps_gamma_and_order():
    """Rounded to 500 the γ of ``a`` takes 20 s instead of 17; spare capacity makes it 1000 again."""
    view = waiting_view()
    after = at_grants(view, in_turn(view, 600), THIEF, step=500)
    first, second = after.phases[0].assignments
    assert (first.retrain, first.retrain_share_milli) == (GAMMAS[0], 1000)
    assert (second.retrain, second.retrain_share_milli) == (None, 0)
    assert len(after.phases) == 1


def test_regrant_reports_rounding_cost():
    """Inference needs 300 of each GPU and gets 250: one sixth of the frames is lost."""
    view = replace(waiting_view(), capacity_milli=1000, min_accuracy=0.0)
    plan = make_scheduler("no-retrain").plan(view)
    fixed = make_scheduler("no-retrain").needs
    lesser = replace(
        plan,
        phases=(Phase(tuple(replace(a, inference_share_milli=300) for a in plan.phases[0].assignments)),),
        expected_accuracy=0.5,
    )
    after = at_grants(view, lesser, fixed, packing=Packing.QUANTISED)
    assert [a.inference_share_milli for a in after.phases[0].assignments] == [250, 250]
    assert after.rounding_cost == pytest.approx(0.5 / 6)
    assert after.expected_accuracy == pytest.approx(0.5 * 5 / 6)


@settings(max_examples=40)
@given(window_views(), st.sampled_from([50, 125]))
def test_regrant_keeps_fixed_gamma_while_shares_grow(view, step):
    needs = replace(THIEF, fixed_gamma=True)
    plan = make_scheduler("thief").plan(view)
    after = at_grants(view, plan, needs, step=step)
    for old, new in zip(plan.phases[0].assignments, after.phases[0].assignments, strict=True):
        assert new.retrain in (old.retrain, None)
