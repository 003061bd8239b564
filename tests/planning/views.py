"""Views of the paper's example and of the golden detector, and plans at their grants."""

from dataclasses import replace

from ekya.core.configs import GOLDEN_RESOLUTION, InferenceConfig, RetrainConfig
from ekya.core.speed import LINEAR
from ekya.core.units import StreamId
from ekya.core.view import (
    InferenceOption,
    RetrainOption,
    StreamView,
    WindowView,
)
from ekya.planning.granting.regrant import regrant_plan
from ekya.planning.placement.pack import Packing, pack_shares
from ekya.planning.placement.rounding import ShareSteps
from ekya.planning.schedulers.allocation import shares_of


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
