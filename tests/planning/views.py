"""Views for tests, drawn by hypothesis or taken from the paper, and plans at their grants."""

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, RetrainConfig
from ekya.core.speed import LINEAR, SpeedCurve
from ekya.core.units import JobId, StreamId
from ekya.core.view import (
    InferenceOption,
    RetrainOption,
    RunningRetraining,
    StreamView,
    WindowView,
)
from ekya.planning.granting.regrant import regrant_plan
from ekya.planning.placement.pack import Packing, pack_shares
from ekya.planning.placement.rounding import ShareSteps
from ekya.planning.schedulers.allocation import shares_of

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
def stream_views(draw, index, rises):
    lambdas = draw(_lambda_lists)
    gammas = tuple(
        RetrainOption(config, draw(accuracies), draw(_costs_gpu_s), early_part=draw(rises))
        for config in draw(_gamma_lists)
    )
    running = None
    if gammas and draw(st.booleans()):
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
def window_views(draw):
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


def value_of(choices, retrain_milli, inference_milli):
    """Returns the stream's part of the objective at the best choices for these shares."""
    return choices.choose_retraining(retrain_milli).serving * choices.choose_inference(inference_milli).part


def with_golden(view):
    """Returns the view with the golden detector in place of the coarser resolution."""
    streams = [
        replace(
            stream,
            inference_options=tuple(
                replace(o, config=InferenceConfig(o.config.every, GOLDEN_RESOLUTION))
                if o.config.resolution == 16
                else o
                for o in stream.inference_options
            ),
        )
        for stream in view.streams
    ]
    return replace(view, streams=tuple(streams))


def at_grants(view, plan, needs, *, step=1, packing=Packing.POOL, shares=None):
    """Returns the plan at what is granted of the shares that its first phase, or ``shares``, asks for."""
    grants = pack_shares(
        packing,
        shares_of(plan.phases[0]) if shares is None else shares,
        capacity_milli=view.capacity_milli,
        held_milli=(),
        steps=ShareSteps(step),
    )
    return regrant_plan(view, plan, grants, needs)


def options_of(stream):
    return (stream.running.option,) if stream.running else stream.retrain_options


PAPER_TABLE = {
    1: {"A": ((75, 85), (70, 65)), "B": ((90, 80), (85, 50))},
    2: {"A": ((95, 90), (90, 40)), "B": ((98, 80), (90, 70))},
}
"""Table 1 of the paper: window -> video -> (accuracy in percent, GPU-seconds) of Cfg1 and Cfg2."""


def paper_view(window, accuracies_now, *, finer_lambdas):
    """The example of §3.2: 3 GPUs, two streams, 120 s, a_MIN 40%, inference that needs a whole GPU.

    ``finer_lambdas`` offers skipped frames as λ; otherwise frames are dropped.
    """
    needs = range(100, 1001, 100) if finer_lambdas else (1000,)
    lambdas = tuple(
        InferenceOption(InferenceConfig(1001 - need, 32), need / 1000, need) for need in sorted(needs)
    )
    streams = tuple(
        StreamView(
            StreamId(video),
            accuracies_now[video],
            tuple(
                RetrainOption(RetrainConfig(index + 1, 16, 0, 1, 1.0), percent / 100, float(gpu_s))
                for index, (percent, gpu_s) in enumerate(PAPER_TABLE[window][video])
            ),
            lambdas,
        )
        for video in ("A", "B")
    )
    return WindowView(0, 120_000_000, 3000, 100, 100, 0.4, streams, LINEAR)
