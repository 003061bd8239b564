"""Conformance suite of schedulers: views drawn by hypothesis, and the laws that every plan of them keeps.

It needs hypothesis: ``pip install 'ekya[testing]'``.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ekya.core.configs import InferenceConfig, RetrainConfig
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import FULL_GPU_MILLI, JobId, StreamId
from ekya.core.view import InferenceOption, RetrainOption, RunningRetraining, StreamView, WindowView
from ekya.planning.schedulers.objective import evaluate_phases
from ekya.planning.schedulers.registry import PRESETS, SCHEDULERS, make_scheduler
from ekya.planning.schedulers.scheduler import Needs, Scheduler

V100 = SpeedCurve(((0, 0.0), (100, 0.36), (200, 0.51), (300, 0.65), (500, 0.83), (1000, 1.0)))
"""Approximate curve that the first public implementation measured on a V100."""

GAMMAS = tuple(
    RetrainConfig(epochs, 16, head, blocks, fraction)
    for epochs in (2, 4, 8)
    for head in (0, 64)
    for blocks in (0, 1)
    for fraction in (0.5, 1.0)
)

accuracies = st.integers(0, 100).map(lambda percent: percent / 100)

# Made once: hypothesis examines a strategy anew each time it is made, which takes longer than to draw.
_lambda_lists = st.lists(
    st.builds(
        InferenceOption,
        st.sampled_from([InferenceConfig(k, side) for k in (1, 2, 5, 10) for side in (16, 32)]),
        accuracies,
        st.integers(0, 1500),
        st.integers(0, 4).map(lambda tenths: tenths * 100_000),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda option: option.config,
)
_gamma_lists = st.lists(st.sampled_from(GAMMAS), max_size=4, unique=True)
_costs_gpu_s = st.floats(0.01, 200.0)
_done_milli = st.integers(0, 1000)
_weights = st.sampled_from([1.0, 1.0, 0.5, 3.0])
_max_ages_us = st.sampled_from([None, None, 150_000])
_early_parts = st.sampled_from([st.just(0.0), st.sampled_from([0.0, 0.01, 0.3, 0.5, 0.8, 0.95])])
_speeds = st.sampled_from([LINEAR, V100])


@cache
@st.composite
def stream_views(draw: st.DrawFn, index: int, rises: st.SearchStrategy[float]) -> StreamView:
    """Any view of stream ``cam-<index>``, whose γ have early parts of ``rises``."""
    lambdas = draw(_lambda_lists)
    gammas = tuple(
        RetrainOption(config, draw(accuracies), draw(_costs_gpu_s), early_part=draw(rises))
        for config in draw(_gamma_lists)
    )
    running = None
    is_running = bool(gammas) and draw(st.booleans())
    if is_running:
        running = RunningRetraining(JobId(index), gammas[0], draw(_done_milli))
        gammas = ()
    return StreamView(
        StreamId(f"cam-{index}"),
        draw(accuracies),
        gammas,
        tuple(lambdas),
        running,
        weight=draw(_weights),
        max_age_us=draw(_max_ages_us),
    )


@cache
@st.composite
def window_views(draw: st.DrawFn) -> WindowView:
    """Any view; checkpoints serve in about every other one."""
    rises = draw(_early_parts)
    count = draw(st.integers(0, 4))
    quantum = draw(st.sampled_from([20, 50, 100, 250]))
    now_us = draw(st.integers(0, 10_000_000))
    return WindowView(
        now_us=now_us,
        window_end_us=now_us + draw(st.integers(0, 120_000_000)),
        capacity_milli=draw(st.integers(0, 5000)),
        quantum_milli=quantum,
        steal_milli=quantum * draw(st.integers(1, 3)),
        min_accuracy=draw(st.sampled_from([0.0, 0.2, 0.4])),
        streams=tuple(draw(stream_views(index, rises)) for index in range(count)),
        training_speed=draw(_speeds),
        inference_speed=draw(_speeds),
    )


@cache
@st.composite
def moments(draw: st.DrawFn) -> WindowView:
    """A view, in some cases with a plan in progress."""
    view: WindowView = draw(window_views())
    name = draw(st.sampled_from(["thief", "exact", None]))
    return replace(view, previous=make_scheduler(name).plan(view).phases) if name else view


def check_scheduler(scheduler: Scheduler, examples: int = 100) -> None:
    """Checks that a scheduler keeps the laws on which the loop relies, on drawn views, always the same ones.

    Args:
        scheduler: an object.
        examples: number of views for each law.

    Raises:
        AssertionError: says which law does not hold; a note has the smallest view that was found.
    """
    if not isinstance(scheduler.name, str) or not isinstance(scheduler.needs, Needs):
        raise AssertionError("name is to be a text, and needs an ekya.Needs")
    if set(scheduler.name) & set(":@,/") or scheduler.name in {"", *SCHEDULERS, *PRESETS}:
        raise AssertionError(f"name {scheduler.name!r}: it is taken, or has a character that has a meaning")
    for law in LAWS:
        _on_drawn_views(law, scheduler, examples)


def _on_drawn_views(law: "Law", scheduler: Scheduler, examples: int) -> None:
    # Without the phase that explains: it plans hundreds of times more, and each law says what does not hold.
    phases = (Phase.generate, Phase.shrink)
    drawn = settings(max_examples=examples, derandomize=True, database=None, deadline=None, phases=phases)

    @drawn
    @given(view=moments())
    def check(view: WindowView) -> None:
        law(scheduler, view)

    check()


Law = Callable[[Scheduler, WindowView], None]
"""Raises AssertionError if a scheduler breaks the law for a view."""


def shares_are_quanta_within_capacity(scheduler: Scheduler, view: WindowView) -> None:
    """Every share is a multiple of δ and at most one GPU; together they are at most the capacity."""
    for phase in scheduler.plan(view).phases:
        shares = [
            share for a in phase.assignments for share in (a.retrain_share_milli, a.inference_share_milli)
        ]
        _require(sum(shares) <= view.capacity_milli, f"shares {shares} are more than {view.capacity_milli}")
        for share in shares:
            fits = 0 <= share <= FULL_GPU_MILLI and share % view.quantum_milli == 0
            _require(fits, f"share {share} is no multiple of δ, {view.quantum_milli}, from 0 to 1000")
        for a in phase.assignments:
            _require(a.retrain is not None or not a.retrain_share_milli, f"{a.stream}: a share for no γ")


def assigns_each_stream_an_offered_option(scheduler: Scheduler, view: WindowView) -> None:
    """Every phase has all streams in order, an offered λ and γ of each, and a reason in one line."""
    for index, phase in enumerate(scheduler.plan(view).phases):
        _require([a.stream for a in phase.assignments] == [s.stream for s in view.streams], "other streams")
        for assigned, stream in zip(phase.assignments, view.streams, strict=True):
            name = stream.stream
            offered = [option.config for option in stream.inference_options]
            _require(assigned.inference in offered, f"{name}: λ {assigned.inference.name} is not offered")
            is_line = bool(assigned.reason) and "\n" not in assigned.reason
            _require(is_line, f"{name}: its reason is no line of text")
            if stream.running:
                goes_on = assigned.retrain == stream.running.option.config
                _require(goes_on or (index > 0 and assigned.retrain is None), f"{name}: another γ runs")
            elif assigned.retrain is not None:
                gammas = [option.config for option in stream.retrain_options]
                _require(assigned.retrain in gammas, f"{name}: γ {assigned.retrain.name} is not offered")


def order_of_options_does_not_matter(scheduler: Scheduler, view: WindowView) -> None:
    """The same options in another order give the same phases."""
    streams = tuple(
        replace(
            stream,
            retrain_options=tuple(reversed(stream.retrain_options)),
            inference_options=tuple(reversed(stream.inference_options)),
        )
        for stream in view.streams
    )
    turned = scheduler.plan(replace(view, streams=streams)).phases
    _require(turned == scheduler.plan(view).phases, "another order of options gives another plan")


def same_view_gives_the_same_plan(scheduler: Scheduler, view: WindowView) -> None:
    """A scheduler keeps nothing between plans, and leaves the view as it is."""
    before = copy.deepcopy(view)
    plan = scheduler.plan(view)
    _require(view == before, "the view has changed")
    scheduler.plan(replace(view, capacity_milli=view.capacity_milli // 2, streams=view.streams[1:]))
    _require(scheduler.plan(view) == plan, "the same view gives another plan after another view")


def expects_the_objective(scheduler: Scheduler, view: WindowView) -> None:
    """The accuracy that a plan expects is the objective's value for its phases."""
    plan = scheduler.plan(view)
    score = evaluate_phases(view, plan.phases).score
    _require(plan.expected_accuracy == score, f"expects {plan.expected_accuracy}, and it is {score}")


def completes_what_it_begins(scheduler: Scheduler, view: WindowView) -> None:
    """At most one γ per stream; a running one goes on even if it will not be done, as the cloud's does.

    A γ that will not be done must bring something before, by its checkpoints.
    """
    plan = scheduler.plan(view)
    done = dict(evaluate_phases(view, plan.phases).completions_us)
    _require(
        all(view.now_us <= t_us <= view.window_end_us for t_us in done.values()), "ends outside the window"
    )
    for place, stream in enumerate(view.streams):
        named = {phase.assignments[place].retrain for phase in plan.phases}
        gammas = named - {None}
        _require(len(gammas) <= 1, f"{stream.stream}: several γ")
        goes_on = not stream.running or None not in named or stream.stream in done
        _require(goes_on, f"{stream.stream}: its running γ is given up")
        sent = plan.phases[0].assignments[place].elsewhere
        rising = {option.config for option in stream.retrain_options if option.early_part > 0.0}
        brings = bool(stream.running or sent or stream.stream in done) or gammas <= rising
        _require(brings, f"{stream.stream}: a γ is begun that is not done before the window ends")


LAWS: tuple[Law, ...] = (
    shares_are_quanta_within_capacity,
    assigns_each_stream_an_offered_option,
    order_of_options_does_not_matter,
    same_view_gives_the_same_plan,
    expects_the_objective,
    completes_what_it_begins,
)
"""Properties on which the loop relies."""


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)
