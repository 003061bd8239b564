"""The dynamic programme against exhaustive search, and against an integer programme."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from views import value_of

from ekya.core.configs import InferenceConfig
from ekya.core.shares import Job, Work
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import InferenceOption, RetrainOption, StreamView, WindowView
from ekya.planning.schedulers.allocation import choices_by_stream, kept_floors, largest_share_milli
from ekya.planning.schedulers.objective import weighted_mean
from ekya.planning.schedulers.pick import pick_inference
from ekya.planning.schedulers.registry import make_scheduler
from ekya.testing import GAMMAS, window_views

TINY = 1e-9


def small(view, streams=2, quantum=250):
    return replace(
        view,
        streams=view.streams[:streams],
        quantum_milli=quantum,
        steal_milli=quantum,
        capacity_milli=min(view.capacity_milli, 1000 * streams),
    )


def splits(view, stream, choice):
    """Yields each total share of a stream, whether its constraints hold, and its value."""
    shares = range(0, 1001, view.quantum_milli)
    floor = kept_floors(view, 10**9)[Job(stream.stream, Work.INFERENCE)]
    for retraining, inference in product(shares if choice.has_retraining else (0,), shares):
        yield retraining + inference, inference >= floor, value_of(choice, retraining, inference)


def everything(view):
    """Returns the best (kept streams, score) of all plans of one phase, by exhaustive search."""
    choices = choices_by_stream(view)
    offers = [list(splits(view, choice.stream, choice)) for choice in choices.values()]
    best = (-1, -1.0)
    for combination in product(*offers):
        if sum(share for share, _, _ in combination) <= view.capacity_milli:
            values = dict(zip(choices, (value for _, _, value in combination), strict=True))
            best = max(best, (sum(kept for _, kept, _ in combination), weighted_mean(view, values)))
    return best


@settings(max_examples=25)
@given(window_views().map(small))
def test_exact_equals_exhaustive_search(view):
    _, best = everything(view)
    assert make_scheduler("exact").plan(view).expected_accuracy == pytest.approx(best, abs=TINY)


def by_milp(view):
    """Solves Eq. 1 of the paper as printed, for a view whose constraints can all be kept."""
    gains, quanta, owner = [], [], []
    total = sum(stream.weight for stream in view.streams)
    for row, choice in enumerate(choices_by_stream(view).values()):
        for share, kept, value in splits(view, choice.stream, choice):
            if kept:
                gains.append(choice.stream.weight * value / total)
                quanta.append(share)
                owner.append(row)
    one_each = (np.arange(len(view.streams))[:, None] == np.array(owner)).astype(float)
    fine = 1e4  # HiGHS has an absolute tolerance of a millionth, for which scipy has no option.
    found = milp(
        -fine * np.array(gains),
        integrality=np.ones(len(gains)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(np.array(quanta)[None, :], -np.inf, view.capacity_milli),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert found.success
    return -found.fun / fine


@settings(max_examples=12)
@given(window_views().filter(lambda view: view.streams))
def test_exact_equals_integer_programme(drawn):
    view = small(drawn, streams=4, quantum=200)
    assume(len(kept_floors(view, view.capacity_milli)) == len(kept_floors(view, 10**6)))
    assert make_scheduler("exact").plan(view).expected_accuracy == pytest.approx(by_milp(view), abs=1e-7)


@settings(max_examples=40)
@given(window_views())
def test_exact_is_never_below_thief(view):
    exact, thief = (make_scheduler(name).plan(view).expected_accuracy for name in ("exact", "thief"))
    assert exact >= thief - TINY


def rank(view):
    """Returns the number of kept streams and the score, which the plan maximises in this order."""
    usable = view.capacity_milli // view.quantum_milli * view.quantum_milli
    kept = {job.stream for job in kept_floors(view, usable)}
    count = sum(stream.stream in kept and can_be_kept(view, stream) for stream in view.streams)
    return count, make_scheduler("exact").plan(view).expected_accuracy


def can_be_kept(view, stream):
    """Returns whether some share keeps a_MIN or the latency limit of a stream."""
    whole = pick_inference(view, stream, largest_share_milli(view.quantum_milli))
    return not (whole.below_min and (whole.too_old or stream.max_age_us is None))


def never_less(richer, poorer):
    assert richer[0] > poorer[0] or (richer[0] == poorer[0] and richer[1] >= poorer[1] - TINY)


@settings(max_examples=40)
@given(window_views(), st.integers(1, 1500))
def test_exact_with_more_gpus_scores_no_less(view, more):
    never_less(rank(replace(view, capacity_milli=view.capacity_milli + more)), rank(view))


def with_better_retrainings(draw, stream):
    """Returns the stream with retrainings that promise more and cost less."""

    def gamma(option):
        after = option.accuracy_after + (1.0 - option.accuracy_after) * draw(st.floats(0.0, 1.0))
        return replace(option, accuracy_after=after, gpu_s=option.gpu_s * draw(st.floats(0.0, 1.0)))

    running = stream.running and replace(stream.running, option=gamma(stream.running.option))
    return replace(stream, retrain_options=tuple(map(gamma, stream.retrain_options)), running=running)


def with_better_inference(change):
    """Returns what changes each λ of a stream by a drawn part."""
    return lambda draw, stream: replace(
        stream,
        inference_options=tuple(change(o, draw(st.floats(0.0, 1.0))) for o in stream.inference_options),
    )


SHARPER = with_better_inference(
    lambda o, part: replace(o, relative_accuracy=o.relative_accuracy + (1.0 - o.relative_accuracy) * part)
)
CHEAPER = with_better_inference(
    lambda o, part: replace(o, share_needed_milli=int(o.share_needed_milli * part))
)


@pytest.mark.parametrize("better", [with_better_retrainings, SHARPER, CHEAPER])
@settings(max_examples=30)
@given(window_views(), st.data())
def test_exact_with_better_options_scores_no_less(better, view, data):
    """For inference without latency limits: a stream newly kept with a_MIN asks for a larger share."""
    if better is not with_better_retrainings:
        view = replace(view, streams=tuple(replace(stream, max_age_us=None) for stream in view.streams))
    richer = replace(view, streams=tuple(better(data.draw, stream) for stream in view.streams))
    never_less(rank(richer), rank(view))


def test_exact_crosses_shares_without_gain():
    """A retraining needs 0.7 GPU to finish: no single step towards it gains, so the thief stays."""
    stream = StreamView(
        StreamId("a"),
        0.3,
        (RetrainOption(GAMMAS[0], 0.9, 40.0),),
        (
            InferenceOption(InferenceConfig(1, 32), 1.0, 500),
            InferenceOption(InferenceConfig(2, 32), 0.9, 250),
        ),
    )
    view = WindowView(0, 60_000_000, 1000, 50, 50, 0.2, (stream,), LINEAR)
    thief, exact = (make_scheduler(name).plan(view) for name in ("thief", "exact"))
    assert thief.phases[0].assignments[0].retrain is None
    assert exact.phases[0].assignments[0].retrain_share_milli == 750
    assert exact.expected_accuracy > thief.expected_accuracy + 0.01


def test_exact_leaves_useless_quanta_idle():
    stream = StreamView(StreamId("a"), 0.9, (), (InferenceOption(InferenceConfig(1, 32), 1.0, 420),))
    view = WindowView(0, 60_000_000, 2000, 50, 50, 0.4, (stream,), LINEAR)
    (assigned,) = make_scheduler("exact").plan(view).phases[0].assignments
    assert (assigned.retrain_share_milli, assigned.inference_share_milli) == (0, 450)
