"""Retrainings on what is left over, of students for which the golden detector answers.

No λ of the golden detector becomes more accurate by a retraining, so a plan of a window begins none for them.
Where a share is left that no other job gains from, the student learns meanwhile, and once it is worth more at
its cost than the golden detector, the next plan takes it in its place.
"""

from dataclasses import replace

from ekya.core.plan import Assignment, Phase
from ekya.core.shares import Job, Work
from ekya.core.units import FULL_GPU_MILLI, US_PER_S
from ekya.core.view import RetrainOption, StreamView, WindowView
from ekya.planning.placement.homes import Grants

LEAST_GAIN = 0.01
"""Gain in accuracy from which a student is retrained on what is left."""


def retrain_on_spare(view: WindowView, phase: Phase, grants: Grants) -> Phase:
    """Returns the phase with retrainings on what its jobs leave; no share of another job becomes smaller.

    One that runs already goes on first. The others follow by gain per GPU-second, each on the largest share
    that fits on its GPU, and only if it ends within the window.

    Args:
        view: that was planned on.
        phase: at granted shares.
        grants: of its jobs; modified, as shares grow.
    """
    given = list(phase.assignments)
    by_stream = {stream.stream: stream for stream in view.streams}
    streams = [by_stream[assignment.stream] for assignment in given]
    for place in sorted(range(len(given)), key=lambda place: _rank(streams[place])):
        stream, assignment = streams[place], given[place]
        if assignment.retrain_share_milli or not assignment.inference.by_golden:
            continue
        job = Job(stream.stream, Work.RETRAINING)
        share_milli = _largest_fitting(view, job, grants)
        option = _option(view, stream, share_milli)
        if option is not None:
            grants.grow_job(job, share_milli)
            given[place] = _with_retraining(stream, assignment, option, share_milli)
    return Phase(tuple(given))


def _rank(stream: StreamView) -> tuple[bool, float]:
    rates = (
        (option.accuracy_after - stream.accuracy) / max(option.gpu_s, 1e-9)
        for option in stream.retrain_options
    )
    return stream.running is None, -max(rates, default=0.0)


def _largest_fitting(view: WindowView, job: Job, grants: Grants) -> int:
    most = min(grants.spare_milli, FULL_GPU_MILLI)
    fitting = (grants.fitting_milli(job, wanted) for wanted in range(most, 0, -view.quantum_milli))
    return next((share for share in fitting if share is not None and share <= most), 0)


def _option(view: WindowView, stream: StreamView, share_milli: int) -> RetrainOption | None:
    if share_milli == 0:
        return None
    if stream.running is not None:
        return stream.running.option if stream.running.elsewhere is None else None
    left_s = (view.window_end_us - view.now_us) / US_PER_S
    able_gpu_s = left_s * view.training_speed.speed_at(share_milli)
    worth_it = [
        option
        for option in stream.retrain_options
        if option.gpu_s <= able_gpu_s and option.accuracy_after - stream.accuracy >= LEAST_GAIN
    ]
    return max(worth_it, key=lambda option: option.accuracy_after, default=None)


def _with_retraining(
    stream: StreamView, assignment: Assignment, option: RetrainOption, share_milli: int
) -> Assignment:
    reason = (
        f"the golden detector answers; on what is left {option.config.name} is to raise the student from "
        f"{100 * stream.accuracy:.0f} to {100 * option.accuracy_after:.0f}%"
    )
    return replace(assignment, retrain=option.config, retrain_share_milli=share_milli, reason=reason)
